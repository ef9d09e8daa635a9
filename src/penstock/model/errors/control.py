"""50xx: the control plane. The HTTP API answers with these as problem details; `status` is HTTP's."""

from typing import ClassVar

from penstock.model.errors import Exit, Fault, PenstockError


class ControlError(PenstockError):
    status: ClassVar[int] = 500


class EntityMissing(ControlError):
    code = "PEN-5001"
    status = 404
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "there is no {kind} {id!r}"
    hint = "List what there is, and check for a typing error."


class VersionConflict(ControlError):
    code = "PEN-5002"
    status = 412
    fault = Fault.CALLER
    text = "{kind} {id} is at version {found}, the change was made for version {expected}"
    hint = "Somebody else changed it meanwhile: read it again, and decide again."


class NameTaken(ControlError):
    code = "PEN-5003"
    status = 409
    fault = Fault.CALLER
    text = "the name {name!r} is taken by another {kind}: {id}"
    hint = "Choose another name, or use the one that is there."


class SizeTooLarge(ControlError):
    code = "PEN-5004"
    status = 422
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{units} capacity units are too many for a shared cluster, at most {units_max} fit"
    hint = "Ask for at most {units_max} units, or for a dedicated cluster."


class NoRoom(ControlError):
    code = "PEN-5005"
    status = 503
    retriable = True
    fault = Fault.UPSTREAM
    exit_code = Exit.UNHEALTHY
    text = "no cell has room for {units} capacity units: {reason}"
    hint = "Add brokers for a new cell, or move tenants away from the fullest one."


class NotActive(ControlError):
    code = "PEN-5006"
    status = 503
    retriable = True
    fault = Fault.UPSTREAM
    exit_code = Exit.UNHEALTHY
    text = "this control plane is not the active one"
    hint = "The active one is at {url}."


class NotCaughtUp(ControlError):
    code = "PEN-5007"
    status = 503
    retriable = True
    fault = Fault.UPSTREAM
    exit_code = Exit.UNHEALTHY
    text = "the registry is read up to {position} of {end}"
    hint = "It is still being rebuilt from its topic; ask again in a moment."


class StateConflict(ControlError):
    code = "PEN-5008"
    status = 409
    fault = Fault.CALLER
    text = "{kind} {id} is {state}: {reason}"
    hint = "Wait for what is under way (`penstock operation list`), then try again."


class RequestReused(ControlError):
    code = "PEN-5009"
    status = 422
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "the idempotency key was used before, for something else"
    hint = "Use a new key for each thing that is asked for."


class TokenRefused(ControlError):
    code = "PEN-5010"
    status = 401
    fault = Fault.CALLER
    exit_code = Exit.DENIED
    text = "the operator token is missing or not valid"
    hint = "Set PENSTOCK_TOKEN (or send `Authorization: Bearer …`) to a token from `penstock control token`."


class RoleRefused(ControlError):
    code = "PEN-5011"
    status = 403
    fault = Fault.CALLER
    exit_code = Exit.DENIED
    text = "a token with the role {role} may not do this: {needed} is needed"
    hint = "Use a token with that role, or have somebody do it who has one."


class VersionNeeded(ControlError):
    code = "PEN-5012"
    status = 428
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "a change needs the version that it was made for"
    hint = "Send the ETag that was read as If-Match; `*` means whatever version there is."


class RequestInvalid(ControlError):
    code = "PEN-5013"
    status = 422
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{where}: {reason}"
    hint = "Correct the value and send the request again."


class LimitReached(ControlError):
    code = "PEN-5014"
    status = 409
    fault = Fault.CALLER
    text = "{id} has {count} of at most {count_max} {what}"
    hint = "Delete some that are no longer needed."


class ProvisionerMissing(ControlError):
    code = "PEN-5015"
    status = 422
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "this control plane cannot make physical clusters: {reason}"
    hint = "Ask for a shared cluster, or run the control plane with a provisioner."


class ControlUnreachable(ControlError):
    code = "PEN-5016"
    status = 503
    retriable = True
    fault = Fault.UPSTREAM
    exit_code = Exit.UNHEALTHY
    text = "{url}: no control plane answers: {reason}"
    hint = "Start the platform with `penstock up`, or say where it is with --url or PENSTOCK_URL."


class OperationFailed(ControlError):
    code = "PEN-5017"
    status = 500
    text = "operation {id} ({action}) failed at {step}: {reason}"
    hint = "See `penstock operation show {id}`; what was done stays and can be deleted."


class OperationSlow(ControlError):
    code = "PEN-5018"
    status = 504
    retriable = True
    fault = Fault.UPSTREAM
    exit_code = Exit.UNHEALTHY
    text = "operation {id} has not ended within {seconds:g} s"
    hint = "It goes on by itself: follow it with `penstock operation wait {id}`."


class ImportRefused(ControlError):
    code = "PEN-5019"
    status = 409
    fault = Fault.CALLER
    text = "the export cannot be imported: {reason}"
    hint = "Import into an empty registry, and a file that `penstock control export` wrote."


class KeyNotHere(ControlError):
    code = "PEN-5020"
    status = 404
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "no API key for {cluster} is kept here"
    hint = "Make one with: penstock key create --cluster {cluster}"


class Differs(ControlError):
    code = "PEN-5021"
    status = 500
    fault = Fault.UPSTREAM
    exit_code = Exit.UNHEALTHY
    text = "Kafka differs from what is declared in {count} places"
    hint = "`penstock control check --repair` makes it as declared; deleted data does not come back."


class ProblemAnswered(ControlError):
    """What a control plane answered, as it said it; for clients."""

    code = "PEN-5022"
    status = 500
    fault = Fault.CALLER
    text = "{message}"
    hint = "{advice}"


class RouteMissing(ControlError):
    code = "PEN-5023"
    status = 404
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "{method} {path}: {reason}"
    hint = "See /v1/openapi.json for what there is."


class CellSlow(ControlError):
    code = "PEN-5024"
    status = 503
    fault = Fault.UPSTREAM
    exit_code = Exit.UNHEALTHY
    text = "the new cell was not there within {seconds:.0f} s"
    hint = "`penstock status` shows its brokers, `penstock cell list` the cell as soon as it is formed."
