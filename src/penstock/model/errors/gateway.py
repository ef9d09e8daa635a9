"""40xx: the gateway. Tenants receive Kafka's own error codes; these errors are for operators."""

from penstock.model.errors import (
    CallerError,
    DeniedError,
    Exit,
    PenstockError,
    UnavailableError,
    UpstreamError,
    UsageError,
)
from penstock.model.errors.plans import ResponseRefused


class EventOutOfPlace(PenstockError):
    code = "PEN-4001"
    text = "event {event!r} is not possible in connection state {state!r}"
    hint = "The connection was closed. If it happens again, report it with the surrounding log."


class ListenFailed(CallerError):
    code = "PEN-4002"
    exit_code = Exit.FAILED
    text = "cannot listen on {host}:{port}: {reason}"
    hint = "Choose another port, or stop the process that listens there."


class PlatformKeyMissing(UsageError):
    code = "PEN-4003"
    text = "platform key {path} cannot be read: {reason}"
    hint = "Set `platform_key` to the key file that the fleet was started with."


class CertificateUnusable(UsageError):
    code = "PEN-4004"
    text = "certificate {path} cannot be used: {reason}"
    hint = "Provide one PEM file with the private key and the certificate chain."


class CredentialsUnusable(UsageError):
    code = "PEN-4013"
    text = "gateway credentials {path} cannot be used: {reason}"
    hint = "Write them again where the control plane runs: penstock gateway credentials CLUSTER --to FILE"


class CredentialsRefused(DeniedError):
    code = "PEN-4014"
    text = "the brokers at {bootstrap} refuse the gateway credentials {path}: {reason}"
    hint = (
        "Start the control plane of this cluster first. If it runs, the credentials are outdated: write them "
        "again with `penstock gateway credentials`."
    )


class CredentialsOfOtherCluster(UsageError):
    code = "PEN-4015"
    text = "gateway credentials {path} are for Kafka cluster {expected}, and {bootstrap} is {actual}"
    hint = "Correct `kafka.bootstrap`, or write the credentials of that cluster: penstock gateway credentials"


class GatewayNameTaken(CallerError):
    code = "PEN-4016"
    exit_code = Exit.FAILED
    text = "a gateway named {gateway!r} runs already on this cluster: {instance}, serving {bootstrap}"
    hint = "Give each gateway another name: `gateway` in its file. Usage and quota shares are kept by name."


class PlatformCallUnavailable(UnavailableError):
    code = "PEN-4017"
    text = "no control plane executed the call: {reason}"
    hint = "Clients may retry. Check that a control plane runs, and `control.urls` and `control.ca`."


class PlatformCallRefused(UpstreamError):
    code = "PEN-4018"
    text = "the control plane refused the call: {reason}"
    hint = "The tenant is not on this cluster any more, or the gateway credentials are outdated."


class UpstreamLoginRefused(UpstreamError):
    code = "PEN-4005"
    retriable = True
    text = "broker {broker} rejected the login of {user}: {reason}"
    hint = "Check that the tenant is provisioned on this cluster, with the same password generation."


class UpstreamUnreachable(UpstreamError):
    code = "PEN-4006"
    retriable = True
    text = "broker {broker} at {address} cannot be reached: {reason}"
    hint = "Check that the broker runs and that its address in the configuration is correct."


class ResponseUnexpected(UpstreamError):
    code = "PEN-4007"
    text = "the broker sent {actual}; expected {expected}"
    hint = "The connection was closed; clients reconnect by themselves."


class GatewayNotRunning(CallerError):
    code = "PEN-4008"
    exit_code = Exit.UNHEALTHY
    text = "no gateway runs with {config}"
    hint = "Start one: penstock gateway run --config {config}"


class DrainTimedOut(PenstockError):
    code = "PEN-4009"
    exit_code = Exit.UNHEALTHY
    retriable = True
    text = "gateway {gateway} (process {pid}) still runs after {seconds:.0f} s"
    hint = "Slow clients delay it; drain again, or kill the process."


class BrokersUnknown(ResponseRefused):
    """Metadata without a single broker: a client that believed it could reach no broker any more."""

    code = "PEN-4010"
    retriable = True
    text = "the broker returned metadata without any brokers"
    hint = (
        "It has just started, or is overloaded. The connection was closed; clients reconnect by themselves."
    )


class ProxyHeaderInvalid(CallerError):
    code = "PEN-4011"
    text = "no valid PROXY header from a trusted load balancer: {reason}"
    hint = "Switch the PROXY protocol on at the load balancer, or remove its network from `proxy_protocol`."


class TooManyEarlyRequests(CallerError):
    code = "PEN-4012"
    text = "more than {limit} requests before login"
    hint = "Log in first. `unauthenticated_requests_max` is the limit."
