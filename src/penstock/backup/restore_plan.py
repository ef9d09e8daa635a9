"""What a restore will do, and every reason why it may not: decided before anything changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.model.shadow_ids import METADATA_VERSIONS_TESTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.backup.chain import Chain, Hole
    from penstock.backup.layout import Gap

BROKERS_MIN: Final = 2
FREE_DISK_FACTOR: Final = 2
METADATA_LEVEL: Final = METADATA_VERSIONS_TESTED[0]
TOPIC_NAME_MAX: Final = 249
UNLIMITED: Final = -1
# In force until the restored log is proved equal; the topic's own configs follow then.
SAFE_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
}
# Not restored: they bind a topic to what the cluster had, or to brokers.
CONFIGS_LEFT_OUT: Final = frozenset(
    (
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "remote.storage.enable",
        "local.retention.ms",
        "local.retention.bytes",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
    )
)


@dataclass(frozen=True, slots=True)
class Request:
    topic_id: str
    topic: str  # its name when it was backed up
    target: str
    until_ms: int | None = None
    retention_ms: int | None = None  # overrides the topic's; −1: unlimited


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    brokers: int  # real ones that are not fenced
    free_bytes: int  # of the fullest broker; −1: not known
    has_authorizer: bool
    target_exists: bool
    metadata_level: int
    running: str = ""  # the id of another restore
    interventions: tuple[str, ...] = ()  # links and reassignments under way


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    partition: int
    start: int
    end: int
    log_bytes: int
    holes: tuple[Hole, ...] = ()
    recorded: tuple[Gap, ...] = ()  # gaps that the archiver recorded


@dataclass(frozen=True, slots=True)
class RestorePlan:
    request: Request
    partitions: tuple[PartitionPlan, ...]
    configs: Mapping[str, str | None]
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    @property
    def log_bytes(self) -> int:
        return sum(one.log_bytes for one in self.partitions)


def plan_restore(
    request: Request,
    chains: Mapping[int, Chain],
    gaps: Mapping[int, tuple[Gap, ...]],
    configs: Mapping[str, str | None],
    facts: ClusterFacts,
    now_ms: int,
) -> RestorePlan:
    partitions = tuple(
        PartitionPlan(index, chain.start, chain.end, chain.log_bytes, chain.holes, gaps.get(index, ()))
        for index, chain in sorted(chains.items())
    )
    kept = {name: value for name, value in configs.items() if name not in CONFIGS_LEFT_OUT}
    if request.retention_ms is not None:
        kept["retention.ms"] = str(request.retention_ms)
    refusals = [*_cluster_refusals(request, facts), *_log_refusals(partitions, facts)]
    if not partitions:
        refusals.append("the backup has no partition of it")
    elif (reason := _expires_again(chains, kept, now_ms)) is not None:
        refusals.append(reason)
    warnings = [
        f"partition {one.partition}: offsets {gap.first} to {gap.last} were deleted before they were archived"
        for one in partitions
        for gap in one.recorded
    ]
    left_out = sorted(set(configs) & CONFIGS_LEFT_OUT)
    if left_out:
        warnings.append(f"not restored: {', '.join(left_out)}")
    return RestorePlan(request, partitions, kept, tuple(refusals), tuple(warnings))


def _cluster_refusals(request: Request, facts: ClusterFacts) -> list[str]:
    reasons = []
    if facts.running:
        reasons.append(f"restore {facts.running} is running")
    reasons += [f"{one} is under way" for one in facts.interventions]
    if facts.target_exists:
        reasons.append(f"a topic {request.target!r} exists; choose another name with --as")
    if not 0 < len(request.target) <= TOPIC_NAME_MAX or request.target.startswith(("__", "_penstock.")):
        reasons.append(f"{request.target!r} is not a name for it")
    if facts.brokers < BROKERS_MIN:
        reasons.append(f"the cluster has {facts.brokers} brokers, and {BROKERS_MIN} are needed")
    if not facts.has_authorizer:
        reasons.append("writes cannot be denied meanwhile: the cluster has no authorizer")
    if facts.metadata_level != METADATA_LEVEL:
        reasons.append(f"metadata version {facts.metadata_level} is not tested; {METADATA_LEVEL} is")
    return reasons


def _log_refusals(partitions: tuple[PartitionPlan, ...], facts: ClusterFacts) -> list[str]:
    reasons = []
    for one in partitions:
        recorded = {(gap.first, gap.last) for gap in one.recorded}
        for hole in one.holes:
            if not any(first <= hole.first and hole.last <= last for first, last in recorded):
                span = f"offsets {hole.first} to {hole.last}"
                reasons.append(f"partition {one.partition}: {span} are missing from the backup")
    needed = FREE_DISK_FACTOR * sum(one.log_bytes for one in partitions)
    if 0 <= facts.free_bytes < needed:
        reasons.append(f"a broker has {facts.free_bytes} bytes free, and {needed} are needed")
    return reasons


def _expires_again(chains: Mapping[int, Chain], configs: Mapping[str, str | None], now_ms: int) -> str | None:
    """Why the topic's own retention would delete what was restored."""
    if "delete" not in (configs.get("cleanup.policy") or "delete"):
        return None
    retention_ms = int(configs.get("retention.ms") or UNLIMITED)
    oldest = min((chain.oldest_ms for chain in chains.values() if chain.pieces), default=now_ms)
    if retention_ms != UNLIMITED and now_ms - oldest > retention_ms:
        hours = (now_ms - oldest) / 3_600_000
        return f"its oldest segment is {hours:.1f} hours old, beyond retention.ms; choose with --retention"
    retention_bytes = int(configs.get("retention.bytes") or UNLIMITED)
    largest = max((chain.log_bytes for chain in chains.values()), default=0)
    if retention_bytes != UNLIMITED and largest > retention_bytes:
        return f"a partition has {largest} bytes, more than its retention.bytes"
    return None
