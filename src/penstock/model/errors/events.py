"""1150–1199: records on internal topics that cannot be taken for what they should be."""

from penstock.model.errors import Fault, PenstockError


class EventUnreadable(PenstockError):
    code = "PEN-1150"
    fault = Fault.UPSTREAM
    text = "record is no {kind} event: {reason}"
    hint = "Something other than this platform wrote to the topic; internal topics are not for general use."


class EventOfAnotherKind(PenstockError):
    code = "PEN-1151"
    fault = Fault.UPSTREAM
    text = "expected an event of kind {expected}, found {found!r}"
    hint = "Each kind has a topic of its own: check which topic is being read."


class EventTooNew(PenstockError):
    code = "PEN-1152"
    fault = Fault.UPSTREAM
    text = "{kind} event has schema {found}, this version reads {kind}/{major} only"
    hint = "Upgrade this component first: readers are rolled before writers."


class EventFieldInvalid(PenstockError):
    code = "PEN-1153"
    fault = Fault.UPSTREAM
    text = "{kind} event: `{field}` is {value}, expected {expected}"
    hint = "The component that wrote the record has a defect; keep the record and report it."
