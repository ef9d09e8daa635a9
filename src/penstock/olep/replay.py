"""Replay and trace: the state at a position, and the events of a request.

A replay folds the log from its start into a store in memory, up to a position or a time, with the code
that the executor runs and without sending anything. Use it to debug, and to verify: the state of an
executor equals the replay at its position, also in another process with another hash seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.model.errors.olep import EventUnreadable, HistoryMissing, RequestMissing
from penstock.olep.event import needle_of
from penstock.olep.fold import Fold, PurityChecks, Source
from penstock.olep.log import end_position, read, start_position
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
    purity_checks: PurityChecks = PurityChecks.SAMPLED,
    on_batch: Callable[[int, Batch], None] | None = None,
) -> Replayed:
    """Folds the log up to `until`, by default its end. Calls `on_batch` for each batch."""
    until = until or end_position(log)
    end = until.of_topic(log.topic, log.topic_id)
    folds: dict[int, tuple[Fold, MemoryStore]] = {}
    for partition in end:
        store = MemoryStore(application, partition)
        store.claim()
        source = Source(log.name, log.topic_id, partition)
        folds[partition] = Fold(application, source, log.codec, store, purity_checks=purity_checks), store
    _check_start(log)
    pending: dict[int, list[Record]] = {partition: [] for partition in folds}
    count = 0
    for partition, record in read(log, until=until):
        count += 1
        records = pending[partition]
        records.append(record)
        if len(records) >= REPLAY_BATCH:
            _fold(partition, *folds[partition], records, on_batch)
            records.clear()
    for partition, records in pending.items():
        _fold(partition, *folds[partition], records, on_batch)
        folds[partition][1].at = end[partition]
    stores = {partition: store for partition, (_, store) in folds.items()}
    return Replayed(application, Position({log.topic_id: dict(end)}), stores, count)


def _check_start(log: Log) -> None:
    for partition, start in start_position(log).offsets[log.topic_id].items():
        if start > 0:
            raise HistoryMissing(topic=log.topic, partition=partition, start=start, position=0)


def _fold(
    partition: int,
    fold: Fold,
    store: MemoryStore,
    records: Sequence[Record],
    on_batch: Callable[[int, Batch], None] | None,
) -> None:
    if not records:
        return
    batch = fold.process(records, store.at)
    store.commit(batch, sent=batch.position)
    fold.committed()
    if on_batch is not None:
        on_batch(partition, batch)
    if batch.stopped is not None:
        raise batch.stopped


@dataclass(frozen=True, slots=True)
class Traced:
    """An event of a request, and its distance from the request."""

    log: str
    event: Event
    depth: int
    copies: int  # its occurrences in the log; more than one after a resend


def trace(logs: Sequence[Log], request_id: str) -> list[Traced]:
    """Every event of a request in these logs, causes before effects. Raises RequestMissing."""
    events: dict[str, tuple[str, Event]] = {}
    copies: dict[str, int] = {}
    for log in logs:
        for event in _of_request(log, request_id):
            copies[event.id] = copies.get(event.id, 0) + 1
            events.setdefault(event.id, (log.name, event))
    if not events:
        raise RequestMissing(id=request_id, logs=", ".join(log.topic for log in logs))
    effects: dict[str | None, list[str]] = {}
    for event_id, (_, event) in events.items():
        cause = event.cause if event.cause in events else None
        effects.setdefault(cause, []).append(event_id)
    traced: list[Traced] = []

    def walk(cause: str | None, depth: int) -> None:
        for event_id in sorted(effects.get(cause, ()), key=_emission_order):
            name, event = events[event_id]
            traced.append(Traced(name, event, depth, copies[event_id]))
            walk(event_id, depth + 1)

    walk(None, 0)
    return traced


def _emission_order(event_id: str) -> tuple[str, int, int]:
    """Sorts the events of a decision in the order it emitted them."""
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
