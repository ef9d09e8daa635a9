"""Replay and trace: what the state was at a position, and what became of a request.

A replay folds the log from its start into a store in memory, up to a position or a time, with the
very code the executor runs and without sending anything. It is the debugger, and the proof: the
state of an executor equals the replay at its position, in another process with another hash seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.model.errors.olep import EventUnreadable, HistoryMissing, RequestMissing
from penstock.olep.event import needle_of
from penstock.olep.fold import Fold, Source, Watch
from penstock.olep.log import at_time, ends, read, starts
from penstock.olep.position import Position
from penstock.olep.store import digest
from penstock.olep.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.olep.application import Application
    from penstock.olep.event import Event, Record
    from penstock.olep.fold import Batch
    from penstock.olep.log import Log

REPLAY_BATCH: Final = 2000  # records


@dataclass(frozen=True, slots=True)
class Replayed:
    """The state of every partition as of `position`."""

    application: Application
    position: Position
    stores: dict[int, MemoryStore]
    records: int

    def digests(self) -> dict[int, str]:
        return {partition: digest(store, self.application) for partition, store in self.stores.items()}


def replay(
    application: Application,
    log: Log,
    *,
    until: Position | None = None,
    watch: Watch = Watch.SAMPLED,
    see: Callable[[int, Batch], None] | None = None,
) -> Replayed:
    """Folds the log up to `until`, by default its tail. `see` is shown each batch."""
    until = until or ends(log)
    goal = until.of_topic(log.topic, log.topic_id)
    lanes: dict[int, tuple[Fold, MemoryStore]] = {}
    for partition in goal:
        store = MemoryStore(application, partition)
        store.claim()
        source = Source(log.name, log.topic_id, partition)
        lanes[partition] = Fold(application, source, log.codec, store, watch=watch), store
    _check_start(log)
    waiting: dict[int, list[Record]] = {partition: [] for partition in lanes}
    count = 0
    for partition, record in read(log, until=until):
        count += 1
        records = waiting[partition]
        records.append(record)
        if len(records) >= REPLAY_BATCH:
            _fold(partition, *lanes[partition], records, see)
            records.clear()
    for partition, records in waiting.items():
        _fold(partition, *lanes[partition], records, see)
        lanes[partition][1].at = goal[partition]
    stores = {partition: store for partition, (_, store) in lanes.items()}
    return Replayed(application, Position({log.topic_id: dict(goal)}), stores, count)


def until_time(log: Log, milliseconds: int) -> Position:
    """The position before the first record of each partition that is not older than this."""
    return at_time(log, milliseconds)


def _check_start(log: Log) -> None:
    for partition, start in starts(log).offsets[log.topic_id].items():
        if start > 0:
            raise HistoryMissing(topic=log.topic, partition=partition, start=start, position=0)


def _fold(
    partition: int,
    fold: Fold,
    store: MemoryStore,
    records: Sequence[Record],
    see: Callable[[int, Batch], None] | None,
) -> None:
    if not records:
        return
    batch = fold.take(records, store.at)
    store.commit(batch, sent=batch.position)
    fold.settle()
    if see is not None:
        see(partition, batch)
    if batch.stopped is not None:
        raise batch.stopped


@dataclass(frozen=True, slots=True)
class Traced:
    """An event of a request: where it stands, and how far from the request."""

    log: str
    event: Event
    depth: int
    copies: int  # how often it stands in the log; more than one after a resend


def trace(logs: Sequence[Log], request_id: str) -> list[Traced]:
    """Every event that a request caused, causes before effects, over all logs.

    Raises RequestMissing."""
    found: dict[str, tuple[str, Event]] = {}
    copies: dict[str, int] = {}
    for log in logs:
        for event in _of_request(log, request_id):
            copies[event.id] = copies.get(event.id, 0) + 1
            found.setdefault(event.id, (log.name, event))
    if not found:
        raise RequestMissing(id=request_id, logs=", ".join(log.topic for log in logs))
    effects: dict[str | None, list[str]] = {}
    for event_id, (_, event) in found.items():
        cause = event.cause if event.cause in found else None
        effects.setdefault(cause, []).append(event_id)
    traced: list[Traced] = []

    def walk(cause: str | None, depth: int) -> None:
        for event_id in sorted(effects.get(cause, ()), key=_natural):
            name, event = found[event_id]
            traced.append(Traced(name, event, depth, copies[event_id]))
            walk(event_id, depth + 1)

    walk(None, 0)
    return traced


def _natural(event_id: str) -> tuple[str, int, int]:
    """The events of a decision in the order in which it emitted them."""
    stream, _, tail = event_id.rpartition(".")
    stream, _, offset = stream.rpartition(".")
    return (stream, int(offset), int(tail)) if tail.isdecimal() and offset.isdecimal() else (event_id, 0, 0)


def _of_request(log: Log, request_id: str) -> Iterator[Event]:
    needle = needle_of(request_id)
    for partition, record in read(log):
        if record.value is None or needle not in record.value:
            continue
        try:
            event = log.decode(partition, record)
        except EventUnreadable:
            continue
        if event.request == request_id:
            yield event
