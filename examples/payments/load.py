"""Generates load: random payments from a seed, some sent twice, with every outcome counted.

Each request is written to a journal before it is sent, so a check knows of it even if this process is
killed.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from examples.payments.bank import OUTCOME_TYPES
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
    hot_share: float = 0.0  # share of payments that go to one account
    repeats: float = 0.0  # share of requests that are sent twice
    agreements: float = 0.0  # share whose destination must agree
    in_flight: int = 1000
    rate: float | None = None  # requests a second; without it, as many as the bank takes
    amount_max: int = 100
    seed: int = 0
    label: str = "r"  # prefix of every id, so that several generators do not clash

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
class LoadResult:
    """Counts and latencies of the outcomes."""

    requests: int = 0
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
    """Opens accounts and waits for the outcomes. Safe to repeat: the request ids are the same every time."""
    payload = {"deposit": deposit, "overdraft": overdraft, "ceiling": ceiling}
    with Outcomes(log, OUTCOME_TYPES) as outcomes:
        waiting = [
            outcomes.submit(account(n), request(f"open-{n}", "account.open", payload, time=0))
            for n in range(count)
        ]
        for future in waiting:
            future.result(WAIT_SECONDS)


def run_load(
    log: Log,
    load: Load,
    *,
    seconds: float | None = None,
    count: int | None = None,
    journal: Path | None = None,
) -> LoadResult:
    """Keeps `in_flight` requests in progress until the time or the count is up, then waits for the rest."""
    result, dice = LoadResult(), random.Random(load.seed)
    start = time.monotonic()
    in_progress: deque[tuple[float, Future[Event]]] = deque()
    end = start + seconds if seconds is not None else None
    ids = journal.open("a", encoding="utf-8") if journal is not None else None
    try:
        with Outcomes(log, OUTCOME_TYPES) as outcomes:
            while (end is None or time.monotonic() < end) and (count is None or result.requests < count):
                if load.rate is not None:
                    time.sleep(max(0.0, start + result.requests / load.rate - time.monotonic()))
                key, event = load.payment(result.requests, dice)
                if ids is not None:
                    ids.write(f"{event.id}\n")
                    ids.flush()
                try:
                    in_progress.append((time.monotonic(), _submit(outcomes, key, event, result)))
                    if dice.random() < load.repeats:
                        in_progress.append((time.monotonic(), _submit(outcomes, key, event, result)))
                except PenstockError as error:
                    result.states[error.code] += 1
                result.requests += 1
                while len(in_progress) >= load.in_flight:
                    _settle(in_progress.popleft(), result)
            while in_progress:
                _settle(in_progress.popleft(), result)
    finally:
        if ids is not None:
            ids.close()
    return result


def _submit(outcomes: Outcomes, key: str, event: Event, result: LoadResult) -> Future[Event]:
    submitted_at = time.monotonic()
    future = outcomes.submit(key, event)
    future.add_done_callback(
        lambda done: result.seconds.append(time.monotonic() - submitted_at) if not done.cancelled() else None
    )
    return future


def _settle(waiting: tuple[float, Future[Event]], result: LoadResult) -> None:
    submitted_at, future = waiting
    try:
        final = future.result(max(0.0, submitted_at + WAIT_SECONDS - time.monotonic()))
        result.states[final.type] += 1
    except (FutureTimeout, CancelledError):
        result.states["unknown"] += 1
    except PenstockError as error:
        result.states[error.code] += 1
