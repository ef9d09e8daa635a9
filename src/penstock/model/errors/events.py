"""1150–1199: records on internal topics that cannot be read as the event they should hold."""

from penstock.model.errors import UpstreamError


class EventUnreadable(UpstreamError):
    code = "PEN-1150"
    text = "record is not a {kind} event: {reason}"
    hint = "Another program wrote to this internal topic. Only Penstock may write there."


class EventOfAnotherKind(UpstreamError):
    code = "PEN-1151"
    text = "expected an event of kind {expected}, found {actual!r}"
    hint = "Each kind of event has one topic: check which topic is being read."


class EventTooNew(UpstreamError):
    code = "PEN-1152"
    text = "{kind} event has schema {actual}, this version reads {kind}/{major} only"
    hint = "Upgrade this component first: readers are rolled before writers."


class EventFieldInvalid(UpstreamError):
    code = "PEN-1153"
    text = "{kind} event: `{field}` is {value}, expected {expected}"
    hint = "The component that wrote the record has a defect; keep the record and report it."
