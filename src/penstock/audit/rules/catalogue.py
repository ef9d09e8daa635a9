"""The rules: name, invariant, evidence, what an operator does, and the function that checks it.

`docs/audit.md` prints this table. Severities are the highest of a rule. `COLLECTED` has what writes each kind
of evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.audit.rules import log_start, replicas, reports, tier
from penstock.model.durability import Severity, What
from penstock.model.errors.audit import RuleCatalogueInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.audit.rules.case import Case
    from penstock.audit.rules.finding import Finding

    Check = Callable[[Case], Iterator[Finding]]

CRITICAL, WARNING = Severity.CRITICAL, Severity.WARNING


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule is checked on its kinds of event; one that `waits` also when time has passed."""

    name: str
    severity: Severity
    invariant: str
    evidence: tuple[What, ...]
    action: str
    check: Check
    on: tuple[What, ...] = ()
    waits: bool = False

    @property
    def missing(self) -> tuple[What, ...]:
        """The evidence that nothing collects."""
        return tuple(what for what in self.evidence if what not in COLLECTED)

    @property
    def fed_by(self) -> str:
        """What collects its evidence."""
        return ", ".join(dict.fromkeys(COLLECTED[what] for what in self.evidence))


COLLECTED: Final = {
    What.PLACEMENT: "metadata log",
    What.REMOVED: "metadata log",
    What.POLICY: "metadata log",
    What.TOPIC: "metadata log",
    What.BROKER: "metadata log and replica sweeps",
    What.REPLICA: "replica sweeps",
    What.ACKED: "acknowledgements",
    What.SEGMENT: "tier metadata",
    What.GROUP: "group offsets",
    What.DELETED: "intents",
    What.INTENT: "intents",
    What.HEARTBEAT: "heartbeats",
    What.SCRUBBED: "scrubs",
    What.STORED: "listings of the object store",
    What.BACKUP: "the backup catalogue",
    What.LINK: "`penstock link verify`",
}

