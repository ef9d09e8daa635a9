"""31xx: plans, and the frames they are applied to.

A bad frame from a client is the caller's fault, one from a broker the upstream's. So each problem has two
classes, one for requests and one for responses.
"""

from penstock.model.errors import CallerError, PenstockError, UpstreamError


class PlanUnknown(CallerError):
    code = "PEN-3101"
    text = "API {api} has no version {version} in Kafka {kafka}"
    hint = "Negotiate the version with ApiVersions."


class RuleMissing(PenstockError):
    code = "PEN-3102"
    text = "{path} could carry a name and has no rule"
    hint = (
        "Add a rule to penstock/wire/field_rules.py, `PLAIN` if it carries no name: see docs/wire-plans.md."
    )


class RequestFrameMalformed(CallerError):
    code = "PEN-3103"
    text = "request of API {api} version {version} cannot be read: {reason}"
    hint = "The connection is closed. Check that the client speaks Kafka's protocol."


class ResponseFrameMalformed(UpstreamError):
    code = "PEN-3104"
    text = "response of API {api} version {version} cannot be read: {reason}"
    hint = "Check that the broker runs the Kafka version that the definitions were compiled from."


class RequestFrameTooLarge(CallerError):
    code = "PEN-3105"
    text = "request of {size} bytes exceeds the limit of {limit}"
    hint = "Send smaller requests, or raise the limit on the gateway and on the brokers."


class ResponseFrameTooLarge(UpstreamError):
    code = "PEN-3106"
    text = "response of {size} bytes exceeds the limit of {limit}"
    hint = "Request less at a time, or raise the limit on the gateway."


class RequestElementsTooMany(CallerError):
    """A request whose arrays have more elements than its API may have; nothing was decoded or forwarded."""

    code = "PEN-3112"
    text = "{path}: the request has more than {limit} elements in all"
    hint = "Split it into several requests: docs/gateway-apis.md lists the limit of each API."


class NameRefused(CallerError):
    """A name in a request that the broker must not receive; the request is not forwarded."""

    code = "PEN-3107"
    text = "{path}: this {kind} cannot be forwarded"
    hint = "Use a name of your own cluster."


class RequestRefusedInStream(CallerError):
    """As `NameRefused`, but part of the request is already sent, so the connection has to be closed."""

    code = "PEN-3108"
    text = "{path}: this {kind} cannot be forwarded, and part of the request already was"
    hint = "The connection is closed. Use a name of your own cluster."


class GrowthBroken(PenstockError):
    code = "PEN-3109"
    text = "a topic name grew by {got} bytes, {expected} were announced in the frame's size"
    hint = "`Names.topic` must add exactly `Names.topic_growth` bytes to every name."


class ResponseRefused(UpstreamError):
    """A name in a response that the tenant must not see, in a place that cannot be omitted."""

    code = "PEN-3110"
    text = "{path}: the response names a {kind} of another tenant"
    hint = "The response is not forwarded. Check the ACLs of the account that sent the request."


class ResponseRefusedInStream(UpstreamError):
    """As `ResponseRefused`, but part of the response is already sent."""

    code = "PEN-3111"
    text = "{path}: the response names a {kind} of another tenant, and part of it is already forwarded"
    hint = "The connection is closed. Check the ACLs of the account that sent the request."
