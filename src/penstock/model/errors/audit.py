"""92xx: the durability audit."""

from penstock.model.errors import CallerError, NotFoundError, UpstreamError


class RuleCatalogueInvalid(CallerError):
    code = "PEN-9200"
    text = "audit rule {name!r}: {reason}"
    hint = "List the rules with `penstock audit rules`."


class FindingUnknown(NotFoundError):
    code = "PEN-9201"
    text = "there is no finding {finding!r}"
    hint = "List findings with `penstock audit findings`."


class SourceRecreated(UpstreamError):
    code = "PEN-9203"
    text = (
        "topic {topic} was created again: its log ends at {end}, and position {position} was processed before"
    )
    hint = "What happened in between is unknown. Delete the topic {state} to start the audit from scratch."


class FindingsUnread(UpstreamError):
    code = "PEN-9206"
    text = "the findings of {cluster} cannot be read: {reason}"
    hint = "Check that the brokers of this physical cluster run, and try again."
    retriable = True


class DayUnfinished(CallerError):
    code = "PEN-9205"
    text = "{day} is not over yet in UTC, or has just ended"
    hint = "Give --so-far to get a report on the part of the day that is over."


class SubjectUnknown(NotFoundError):
    code = "PEN-9204"
    text = "the audit has no history of {subject!r}"
    hint = "Give a topic and a partition, such as orders/0, that exist on this cluster."
