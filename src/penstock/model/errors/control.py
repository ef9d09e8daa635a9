"""50xx: the control plane. The HTTP API returns them as problem details; `status` is the HTTP status."""

from typing import ClassVar

from penstock.model.errors import (
    CallerError,
    DeniedError,
    Exit,
    NotFoundError,
    PenstockError,
    UnavailableError,
    UpstreamError,
    UsageError,
)


class ControlError(PenstockError):
    status: ClassVar[int] = 500


class EntityMissing(ControlError, NotFoundError):
    code = "PEN-5001"
    status = 404
    text = "{kind} {id!r} does not exist"
    hint = "Check the spelling, or list what exists."


class VersionConflict(ControlError, CallerError):
    code = "PEN-5002"
    status = 412
    text = "{kind} {id} is at version {actual}, but the change is based on version {expected}"
    hint = "It was changed meanwhile: read it again, and repeat the change."


class NameTaken(ControlError, CallerError):
    code = "PEN-5003"
    status = 409
    text = "the name {name!r} is used by another {kind}: {id}"
    hint = "Choose another name, or use the existing {kind}."


class SizeTooLarge(ControlError, UsageError):
    code = "PEN-5004"
    status = 422
    text = "{units} capacity units are too many for a shared cluster, at most {units_max} are possible"
    hint = "Request at most {units_max} units, or a dedicated cluster."


class NoRoom(ControlError, UnavailableError):
    code = "PEN-5005"
    status = 503
    text = "no cell has room for {units} capacity units: {reason}"
    hint = "Add brokers for a new cell, or move tenants away from the fullest one."


class NotActive(ControlError, UnavailableError):
    code = "PEN-5006"
    status = 503
    text = "this control plane is not the active one"
    hint = "Send the request to the active one at {url}."


class NoneActive(NotActive):
    code = "PEN-5025"
    text = "no control plane is active"
    hint = "One becomes active within seconds: try again. `penstock status` shows which brokers are down."


class ControlPlaneNotReady(ControlError, UnavailableError):
    code = "PEN-5026"
    status = 503
    text = "the control plane at {url} accepts no changes: {state}"
    hint = "One becomes active within seconds: try again. `penstock status` shows which brokers are down."


class StepDefect(ControlError):
    code = "PEN-5027"
    text = "the step {step} of {operation} failed unexpectedly: {reason}"
    hint = "A defect of Penstock: the control plane's log has the traceback. Other operations continue."


class NotCaughtUp(ControlError, UnavailableError):
    code = "PEN-5007"
    status = 503
    text = "the registry has been read up to offset {position} of {end}"
    hint = "It is still being read from its topic; try again in a moment."


class StateConflict(ControlError, CallerError):
    code = "PEN-5008"
    status = 409
    text = "{kind} {id} is {state}: {reason}"
    hint = "Wait for running operations (`penstock operation list`), then try again."


class RequestReused(ControlError, UsageError):
    code = "PEN-5009"
    status = 422
    text = "the idempotency key was used before, for a different request"
    hint = "Use a new key for each request."


class TokenRefused(ControlError, DeniedError):
    code = "PEN-5010"
    status = 401
    text = "the operator token is missing or invalid"
    hint = "Set PENSTOCK_TOKEN (or send `Authorization: Bearer …`) to a token from `penstock token create`."


class RoleRefused(ControlError, DeniedError):
    code = "PEN-5011"
    status = 403
    text = "a token with the role {role} may not do this: {needed} is required"
    hint = "Use a token with that role, or ask an operator who has one."


class VersionNeeded(ControlError, UsageError):
    code = "PEN-5012"
    status = 428
    text = "a change requires the version that it is based on"
    hint = "Send the ETag of the last read as If-Match, or `*` for any version."


class RequestInvalid(ControlError, UsageError):
    code = "PEN-5013"
    status = 422
    text = "{where}: {reason}"
    hint = "Correct the value and send the request again."


class LimitReached(ControlError, CallerError):
    code = "PEN-5014"
    status = 409
    text = "{id} has {count} {what}, at most {count_max} are allowed"
    hint = "Delete some that are no longer needed."


class ProvisionerMissing(ControlError, UsageError):
    code = "PEN-5015"
    status = 422
    text = "this control plane cannot provision physical clusters: {reason}"
    hint = "Request a shared cluster, or run the control plane with a provisioner."


class ControlUnreachable(ControlError, UnavailableError):
    code = "PEN-5016"
    status = 503
    text = "no control plane responds at {url}: {reason}"
    hint = "Start the platform with `penstock up`, or give its address with --url or PENSTOCK_URL."


class OperationFailed(ControlError):
    code = "PEN-5017"
    status = 500
    text = "operation {id} ({action}) failed at {step}: {reason}"
    hint = "See `penstock operation show {id}`. Completed steps stay in effect and can be deleted."


class OperationSlow(ControlError, UnavailableError):
    code = "PEN-5018"
    status = 504
    text = "operation {id} did not end within {seconds:g} s"
    hint = "It continues in the background: follow it with `penstock operation wait {id}`."


class ImportRefused(ControlError, CallerError):
    code = "PEN-5019"
    status = 409
    text = "the export cannot be imported: {reason}"
    hint = "Import a file written by `penstock control export` into an empty registry."


