"""A checker of histories: what clients saw, against the log, by the names the field has for what is wrong.

The log is the truth: its facts are folded here once more, by the plainest means and without any code
of views. Each finding begins with the name of an anomaly.
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
    entry: tuple[int, int]  # where its event stands
    outside: bool  # whether the money came from outside


@dataclass
class Seen:
    """One read by a session."""

    session: str
    position: Position
    balances: dict[str, int]
    newest: dict[tuple[str, int], int] = field(default_factory=dict)  # (account, partition) → newest entry
    wrote: Position | None = None  # what the session had written before, by its token


def facts(events: Iterable[Event]) -> Iterator[Fact]:
    """What the log says, each event once."""
    known: set[str] = set()
    for event in events:
        if event.type not in HANDLES or event.id in known:
            continue
        known.add(event.id)
        for side in sides(event):
            place = (event.partition, event.offset)
            yield Fact(*place, side[0], side[3], place, event.type == "account.opened")


def anomalies(topic_id: str, log: Iterable[Fact], history: Iterable[Seen]) -> list[str]:
    """What is wrong with a history, in the order in which it was seen."""
    truth, found = [*log], list[str]()
    sessions: dict[str, Seen] = {}
    for number, seen in enumerate(history):
        below = [fact for fact in truth if fact.offset < seen.position.of(topic_id, fact.partition)]
        found += [f"{name} (read {number}, {seen.session})" for name in _of_one(seen, below)]
        before = sessions.get(seen.session)
        if before is not None and not seen.position.covers(before.position):
            found.append(f"{NON_MONOTONIC} (read {number}, {seen.session})")
        if seen.wrote is not None and not seen.position.covers(seen.wrote):
            found.append(f"{STALE_READ} (read {number}, {seen.session})")
        sessions[seen.session] = seen
    return found


def _of_one(seen: Seen, below: list[Fact]) -> Iterator[str]:
    expected: dict[str, int] = {}
    newest: dict[tuple[str, int], int] = {}
    for fact in below:
        expected[fact.account] = expected.get(fact.account, 0) + fact.amount
        newest[fact.account, fact.partition] = fact.offset
    outside = sum(fact.amount for fact in below if fact.outside)
    if sum(seen.balances.values()) != outside:
        yield READ_SKEW
    elif any(seen.balances.get(name, 0) != cents for name, cents in expected.items()):
        yield LOST_UPDATE
    if seen.newest:
        if any(at > newest.get(place, -1) for place, at in seen.newest.items()):
            yield FUTURE
        elif seen.newest != newest:
            yield ORDER