REPLICA: Final = (What.REPLICA,)
PLACEMENT: Final = (What.PLACEMENT,)
SCRUBBED: Final = (What.SCRUBBED,)
RULES: Final = (
    Rule("offsets-ordered", CRITICAL,
         "Log start, last stable offset, high watermark and log end are in order.",
         REPLICA, "Take the broker out of service and scrub the partition.",
         replicas.offsets_ordered, REPLICA),
    Rule("log-start-falls", CRITICAL,
         "The log start of a replica in the ISR never falls, except for a recorded restore or link.",
         (What.REPLICA, What.INTENT), "Find out who wrote to the broker's log directory.",
         log_start.log_start_falls, REPLICA),
    Rule("log-start-unexplained", CRITICAL,
         "Each rise of a log start has a reason: retention, DeleteRecords, a restore or a link.",
         (What.REPLICA, What.POLICY, What.DELETED, What.INTENT, What.SEGMENT),
         "Do not produce to the partition and do not restart its followers: they may still have the records.",
         log_start.log_start_unexplained, waits=True),
    Rule("retention-exceeded", WARNING,
         "Nothing stays much longer, or becomes much larger, than retention allows.",
         (What.REPLICA, What.SEGMENT, What.POLICY),
         "Look for errors of the log cleaner and of remote storage in the leader's log.",
         replicas.retention_exceeded, REPLICA),
    Rule("acked-unreadable", CRITICAL,
         "The leader has every offset that was acknowledged with acks=all.",
         (What.ACKED, What.REPLICA),
         "Compare the replicas before the next election; restore the range from a backup.",
         replicas.acked_unreadable, REPLICA),
    Rule("one-value-per-offset", CRITICAL,
         "Replicas, tier and backup have the same batches at the same offsets.",
         SCRUBBED, "Drop the replica that differs and let it fetch again.",
         reports.one_value_per_offset, SCRUBBED),
    Rule("offset-holes", CRITICAL, "Offsets are missing only where markers, compaction or aborts explain it.",
         SCRUBBED, "Drop the replica and let it fetch again, if another one has the offsets.",
         reports.offset_holes, SCRUBBED),
    Rule("epochs-agree", CRITICAL,
         "Leader epochs rise, each has one leader, and no replica has a later one than its partition.",
         (What.PLACEMENT, What.REPLICA), "Stop the broker that has the wrong epoch.",
         replicas.epochs_agree, (What.PLACEMENT, What.REPLICA)),
    Rule("isr-legal", CRITICAL,
         "Each change raises the partition epoch by one; the leader is in the ISR; ISR and ELR are disjoint.",
         PLACEMENT, "Check the controllers' logs for a lost or repeated record.",
         replicas.isr_legal, PLACEMENT),
    Rule("possible-loss-window", CRITICAL, "Leaders are elected from the ISR or ELR.", PLACEMENT,
         "Compare acknowledged offsets with the new leader's log end; restore what is missing.",
         replicas.possible_loss_window, PLACEMENT),
    Rule("tier-coverage", CRITICAL,
         "Finished remote segments cover the log from its start to the last tiered offset.",
         (What.SEGMENT, What.REPLICA), "Publish the lost tier metadata again, or restore from a backup.",
         tier.tier_coverage, (What.REPLICA, What.SEGMENT)),
    Rule("tier-object-wrong", CRITICAL,
         "Every finished remote segment has all its objects, each of them sound.",
         (What.STORED, What.SEGMENT), "Undelete the object, or restore it from the second store.",
         tier.tier_object_wrong, (What.STORED,)),
    Rule("local-deleted-before-tiered", CRITICAL, "No local segment is deleted before it is tiered.",
         REPLICA, "Keep the followers' files and restore the range.",
         tier.local_deleted_before_tiered, REPLICA),
    Rule("segment-stuck", WARNING, "Remote segments stay at most an hour between states, and never go back.",
         (What.SEGMENT, What.REPLICA), "Look for errors of the storage plugin in the leader's log.",
         tier.segment_stuck, (What.SEGMENT, What.REPLICA)),
    Rule("tier-lag", WARNING, "Closed segments are tiered within an hour.", REPLICA,
         "Check the object store and the copy quota.", tier.tier_lag, REPLICA),
    Rule("config-drift", CRITICAL,
         "Retention, min ISR, cleanup policy and unclean elections are weakened on purpose only.",
         (What.POLICY, What.INTENT), "Undo the change, and restore what it deleted.",
         log_start.config_drift, waits=True),
    Rule("topic-id-changed", WARNING,
         "A topic keeps its id, unless it was deleted on purpose, restored or mirrored.",
         (What.TOPIC, What.INTENT), "Find out who deleted the topic; restore its records.",
         replicas.topic_id_changed, waits=True),
    Rule("group-offset-outside", CRITICAL,
         "A committed offset is within the log, and falls only when it is reset.",
         (What.GROUP, What.ACKED), "Reset the group, or restore what it has not read.",
         reports.group_offset_outside, (What.GROUP,)),
    Rule("producer-sequence", WARNING, "Sequence numbers of an idempotent producer follow one another.",
         SCRUBBED, "Compare with the other replicas.", reports.producer_sequence, SCRUBBED),
    Rule("link-diverged", CRITICAL, "A mirror has the same batches as its source, and no others.",
         (What.LINK,), "Delete the mirror of the topic and create it again.",
         reports.link_diverged, (What.LINK,)),
    Rule("backup-gap", CRITICAL, "A backup has every offset that it promises.", (What.BACKUP,),
         "Copy the range again while the log still has it.", reports.backup_gap, (What.BACKUP,)),
    Rule("replicas-disagree", CRITICAL,
         "Replicas in the ISR with the same offsets have the same size; log directories are online.",
         (What.REPLICA, What.BROKER), "Scrub the partition.",
         replicas.replicas_disagree, (What.REPLICA, What.BROKER)),
    Rule("auditor-silent", WARNING, "Collectors run, are up to date, and observe every partition.",
         (What.HEARTBEAT,), "Start the audit again with `penstock audit run`.",
         reports.auditor_silent, (What.HEARTBEAT,), waits=True),
)  # fmt: skip


def by_name(rules: Iterable[Rule] = RULES) -> dict[str, Rule]:
    """The rules by name; refuses a name that occurs twice."""
    result: dict[str, Rule] = {}
    for rule in rules:
        if rule.name in result:
            raise RuleCatalogueInvalid(name=rule.name, reason="it occurs twice")
        result[rule.name] = rule
    return result


def selected(names: Iterable[str], rules: Iterable[Rule] = RULES) -> tuple[Rule, ...]:
    """Some rules, in the order of the catalogue; refuses unknown names."""
    known, chosen = by_name(rules), set(names)
    for name in sorted(chosen - known.keys()):
        raise RuleCatalogueInvalid(name=name, reason=f"there is no such rule; known: {', '.join(known)}")
    return tuple(rule for rule in known.values() if rule.name in chosen)
