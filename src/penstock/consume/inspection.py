"""What `inspect()` returns: what the consumer is doing and what limits it, to print or serve as JSON."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.consume import offset_controller

if TYPE_CHECKING:
    from penstock.consume.assignment import Assignment
    from penstock.consume.core import Counts
    from penstock.consume.orchestrator import Orchestrator
    from penstock.consume.settings import Settings

HOT_KEYS_MAX: Final = 5
RUNNING_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class RunningView:
    """A record being handled."""

    topic: str
    partition: int
    offset: int
    key: str
    seconds: float
    attempt: int
    cancelled: bool


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key with records waiting behind the one that runs; they can only run one at a time."""

    key: str
    waiting: int


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition: its offsets, its records in memory, and why it is paused."""

    topic: str
    partition: int
    epoch: int
    committed: int
    next_commit: int
    position: int
    unfinished: int
    running: int
    ready: int
    queued_behind_key: int
    retrying: int
    waiting_for_map: int
    map_chars: int
    paused: str | None
    hot_keys: list[HotKey]


@dataclass(frozen=True, slots=True)
class Inspection:
    """The whole consumer at one moment."""

    state: str  # idle, running, paused, draining, restarting, stopped
    limited_by: str  # what limits throughput now, in words
    records_in_memory: int
    records_max: int
    bytes_in_memory: int
    bytes_max: int
    startable: int  # records that may start before a commit is needed
    running: list[RunningView]
    partitions: list[PartitionView]
    counts: dict[str, int]
    last_failure: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def inspect_consumer(
    orchestrator: Orchestrator | None, counts: Counts, settings: Settings, failure: BaseException | None
) -> Inspection:
    last = None if failure is None else f"{type(failure).__name__}: {failure}"
    if orchestrator is None:
        return Inspection("idle", "not started", 0, settings.records_max, 0, settings.buffer_bytes,
                          settings.uncommitted_max, [], [], asdict(counts), last)  # fmt: skip
    core = orchestrator.core
    now = time.monotonic()
    running = [
        RunningView(each.record.topic, each.record.partition, each.record.offset, repr(each.record.key),
                    round(now - each.started, 3), each.record.attempt, each.cancelled is not None)
        for each in sorted(orchestrator.running(), key=lambda each: each.started)[:RUNNING_MAX]
    ]  # fmt: skip
    retrying = [entry[2].assignment for entry in core.coordinator.retries]
    assignments = list(core.assignments.values())
    partitions = [_view(each, retrying.count(each)) for each in assignments]
    records = orchestrator.proxy.polled_records - core.released_records
    size = orchestrator.proxy.polled_bytes - core.released_bytes
    in_flight = sum(each.in_flight for each in assignments)
    return Inspection(
        orchestrator.state, _limited_by(orchestrator, settings, records, size, in_flight),
        records, core.bounds.records, size, core.bounds.bytes, max(0, core.coordinator.credit),
        running, partitions, asdict(counts), last,
    )  # fmt: skip


def _view(live: Assignment, retrying: int) -> PartitionView:
    # A scrape runs on another thread than the event loop, which changes these dictionaries meanwhile. Their
    # copies are made in one step.
    assignment = copy(live)
    assignment.unfinished, assignment.queues = live.unfinished.copy(), live.queues.copy()
    waiting = {queue_key: len(queue) for queue_key, queue in assignment.queues.items() if queue}
    hot = sorted(waiting.items(), key=lambda item: -item[1])[:HOT_KEYS_MAX]
    commit = offset_controller.pending_commit(assignment)
    return PartitionView(
        topic=assignment.topic,
        partition=assignment.partition,
        epoch=assignment.epoch,
        committed=assignment.committed,
        next_commit=offset_controller.commit_offset(assignment),
        position=assignment.position,
        unfinished=len(assignment.unfinished),
        running=assignment.in_flight,
        ready=len(assignment.ready),
        queued_behind_key=sum(waiting.values()),
        retrying=retrying,
        waiting_for_map=len(assignment.waiting_for_map),
        map_chars=len(commit.metadata if commit else assignment.committed_metadata),
        paused=assignment.paused,
        hot_keys=[HotKey(repr(queue_key), count) for queue_key, count in hot],
    )


def _limited_by(
    orchestrator: Orchestrator, settings: Settings, records: int, size: int, in_flight: int
) -> str:
    core = orchestrator.core
    if orchestrator.state != "running":
        return f"{orchestrator.state}: no record is started"
    if not core.assignments:
        return "no partitions: more members than partitions, or the group is rebalancing"
    if core.coordinator.credit <= 0:
        return f"{settings.uncommitted_max} records are started and not committed: waiting for a commit"
    if in_flight >= settings.concurrency:
        return f"all {settings.concurrency} runners are busy: raise concurrency, or make the handler faster"
    if records >= core.bounds.records or size >= core.bounds.bytes:
        return "the buffer is full of records that wait for their key or partition: see hot_keys"
    if records == 0:
        return "everything received is finished: waiting for records"
    return "working; some records wait for their key or a retry" if in_flight < records else "working"
