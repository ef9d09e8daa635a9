"""A small view and its runner, for tests on a real log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.olep.event import Event, request
from penstock.olep.log import Appender
from penstock.olep.table import Put, Table
from penstock.olep.view.projection import Projection
from tests.olep.bank_harness import InThread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.olep.application import State
    from penstock.olep.log import Log
    from penstock.olep.position import Position
    from penstock.olep.table import Effect
    from penstock.olep.view.runner import ViewRunner


class Count(NamedTuple):
    name: str
    total: int
    last: str


COUNTS = Table("counts", Count)


def _count(state: State, event: Event) -> Iterator[Effect]:
    before = state.get(COUNTS, event.key)
    yield Put(COUNTS, Count(event.key, (before.total if before else 0) + event.payload["n"], event.id))


def _doubled(state: State, event: Event) -> Iterator[Effect]:
    before = state.get(COUNTS, event.key)
    n = int(event.payload["n"])  # understands what the first version does not
    yield Put(COUNTS, Count(event.key, (before.total if before else 0) + n, event.id))


COUNTING = Projection("counting", _count, (COUNTS,), {"added": 1}, text={"counts": ("name", "last")})
CORRECTED = Projection(
    "counting", _doubled, (COUNTS,), {"added": 1}, version=2, text={"counts": ("name", "last")}
)


class RunningView(InThread):
    """A view's runner."""

    def __init__(self, runner: ViewRunner) -> None:
        super().__init__(runner.run)
        self.runner = runner


def add(log: Log, key: str, number: int, n: Any = 1, *, appender: Appender | None = None) -> Position:
    return (appender or Appender(log)).append(key, request(f"{key}-{number}", "added", {"n": n}, time=0))


def add_many(log: Log, count: int, *, keys: int = 7, start: int = 0) -> None:
    appender = Appender(log)
    for number in range(start, start + count):
        key = f"key-{number % keys}"
        appender.submit(key, request(f"{key}-{number}", "added", {"n": number}, time=0))
    assert appender.flush() == 0


def total(reader: Any, key: str) -> int:
    return sum(row[1] for _, row in reader.get(COUNTS, key))