class KeyNotStored(ControlError, NotFoundError):
    code = "PEN-5020"
    status = 404
    text = "no API key for {cluster} is stored on this machine"
    hint = "Create one with `penstock key create --cluster {cluster}`."


class StateDiffers(ControlError, UpstreamError):
    code = "PEN-5021"
    status = 500
    exit_code = Exit.UNHEALTHY
    text = "Kafka differs from the declared state in {places}"
    hint = (
        "Run `penstock control check --repair` to restore the declared state; deleted data is not restored."
    )


class ProblemResponse(ControlError, CallerError):
    """An error response of a control plane, as a client shows it."""

    code = "PEN-5022"
    status = 500
    text = "{message}"
    hint = "{advice}"


class RouteMissing(ControlError, NotFoundError):
    code = "PEN-5023"
    status = 404
    text = "{method} {path}: {reason}"
    hint = "See /v1/openapi.json for the available routes."


class BodyTooLarge(ControlError, CallerError):
    code = "PEN-5028"
    status = 413
    text = "the request's body is larger than {limit} bytes"
    hint = "Send less in one request: split lists into several changes."


class GatewayUnreachable(ControlError, UnavailableError):
    code = "PEN-5040"
    status = 503
    text = "no gateway responds at {bootstrap}: {reason}"
    hint = (
        "Start the platform with `penstock up`, or check the address and the network between here and there."
    )


class AdvertisedUnreachable(ControlError, UnavailableError):
    code = "PEN-5041"
    status = 503
    text = "{bootstrap} responds, but it advertises {address}, which cannot be reached from here: {reason}"
    hint = "Set the gateway's `advertised_host` to a name that clients reach, or open that address to them."


class ControlUntrusted(ControlError, UpstreamError):
    code = "PEN-5044"
    status = 503
    text = "the certificate of the control plane at {url} is not trusted: {reason}"
    hint = "Name the CA that signed it with --ca, or the address that the certificate is for."


class ProfileMissing(ControlError, NotFoundError):
    code = "PEN-5042"
    status = 404
    text = "there is no profile {name!r}"
    hint = (
        "List the profiles with `penstock profile list`, or create it with `penstock profile create {name}`."
    )


class ProfileLacks(ControlError, CallerError):
    code = "PEN-5043"
    status = 409
    text = "profile {name!r} has no {what}, which this command needs"
    hint = "Use a profile with one: `penstock profile create NAME {flags}`."


class PlaintextRefused(ControlError, UsageError):
    code = "PEN-5032"
    text = "the HTTP API would listen on {listen} without TLS, and operators' tokens would be readable"
    hint = (
        "Set `tls.certificate` and `tls.key`, or listen on 127.0.0.1. If a proxy in front of it "
        "terminates TLS, set `allow_plaintext: true` (`--allow-plaintext`)."
    )


class ConfigurationDiffers(ControlError, UsageError):
    code = "PEN-5029"
    text = "this control plane and the active one at {url} have different settings: {settings}"
    hint = "Give every control plane of a home the same values; after a takeover the other ones apply."


class PlatformKeyDiffers(ControlError, UsageError):
    code = "PEN-5030"
    text = "`platform_key` is not the key that the control plane at {url} used for this home"
    hint = "Copy the file from that host. With another key, gateways could no longer log in to Kafka."


class GatewayCallRefused(ControlError, DeniedError):
    code = "PEN-5050"
    status = 403
    text = "gateway {gateway!r} of {cluster} may not do this: {reason}"
    hint = "A gateway acts only for the tenants of its cluster."


class GatewayCallsTooMany(ControlError, UnavailableError):
    code = "PEN-5051"
    status = 503
    text = "{cluster} has {waiting} calls of gateways waiting, which is the limit"
    hint = "The gateway's client may retry."


class ClusterNotConnected(ControlError, UnavailableError):
    code = "PEN-5052"
    status = 503
    text = "this control plane has not connected to {cluster} yet"
    hint = "It has just started, or cannot reach that cluster. Gateways ask the others of `control.urls`."


class ServerCertificateInvalid(ControlError, UsageError):
    code = "PEN-5031"
    text = "{path} cannot be used as the certificate of the HTTP API: {reason}"
    hint = "Give a certificate chain in PEM with the key that belongs to it."


class MoveNeedsLink(ControlError, CallerError):
    code = "PEN-5033"
    status = 409
    text = "{id} is on {source!r}; a move to {target!r} copies its data between Kafka clusters"
    hint = (
        "That needs cluster links, which this version does not have. Create a logical cluster there with "
        "`--adopted {target}`, and copy the topics with a client."
    )


class ClocksDiffer(ControlError, UpstreamError):
    code = "PEN-5034"
    status = 503
    text = "the clock of this host is {seconds:.0f} s behind that of the control plane at {url}, or more"
    hint = "Synchronize the clocks of all hosts with NTP: the expiry of rotated keys depends on them."


class AdoptedOccupied(ControlError, CallerError):
    code = "PEN-5035"
    status = 409
    text = "adopted cluster {name!r} is {tenancy}: {tenants} on it"
    hint = "Name another adopted cluster, or delete the tenants first. A dedicated tenant needs it alone."


class AdoptedUnusable(ControlError, UpstreamError):
    code = "PEN-5036"
    status = 503
    text = "adopted cluster {name!r} cannot be used now: {reason}"
    hint = "{remedy}"
