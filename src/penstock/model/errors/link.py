"""93xx: cluster links."""

from __future__ import annotations

from penstock.model.errors import CallerError, NotFoundError, UpstreamError


class LinkUnknown(NotFoundError):
    code = "PEN-9300"
    text = "there is no link {link!r} on this cluster; known: {known}"
    hint = "List links with `penstock link list`."


class LinkExists(CallerError):
    code = "PEN-9301"
    text = "a link {link!r} exists on this cluster"
    hint = "Choose another name, or delete the link with `penstock link delete`."


class LinkStateConflict(CallerError):
    code = "PEN-9302"
    text = "link {link!r} is {state}, so {action} is not possible; possible: {possible}"
    hint = "See its state with `penstock link show`."


class SourceUnusable(UpstreamError):
    code = "PEN-9303"
    text = "the source cannot be mirrored further: {reason}"
    hint = "Nothing was skipped. Delete the mirror of this topic and create it again, or fail over."


class BrokersTooFew(CallerError):
    code = "PEN-9304"
    text = "the destination has {count} brokers, and a mirror needs {needed}"
    hint = "Add brokers: while a shadow leads, only real brokers store the records."


class MirrorTopicTaken(CallerError):
    code = "PEN-9305"
    text = "topic {topic!r} exists on the destination and is not a mirror of this link"
    hint = "Delete or rename it, or leave it out of the link."


class MirrorTopicInvalid(CallerError):
    code = "PEN-9306"
    text = "topic {topic!r} cannot be mirrored: {reason}"
    hint = "Choose topics that belong to applications."


class AuthorizerMissing(CallerError):
    code = "PEN-9307"
    text = "writes to a mirror cannot be denied on the destination: {reason}"
    hint = "Set authorizer.class.name on the destination's brokers."


class SourceNotFenced(UpstreamError):
    code = "PEN-9308"
    text = "the source's topics could not be closed for writes: {reason}"
    hint = "Grant the link's user Alter on the source cluster, or fail over with `penstock link failover`."


class LinkNotDrained(UpstreamError):
    code = "PEN-9309"
    retriable = True
    text = "{count} partitions still lag behind the source after {seconds:.0f} s"
    hint = "Stop the source's producers that are super users, then promote again; or fail over."


class LinkNotRunning(UpstreamError):
    code = "PEN-9310"
    retriable = True
    text = "no process carried out {action} of link {link!r} within {seconds:.0f} s"
    hint = "Start it with `penstock link run`; it then carries out the request."


class LinkRecordInvalid(UpstreamError):
    code = "PEN-9311"
    text = "a record of {topic} cannot be read: {reason}"
    hint = "It was written by another version of Penstock, or by another program."


class MirrorNotReleased(UpstreamError):
    code = "PEN-9312"
    retriable = True
    text = "{count} partitions still list shadow {shadow} as a replica after {seconds:.0f} s"
    hint = "Clients may write already. Run the link again: it repeats this step."


class LinkStateLost(UpstreamError):
    code = "PEN-9313"
    retriable = True
    text = "the state of link {link!r} could not be written, so this process ends: {reason}"
    hint = "Another process may have taken over. If none runs, start it again: it continues."


class SourceDiverged(UpstreamError):
    code = "PEN-9314"
    text = "the source no longer has what was mirrored of {partition} below offset {end}"
    hint = "An unclean election truncated it there. The mirror truncates to the last record that both have."


class LeadersMissing(UpstreamError):
    code = "PEN-9315"
    retriable = True
    text = "{count} mirror partitions have no real leader after {seconds:.0f} s"
    hint = "Check that the destination's brokers are up; then run the link again: it continues."


class ShadowIdUsed(CallerError):
    code = "PEN-9316"
    text = "broker id {broker} is the shadow of link {link!r}"
    hint = "Leave `shadow.id` out of the settings, so that a free one is chosen."


class GroupsNotCopied(UpstreamError):
    code = "PEN-9317"
    retriable = True
    text = (
        "offsets of {count} groups could not be copied, so they would read records again; {group}: {reason}"
    )
    hint = "See `problems` in `penstock link show`; delete such a group on the destination, or fail over."


class NotTheOldSource(CallerError):
    code = "PEN-9318"
    text = "link {link!r} cannot be reversed onto cluster {cluster}: its source was {source}"
    hint = "In the settings file of the link back, `destination` is the old source, `source` the active side."


class TailStoreMissing(CallerError):
    code = "PEN-9319"
    text = "link {link!r} cannot be reversed: its settings have no `tails` section"
    hint = "Records that only the old source has are saved there before it is truncated."


class TailNotSettled(UpstreamError):
    code = "PEN-9320"
    retriable = True
    text = "{count} partitions of the old source still change after {seconds:.0f} s"
    hint = "Transactions are open there, or super users write. It is tried again until none does."
