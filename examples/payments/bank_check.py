"""Checks a running bank: waits until no payment is in progress, then compares log, state and replay."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from examples.payments.findings import Books, findings
from penstock.model.errors.olep import EventUnreadable
from penstock.olep.log import end_position, read
from penstock.olep.position import Position
from penstock.olep.replay import replay
from penstock.olep.store import digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from examples.payments.settings import Settings
    from penstock.olep.event import Event
    from penstock.olep.log import Log
    from penstock.olep.store import Store

SETTLE_SECONDS: Final = 60.0


def check_bank(
    settings: Settings, *, journal: Path | None = None, timeout: float = SETTLE_SECONDS
) -> list[str]:
    """What is wrong; empty when all is well. No payment may be requested meanwhile."""
    log = settings.accounts_log()
    stores = [settings.stores.open(settings.application, log.topic_id, p) for p in range(log.partitions)]
    try:
        position = _settled(log, stores, timeout)
        books = Books()
        for store in stores:
            books.add(store)
        seen: set[str] = set()
        wrong = findings(_events(log, position, seen), books)
        if journal is not None:
            # A request is written to the journal before it is sent, so only the last line may be unknown.
            requested = journal.read_text(encoding="utf-8").split()
            wrong += [f"request {each} vanished" for each in requested[:-1] if each not in seen]
        replayed = replay(settings.application, log, until=position).digests()
        for partition, store in enumerate(stores):
            if digest(store, settings.application) != replayed[partition]:
                wrong.append(f"partition {partition} differs from the replayed log")
        return wrong
    finally:
        for store in stores:
            store.close()


def _settled(log: Log, stores: list[Store], timeout: float) -> Position:
    """Waits until every store is at the log's end with an empty outbox, in two consecutive looks."""
    deadline = time.monotonic() + timeout
    before = None
    while True:
        tail = end_position(log)
        reached = Position({log.topic_id: {p: store.position() for p, store in enumerate(stores)}})
        idle = reached.covers(tail) and not any(store.unsent() for store in stores)
        if idle and tail == before:
            return tail
        before = tail if idle else None
        if time.monotonic() > deadline:
            left = sum(len(store.unsent()) for store in stores)
            raise TimeoutError(
                f"not settled in {timeout:g} s: {reached}, tail {tail}, {left} in the outboxes"
            )
        time.sleep(0.05)


def _events(log: Log, until: Position, seen: set[str]) -> Iterator[Event]:
    for partition, record in read(log, until=until):
        try:
            event = log.decode(partition, record)
        except EventUnreadable:
            continue
        seen.add(event.id)
        yield event
