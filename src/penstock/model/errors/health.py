"""56xx: probes, error budgets and the mitigation of sick brokers."""

from penstock.model.errors import CallerError, UpstreamError


class ExclusionUnsafe(CallerError):
    code = "PEN-5601"
    text = "broker {broker} cannot be taken out of every ISR: {reason}"
    hint = (
        "Wait until the other replicas are in sync, or raise the topic's replication factor. A broker that "
        "leads nothing first needs a partition whose only replica it has, such as its probe partition."
    )


class ExclusionIneffective(UpstreamError):
    code = "PEN-5602"
    text = "the cluster did not take broker {broker} out of every ISR: {reason}"
    hint = (
        "This Kafka version may have changed how it treats a broker that shuts down. Demote the broker "
        "instead: penstock broker demote {broker}."
    )


class TargetInvalid(CallerError):
    code = "PEN-5610"
    text = "an availability of {target} cannot be a target"
    hint = "Give a number from {least} to below 1, such as 0.9995."


class WindowsInvalid(CallerError):
    code = "PEN-5611"
    text = "burn windows of {short} and {long} minutes are out of order"
    hint = "Give a short window above 0 that is below the long one, such as 5 and 60."


class HistoryUnwritable(UpstreamError):
    code = "PEN-5612"
    text = "probes cannot be written to _penstock.health: {reason}"
    hint = "Up to 50,000 probes wait in memory. Check the cluster's brokers, and the login of the checker."


class HistoryUnreadable(UpstreamError):
    code = "PEN-5613"
    text = "probes cannot be read from _penstock.health: {reason}"
    hint = "Until they can, every broker's health is unknown and nothing is mitigated."


class ProbeTopicsMissing(UpstreamError):
    code = "PEN-5614"
    text = "the probe topics of {cluster} cannot be placed: {reason}"
    hint = "The checker's login for the brokers needs the rights to create topics and to reassign partitions."


class CheckerRefused(CallerError):
    code = "PEN-5615"
    text = "the gateway does not let the checker in: {reason}"
    hint = "Its API key may be revoked or its quota too small. This is no fault of any broker."


class HoldInvalid(CallerError):
    code = "PEN-5620"
    text = "a hold of {seconds:g} s is not possible"
    hint = "Give a time above 0 and at most a day: --for 4h."


class NotHeld(CallerError):
    code = "PEN-5621"
    text = "broker {broker} is not held"
    hint = "Held brokers are listed by: penstock health show."


class ActionUnknown(CallerError):
    code = "PEN-5622"
    text = "there is no action {action}"
    hint = "Use one of {known}."


class DrillRefused(CallerError):
    code = "PEN-5623"
    text = "no drill on broker {broker}: {reason}"
    hint = "A drill needs a healthy broker of the local fleet, another one in its place, and no other drill."


class IncidentClosed(CallerError):
    code = "PEN-5624"
    text = "incident {incident} is resolved already"
    hint = "See: penstock health incidents show {incident}."


class NotRestartable(CallerError):
    code = "PEN-5625"
    text = "broker {broker} of {cluster} cannot be restarted from here"
    hint = "Only brokers of a local fleet are. Restart it yourself; what health does resumes afterwards."


class NotificationFailed(UpstreamError):
    code = "PEN-5626"
    text = "the notification of {incident} was not delivered to {target}: {reason}"
    hint = "It is tried again. Check the address, and that it responds within 5 s without a redirect."
