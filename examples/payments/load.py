"""The load generator: random payments, some of them sent twice, with every outcome counted.

Everything random comes from the seed. What was asked is written to a journal before it is sent,
so that a checker knows what callers meant even when this process is killed.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from examples.payments.bank import ANSWERS
from penstock.model.errors import PenstockError
from penstock.olep.event import Event, request
from penstock.olep.outcome import Outcomes

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.olep.log import Log

WAIT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    accounts: int = 1000
    hot_share: float = 0.0  # of payments that go to one account
    repeats: float = 0.0  # share of requests that are sent twice
    agreements: float = 0.0  # share whose destination must agree
    in_flight: int = 1000
    amount_max: int = 100
    seed: int = 0
    label: str = "r"  # begins every id, so that several generators do not clash

    def payment(self, number: int, dice: random.Random) -> tuple[str, Event]:
        source = dice.randrange(1, self.accounts) if self.accounts > 1 else 0
        to = 0 if dice.random() < self.hot_share else dice.randrange(self.accounts)
        if to == source:
            to = (to + 1) % self.accounts
        kind = "payment.offered" if dice.random() < self.agreements else "payment.requested"
        payload = {"to": account(to), "amount": dice.randint(1, self.amount_max)}
        now = time.time_ns() // 1_000_000
        return account(source), request(f"{self.label}-{number}", kind, payload, time=now)


@dataclass(slots=True)
class Tally:
    """What came back."""

    asked: int = 0
    states: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # from request to status

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def account(number: int) -> str:
    return f"account-{number}"


def open_accounts(
    log: Log, count: int, *, deposit: int, overdraft: int = 0, ceiling: int | None = None
) -> None:
    """Opens them all and waits until they are. Safe to repeat: the ids are the same each time."""
    payload = {"deposit": deposit, "overdraft": overdraft, "ceiling": ceiling}
    with Outcomes(log, ANSWERS) as outcomes:
        waiting = [
            outcomes.begin(account(n), request(f"open-{n}", "account.open", payload, time=0))
            for n in range(count)
        ]
        for future in waiting:
            future.result(WAIT_SECONDS)


def drive(
    log: Log,
    load: Load,
    *,
    seconds: float | None = None,
    count: int | None = None,
    journal: Path | None = None,
) -> Tally:
    """Keeps `in_flight` requests under way until the time or the count is up; waits for the rest."""
    tally, dice = Tally(), random.Random(load.seed)
    under_way: deque[tuple[float, Future[Event]]] = deque()
    end = time.monotonic() + seconds if seconds is not None else None
    ids = journal.open("a", encoding="utf-8") if journal is not None else None
    try:
        with Outcomes(log, ANSWERS) as outcomes:
            while (end is None or time.monotonic() < end) and (count is None or tally.asked < count):
                key, event = load.payment(tally.asked, dice)
                if ids is not None:
                    ids.write(f"{event.id}\n")
                    ids.flush()
                try:
                    under_way.append((time.monotonic(), _begin(outcomes, key, event, tally)))
                    if dice.random() < load.repeats:
                        under_way.append((time.monotonic(), _begin(outcomes, key, event, tally)))
                except PenstockError as error:
                    tally.states[error.code] += 1
                tally.asked += 1
                while len(under_way) >= load.in_flight:
                    _settle(under_way.popleft(), tally)
            while under_way:
                _settle(under_way.popleft(), tally)
    finally:
        if ids is not None:
            ids.close()
    return tally


def _begin(outcomes: Outcomes, key: str, event: Event, tally: Tally) -> Future[Event]:
    begun = time.monotonic()
    future = outcomes.begin(key, event)
    future.add_done_callback(
        lambda done: tally.seconds.append(time.monotonic() - begun) if not done.cancelled() else None
    )
    return future


def _settle(waiting: tuple[float, Future[Event]], tally: Tally) -> None:
    begun, future = waiting
    try:
        final = future.result(max(0.0, begun + WAIT_SECONDS - time.monotonic()))
        tally.states[final.type] += 1
    except (FutureTimeout, CancelledError):
        tally.states["unknown"] += 1
    except PenstockError as error:
        tally.states[error.code] += 1
