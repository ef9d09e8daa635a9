"""31xx: plans, and the bytes they are applied to.

What a client sends is the caller's fault, what a broker sends is the upstream's: the same fault
has a class of its own for each side.
"""

from penstock.model.errors import Fault, PenstockError


class PlanUnknown(PenstockError):
    code = "PEN-3101"
    fault = Fault.CALLER
    text = "there is no plan for API {api} in version {version} (Kafka {kafka})"
    hint = "Ask ApiVersions for the versions that are served."


class RuleMissing(PenstockError):
    code = "PEN-3102"
    text = "{path} could carry a name and has no rule"
    hint = "Add a rule to penstock/wire/rules.py, `PLAIN` if it carries none; docs/wire-plans.md tells how."


class FrameMalformed(PenstockError):
    """What a client sent."""

    code = "PEN-3103"
    fault = Fault.CALLER
    text = "a request of API {api} version {version} cannot be read: {reason}"
    hint = "The connection is closed. Check that the client speaks Kafka's protocol."


class AnswerMalformed(PenstockError):
    """What a broker sent."""

    code = "PEN-3104"
    fault = Fault.UPSTREAM
    text = "an answer of API {api} version {version} cannot be read: {reason}"
    hint = "Check that the broker runs the Kafka version the definitions were compiled from."


class FrameTooLarge(PenstockError):
    code = "PEN-3105"
    fault = Fault.CALLER
    text = "a request of {size} bytes is beyond the limit of {limit}"
    hint = "Send smaller requests, or raise the limit of the gateway and of the brokers."


class AnswerTooLarge(PenstockError):
    code = "PEN-3106"
    fault = Fault.UPSTREAM
    text = "an answer of {size} bytes is beyond the limit of {limit}"
    hint = "Ask for less at once, or raise the limit of the gateway."


class NameRefused(PenstockError):
    """A name that has no place on the other side, at a spot where nothing can be left out."""

    code = "PEN-3107"
    fault = Fault.CALLER
    text = "{path}: this {kind} cannot be passed on"
    hint = "Use a name of your own cluster."


class RefusedInStream(PenstockError):
    """As above, but part of the frame is already on its way, so only closing remains."""

    code = "PEN-3108"
    fault = Fault.CALLER
    text = "{path}: this {kind} cannot be passed on, and the frame had begun to be"
    hint = "The connection is closed. Use a name of your own cluster."


class GrowthBroken(PenstockError):
    code = "PEN-3109"
    fault = Fault.OURS
    text = "a topic name changed by {got} bytes where {expected} had been announced"
    hint = "`Names.topic_growth` must be what `Names.topic` adds, for every name."


class AnswerRefused(PenstockError):
    """A name in an answer that the tenant must not see, at a spot where nothing can be left out."""

    code = "PEN-3110"
    fault = Fault.UPSTREAM
    text = "{path}: the answer names a {kind} of somebody else"
    hint = "The answer is not passed on. Check the ACLs of the account that asked."


class AnswerRefusedInStream(PenstockError):
    """As above, but part of the answer is already on its way."""

    code = "PEN-3111"
    fault = Fault.UPSTREAM
    text = "{path}: the answer names a {kind} of somebody else, and had begun to be passed on"
    hint = "The connection is closed. Check the ACLs of the account that asked."
