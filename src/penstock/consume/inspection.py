"""What the consumer is doing, and why: a value to print, log or serve as JSON."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.consume import offsets

if TYPE_CHECKING:
    from penstock.consume.assignment import Assignment
    from penstock.consume.core import Counts
    from penstock.consume.orchestrator import Orchestrator
    from penstock.consume.settings import Settings

HOT_KEYS_MAX: Final = 5
RUNNING_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class RunningView:
    """A record in a handler's hands."""

    topic: str
    partition: int
    offset: int
    key: str
    seconds: float
    attempt: int
    cancelled: bool


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key with records waiting behind the one that runs; only one runner can work on it."""

    key: str
    waiting: int


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition: how far it is, what is in memory, and what holds it up."""

    topic: str
    partition: int
    epoch: int
    committed: int
    next_commit: int
    position: int
    unfinished: int
    running: int
    ready: int
    behind_their_key: int
    retrying: int
    held_for_map: int
    map_chars: int
    paused: str | None
    hot_keys: list[HotKey]


@dataclass(frozen=True, slots=True)
class Inspection:
    """The whole consumer at one moment."""

    state: str  # running, draining, restarting, idle
    why: str  # what limits it now, in words
    records_in_memory: int
    records_max: int
    bytes_in_memory: int
    bytes_max: int
    may_start: int  # before something must be committed
    running: list[RunningView]
    partitions: list[PartitionView]
    counts: dict[str, int]
    last_failure: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def look(
    orchestrator: Orchestrator | None, counts: Counts, settings: Settings, failure: BaseException | None
) -> Inspection:
    last = None if failure is None else f"{type(failure).__name__}: {failure}"
    if orchestrator is None:
        return Inspection("idle", "not started", 0, settings.records_max, 0, settings.buffer_bytes,
                          settings.exposure, [], [], asdict(counts), last)  # fmt: skip
    core = orchestrator.core
    now = time.monotonic()
    running = [
        RunningView(each.record.topic, each.record.partition, each.record.offset, repr(each.record.key),
                    round(now - each.started, 3), each.record.attempt, each.cancelled is not None)
        for each in sorted(orchestrator.running(), key=lambda each: each.started)[:RUNNING_MAX]
    ]  # fmt: skip
    retrying = [entry[2].assignment for entry in core.coordinator.retries]
    partitions = [_view(each, retrying.count(each)) for each in core.assignments.values()]
    records = orchestrator.proxy.handed_records - core.gone_records
    size = orchestrator.proxy.handed_bytes - core.gone_bytes
    busy = sum(each.started for each in core.assignments.values())
    return Inspection(
        orchestrator.state, _why(orchestrator, settings, records, size, busy), records, core.bounds.records,
        size, core.bounds.bytes, max(0, core.coordinator.credit), running, partitions, asdict(counts), last,
    )  # fmt: skip


def _view(assignment: Assignment, retrying: int) -> PartitionView:
    waiting = {lane: len(queue) for lane, queue in list(assignment.lanes.items()) if queue}
    hot = sorted(waiting.items(), key=lambda item: -item[1])[:HOT_KEYS_MAX]
    mark = offsets.mark(assignment)
    return PartitionView(
        topic=assignment.topic,
        partition=assignment.partition,
        epoch=assignment.epoch,
        committed=assignment.committed,
        next_commit=offsets.base(assignment),
        position=assignment.position,
        unfinished=len(assignment.unfinished),
        running=assignment.started,
        ready=len(assignment.ready),
        behind_their_key=sum(waiting.values()),
        retrying=retrying,
        held_for_map=len(assignment.held),
        map_chars=len(mark.metadata if mark else assignment.committed_metadata),
        paused=assignment.paused,
        hot_keys=[HotKey(repr(lane), count) for lane, count in hot],
    )


def _why(orchestrator: Orchestrator, settings: Settings, records: int, size: int, busy: int) -> str:
    core = orchestrator.core
    if orchestrator.state != "running":
        return f"{orchestrator.state}: nothing is started"
    if not core.assignments:
        return "no partitions: more members than partitions, or the group is rebalancing"
    if core.coordinator.credit <= 0:
        return f"{settings.exposure} records are started and not committed: waiting for a commit"
    if busy >= settings.concurrency:
        return f"all {settings.concurrency} runners are busy: raise concurrency, or make the handler faster"
    if records >= core.bounds.records or size >= core.bounds.bytes:
        return "the buffer is full of records that wait behind their key or partition: see hot_keys"
    if records == 0:
        return "everything received is finished: waiting for records"
    return "working; some records wait behind their key or for a retry" if busy < records else "working"
