"""40xx: the gateway. What a tenant is told travels as Kafka's own error codes; these are for operators."""

from penstock.model.errors import Exit, Fault, PenstockError
from penstock.model.errors.plans import AnswerRefused


class EventOutOfPlace(PenstockError):
    code = "PEN-4001"
    text = "{event} cannot happen to a connection that is {state}"
    hint = "The connection is closed. If it happens again, report it with the log around it."


class ListenFailed(PenstockError):
    code = "PEN-4002"
    fault = Fault.CALLER
    exit_code = Exit.FAILED
    text = "cannot listen on {host}:{port}: {reason}"
    hint = "Choose another port, or end what listens there."


class PlatformKeyMissing(PenstockError):
    code = "PEN-4003"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{path}: the platform key cannot be read: {reason}"
    hint = "Point `platform_key` at the file that the fleet was started with."


class CertificateUnusable(PenstockError):
    code = "PEN-4004"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{path}: is no usable certificate: {reason}"
    hint = "Expected one PEM file with the private key and the certificate chain."


class UpstreamLoginRefused(PenstockError):
    code = "PEN-4005"
    fault = Fault.UPSTREAM
    retriable = True
    text = "broker {broker} does not let {user} in: {reason}"
    hint = "Check that the tenant is provisioned on this cluster with the same generation of its password."


class UpstreamUnreachable(PenstockError):
    code = "PEN-4006"
    fault = Fault.UPSTREAM
    retriable = True
    text = "broker {broker} at {address} cannot be reached: {reason}"
    hint = "Check that the broker runs and that its address in the configuration is right."


class AnswerUnexpected(PenstockError):
    code = "PEN-4007"
    fault = Fault.UPSTREAM
    text = "the broker answered {found}, {expected} was expected"
    hint = "The connection is closed; clients connect again by themselves."


class GatewayNotRunning(PenstockError):
    code = "PEN-4008"
    fault = Fault.CALLER
    exit_code = Exit.UNHEALTHY
    text = "no gateway runs with {config}"
    hint = "Start one: penstock gateway run --config {config}"


class DrainTimedOut(PenstockError):
    code = "PEN-4009"
    exit_code = Exit.UNHEALTHY
    retriable = True
    text = "gateway {gateway} (process {pid}) still runs after {seconds:.0f} s"
    hint = "Clients that answer slowly hold it; drain again, or end the process."


class BrokersUnknown(AnswerRefused):
    """Metadata without a single broker: clients that take it for the truth have nobody left to ask."""

    code = "PEN-4010"
    retriable = True
    text = "the broker was asked for metadata and knows of no brokers"
    hint = (
        "It has just started, or is starved. The connection is closed; clients connect again by themselves."
    )
