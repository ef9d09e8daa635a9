"""Checks what clients have read against the log, and names each anomaly as the literature does.

Folds the log again by simple means, without any code of views. Each finding starts with the name of an
anomaly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from examples.payments.views import HANDLES, sides

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.olep.event import Event
    from penstock.olep.position import Position

LOST_UPDATE = "lost update"
READ_SKEW = "read skew"
STALE_READ = "stale read after write"
NON_MONOTONIC = "non-monotonic session"
ORDER = "view order differs from log order"
FUTURE = "read from the future"


class Fact(NamedTuple):
    partition: int
    offset: int
    account: str
    amount: int
    outside: bool  # whether the money came from outside


@dataclass
class Read:
    """One read by a session."""

    session: str
    position: Position
    balances: dict[str, int]
    newest: dict[tuple[str, int], int] = field(default_factory=dict)  # (account, partition) → newest entry
    wrote: Position | None = None  # what the session had written before, by its token


def facts(events: Iterable[Event]) -> Iterator[Fact]:
    """The money movements of the log, each event once."""
    known: set[str] = set()
    for event in events:
        if event.type not in HANDLES or event.id in known:
            continue
        known.add(event.id)
        for side in sides(event):
            yield Fact(event.partition, event.offset, side[0], side[3], event.type == "account.opened")


def anomalies(topic_id: str, log: Iterable[Fact], history: Iterable[Read]) -> list[str]:
    """The anomalies of a history, in the order of its reads."""
    all_facts, findings = [*log], list[str]()
    sessions: dict[str, Read] = {}
    for number, read in enumerate(history):
        below = [fact for fact in all_facts if fact.offset < read.position.of(topic_id, fact.partition)]
        findings += [f"{name} (read {number}, {read.session})" for name in _anomalies_of(read, below)]
        before = sessions.get(read.session)
        if before is not None and not read.position.covers(before.position):
            findings.append(f"{NON_MONOTONIC} (read {number}, {read.session})")
        if read.wrote is not None and not read.position.covers(read.wrote):
            findings.append(f"{STALE_READ} (read {number}, {read.session})")
        sessions[read.session] = read
    return findings


def _anomalies_of(read: Read, below: list[Fact]) -> Iterator[str]:
    expected: dict[str, int] = {}
    newest: dict[tuple[str, int], int] = {}
    for fact in below:
        expected[fact.account] = expected.get(fact.account, 0) + fact.amount
        newest[fact.account, fact.partition] = fact.offset
    outside = sum(fact.amount for fact in below if fact.outside)
    if sum(read.balances.values()) != outside:
        yield READ_SKEW
    elif any(read.balances.get(name, 0) != cents for name, cents in expected.items()):
        yield LOST_UPDATE
    if read.newest:
        if any(at > newest.get(place, -1) for place, at in read.newest.items()):
            yield FUTURE
        elif read.newest != newest:
            yield ORDER
