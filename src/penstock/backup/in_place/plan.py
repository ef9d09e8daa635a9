"""What a restore in place will do, and every reason why it may not: decided before anything changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.backup.restore_plan import FREE_DISK_FACTOR, METADATA_LEVEL, UNLIMITED
from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.backup.chain import Chain
    from penstock.backup.layout import Gap

IN_SYNC_MIN: Final = 2  # real replicas, at any time
PAUSE_SECONDS: Final = 60.0  # that producers of a partition wait at most; they give up after 120 s by default
REBUILD_BYTES_PER_SECOND: Final = 20_000_000  # assumed; a replica fetches its log from the shadow
CLOCK_SKEW_SECONDS_MAX: Final = 300.0


@dataclass(frozen=True, slots=True)
class InPlaceRequest:
    topic: str
    topic_id: str = ""
    retention_ms: int | None = None  # its new one; −1: unlimited
    pause_seconds: float = PAUSE_SECONDS


@dataclass(frozen=True, slots=True)
class LivePartition:
    """A partition as it is now."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start: int  # the highest log start of its replicas
    end: int
    differs: str = ""  # why the backup is not the one of this log


@dataclass(frozen=True, slots=True)
class InPlaceFacts:
    live: frozenset[int]  # real brokers that are not fenced
    free_bytes: int  # of the fullest broker; −1: not known
    metadata_level: int
    clock_skew_seconds: float  # between this process and the brokers or the store
    is_mirror: bool = False
    running: str = ""
    interventions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InPlacePartition:
    partition: int
    start: int  # after the restore
    end: int  # of what is restored: the log start now
    log_bytes: int  # of the whole log, which every replica fetches
    pause_seconds: float  # producers wait about that long
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InPlacePlan:
    request: InPlaceRequest
    needed: int  # real in-sync replicas at any time
    partitions: tuple[InPlacePartition, ...]  # those that lack something
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    @property
    def log_bytes(self) -> int:
        return sum(one.log_bytes for one in self.partitions)


def plan_in_place(
    request: InPlaceRequest,
    chains: Mapping[int, Chain],
    gaps: Mapping[int, tuple[Gap, ...]],
    live: Mapping[int, LivePartition],
    configs: Mapping[str, str | None],
    facts: InPlaceFacts,
    now_ms: int,
) -> InPlacePlan:
    """`configs` are the effective ones of the topic."""
    needed = max(IN_SYNC_MIN, int(configs.get("min.insync.replicas") or 1))
    lacking = {index: one for index, one in live.items() if _lacks(chains.get(index), one)}
    partitions = tuple(
        InPlacePartition(
            index, chains[index].start, one.start, chains[index].log_bytes,
            chains[index].log_bytes / REBUILD_BYTES_PER_SECOND, one.replicas,
        )
        for index, one in sorted(lacking.items())
    )  # fmt: skip
    refusals = [*_topic_refusals(configs, facts), *_cluster_refusals(facts, needed, partitions)]
    if not partitions:
        refusals.append("the backup has nothing below its log starts")
    for one in partitions:
        refusals += _partition_refusals(one, live[one.partition], chains[one.partition], gaps, request)
    kept = dict(configs)
    if request.retention_ms is not None:
        kept["retention.ms"] = str(request.retention_ms)
    refusals += _expires_again({one.partition: chains[one.partition] for one in partitions}, kept, now_ms)
    warnings = [
        f"partition {one.partition}: offsets {gap.first} to {gap.last} were deleted before they were archived"
        for one in partitions
        for gap in gaps.get(one.partition, ())
        if gap.first < one.end
    ]
    return InPlacePlan(request, needed, partitions, tuple(refusals), tuple(warnings))


def _lacks(chain: Chain | None, live: LivePartition) -> bool:
    return chain is not None and bool(chain.pieces) and chain.start < live.start


def _topic_refusals(configs: Mapping[str, str | None], facts: InPlaceFacts) -> list[str]:
    reasons = []
    if "compact" in (configs.get("cleanup.policy") or ""):
        reasons.append("it is compacted")
    if configs.get("remote.storage.enable") == "true":
        reasons.append("it is tiered")
    if facts.is_mirror:
        reasons.append("it is a mirror")
    return reasons


def _cluster_refusals(
    facts: InPlaceFacts, needed: int, partitions: tuple[InPlacePartition, ...]
) -> list[str]:
    reasons = []
    if facts.running:
        reasons.append(f"restore {facts.running} is running")
    reasons += [f"{one} is under way" for one in facts.interventions]
    if len(facts.live) <= needed:
        reasons.append(
            f"the cluster has {len(facts.live)} brokers: while one replica is rebuilt, "
            f"{needed} others must be in sync"
        )
    if facts.metadata_level != METADATA_LEVEL:
        reasons.append(f"metadata version {facts.metadata_level} is not tested; {METADATA_LEVEL} is")
    if abs(facts.clock_skew_seconds) > CLOCK_SKEW_SECONDS_MAX:
        reasons.append(f"clocks differ by {facts.clock_skew_seconds:.0f} s")
    due = FREE_DISK_FACTOR * sum(one.log_bytes for one in partitions)
    if 0 <= facts.free_bytes < due:
        reasons.append(f"a broker has {facts.free_bytes} bytes free, and {due} are needed")
    return reasons


def _partition_refusals(
    one: InPlacePartition,
    live: LivePartition,
    chain: Chain,
    gaps: Mapping[int, tuple[Gap, ...]],
    request: InPlaceRequest,
) -> list[str]:
    reasons = []
    if any(map(is_shadow, live.replicas)):
        reasons.append("a shadow is among its replicas")
    if set(live.isr) != set(live.replicas):
        reasons.append(f"of its replicas {list(live.replicas)} only {list(live.isr)} are in sync")
    if live.differs:
        reasons.append(live.differs)
    recorded = [(gap.first, gap.last) for gap in gaps.get(one.partition, ())]
    reasons += [
        f"offsets {hole.first} to {hole.last} are missing from the backup"
        for hole in chain.holes
        if hole.first < one.end
        and not any(first <= hole.first and hole.last <= last for first, last in recorded)
    ]
    if one.pause_seconds > request.pause_seconds:
        reasons.append(
            f"producers would wait about {one.pause_seconds:.0f} s, and {request.pause_seconds:.0f} s "
            "are allowed (--pause)"
        )
    return [f"partition {one.partition}: {reason}" for reason in reasons]


def _expires_again(chains: Mapping[int, Chain], configs: Mapping[str, str | None], now_ms: int) -> list[str]:
    """Why the topic's retention would delete what is restored."""
    reasons = []
    retention_ms = int(configs.get("retention.ms") or UNLIMITED)
    oldest = min((chain.oldest_ms for chain in chains.values()), default=now_ms)
    if retention_ms != UNLIMITED and now_ms - oldest > retention_ms:
        hours = (now_ms - oldest) / 3_600_000
        reasons.append(
            f"its oldest segment is {hours:.1f} hours old, beyond retention.ms; choose with --retention"
        )
    retention_bytes = int(configs.get("retention.bytes") or UNLIMITED)
    largest = max((chain.log_bytes for chain in chains.values()), default=0)
    if retention_bytes != UNLIMITED and largest > retention_bytes:
        reasons.append(f"a partition has {largest} bytes, more than its retention.bytes")
    return reasons
