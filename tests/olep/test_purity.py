"""What is not a function of state and event is caught, by name."""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.model.errors.olep import DecideImpure
from penstock.olep.application import Application, Decision, State
from penstock.olep.event import Event
from penstock.olep.purity import decide_checked
from penstock.olep.store.sqlite import SqliteStores
from penstock.olep.table import Put, Table

if TYPE_CHECKING:
    from collections.abc import Callable


class Row(NamedTuple):
    key: str
    value: int


ROWS = Table("rows", Row)
EVENT = Event("e", "t", {"n": 3}, time=1_700_000_000_000, key="k")
seen: list[int] = []


class Empty:
    def get(self, table: Table[Any], key: object) -> None:
        return None


def swallowing(state: State, event: Event) -> Decision:
    with contextlib.suppress(Exception):
        time.time()
    return (), ()


def pure(state: State, event: Event) -> Decision:
    when = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=event.time)
    words = sorted({"b", "a", f"{when:%Y}"}, key=len)
    total = sum(len(word) for word in words) + round(3.7) + max(event.payload["n"], 1)
    return (Put(ROWS, Row("k", total)),), ()


def application(decide: Callable[[State, Event], Any]) -> Application:
    return Application("a", decide, (ROWS,), handles={"t": 1})


def doing(act: Callable[[], object]) -> Application:
    return application(lambda state, event: (act(), ((), ()))[1])


@pytest.mark.parametrize(
    "act",
    [
        time.time,
        time.time_ns,
        time.monotonic,
        lambda: time.sleep(0),
        datetime.datetime.now,
        lambda: datetime.datetime.now(datetime.UTC),
        datetime.date.today,
        random.random,
        lambda: random.Random(1).random(),
        lambda: random.choice([1, 2]),
        uuid.uuid4,
        lambda: os.urandom(4),
        lambda: os.environ.get("HOME") and os.getpid(),
        lambda: Path(__file__).read_text(encoding="utf-8"),
        lambda: open(os.devnull).close(),  # noqa: PTH123 - one of the ways
        socket.gethostname,
        lambda: print(end=""),
        lambda: id(EVENT),
    ],
    ids=[
        "time", "time_ns", "monotonic", "sleep", "now", "now-utc", "today", "random", "seeded", "choice",
        "uuid4", "urandom", "getpid", "read", "open", "socket", "print", "id",
    ],
)  # fmt: skip
def test_a_decision_with_side_effects_is_caught(act: Callable[[], object]) -> None:
    with pytest.raises(DecideImpure, match="it calls"):
        decide_checked(doing(act), Empty(), EVENT)


def test_an_impure_decision_cannot_swallow_the_error() -> None:
    with pytest.raises(DecideImpure, match=r"time\.time"):
        decide_checked(application(swallowing), Empty(), EVENT)


def test_a_decision_with_hidden_state_is_caught() -> None:
    def remembering(state: State, event: Event) -> Decision:
        seen.append(1)
        return (Put(ROWS, Row("k", len(seen))),), ()

    with pytest.raises(DecideImpure, match="returned different decisions"):
        decide_checked(application(remembering), Empty(), EVENT)


def test_a_pure_decision_passes() -> None:
    assert decide_checked(application(pure), Empty(), EVENT) == pure(Empty(), EVENT)


def test_an_exception_of_a_decision_is_passed_on() -> None:
    with pytest.raises(ZeroDivisionError):
        decide_checked(doing(lambda: 1 // 0), Empty(), EVENT)


def test_reading_a_row_from_the_store_is_pure(tmp_path: Path) -> None:
    from penstock.olep.rows import Rows

    store = SqliteStores(tmp_path).open(application(pure), "AAAAAAAAAAAAAAAAAAAAAA", 0)
    rows = Rows(store, (ROWS,))
    reading = application(lambda state, event: (state.get(ROWS, "k"), ((), ()))[1])
    assert decide_checked(reading, rows, EVENT) == ((), ())
    store.close()
