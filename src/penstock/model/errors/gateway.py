"""40xx: the gateway. Tenants receive Kafka's own error codes; these errors are for operators."""

from penstock.model.errors import CallerError, Exit, PenstockError, UpstreamError, UsageError
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
