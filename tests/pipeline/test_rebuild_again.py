"""What a rebuild does before and after folding, which is left out: it is broken off, and started again."""

from __future__ import annotations

import inspect
import shutil
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from examples.payments.bank import BANK
from penstock.model.errors.olep import StoreMismatch
from penstock.model.errors.pipeline import JobBusy, RoomMissing
from penstock.olep.application import NOTHING, Application, Reason, Rule
from penstock.olep.codec import JsonCodec
from penstock.olep.fold import Outgoing
from penstock.olep.store import sqlite
from penstock.olep.store.sqlite import SqliteStores
from penstock.pipeline import rebuild as rebuilding
from penstock.pipeline.folding import Task
from penstock.pipeline.ledger import TopicFacts
from penstock.pipeline.rebuild import STORE_WRITTEN, TASK, rebuild, rebuild_files
from penstock.pipeline.settings import Connection

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from penstock.olep.application import Decision, State
    from penstock.olep.event import Event
    from penstock.pipeline.rebuild import Rebuilt

NOWHERE = Connection("127.0.0.1:1")
ENDS = {0: 10, 1: 10}
FACTS = TopicFacts("accounts", "00" * 16, dict.fromkeys(ENDS, 0), ENDS)
BANK_TASK = Task(BANK, "accounts", "id", JsonCodec(), ENDS, {})


def decide_nothing(_state: State, _event: Event) -> Decision:
    return NOTHING


def bank(**changes: Any) -> Application:
    return replace(BANK, **changes)


class Killed(BaseException):
    """What no code of ours catches."""


class NoSession:
    """A Spark that has read a log and found no state in it."""

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self

    def collect(self) -> list[Any]:
        return []


@dataclass
class Place:
    work: Path
    state: Path

    def rebuild(self, task: Task = BANK_TASK) -> Rebuilt:
        session: Any = NoSession()
        return rebuild_files(session, NOWHERE, FACTS, task, self.work, self.state)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    def fold(*found: Any) -> None:
        checkpoint = found[-1] / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "metadata").touch()

    monkeypatch.setattr(rebuilding, "_fold", fold)
    monkeypatch.setattr(rebuilding, "share_code", lambda *_: None)
    return Place(tmp_path / "work", tmp_path / "state")


def test_work_of_which_a_part_was_removed_is_not_gone_on_with(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.rmtree

    def half(directory: Path) -> None:
        real(directory / "checkpoint")
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", half)
        with pytest.raises(Killed):
            place.rebuild()

    left = (place.work / TASK).exists()

    assert place.state.exists()  # whole, and there
    assert not left


def test_a_second_start_leaves_the_first_one_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BaseException] = []

    def start_again(_: object) -> None:
        with pytest.raises(JobBusy, match="the rebuild of bank") as raised:
            place.rebuild()
        seen.append(raised.value)

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "faults", SimpleNamespace(reach=start_again))
        place.rebuild()

    assert len(seen) == len(ENDS) + 1  # at every store, and at the end
    assert sorted(file.name for file in place.state.iterdir()) == ["bank-0.sqlite", "bank-1.sqlite"]
    place.state.rename(place.state.with_name("first"))
    assert place.rebuild().positions == ENDS  # once the first has ended


def test_stores_that_were_written_before_a_kill_are_left_as_they_are(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = NoSession()
    stores = SqliteStores(place.state)
    sent = [Outgoing("accounts", b"k", b"v")]
    monkeypatch.setattr(rebuilding, "_outgoing", lambda *_: {0: sent})

    def strike(point: str) -> None:
        if point == STORE_WRITTEN:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "faults", SimpleNamespace(reach=strike))
        with pytest.raises(Killed):
            rebuild(session, NOWHERE, FACTS, BANK_TASK, place.work, stores)

    done = rebuild(session, NOWHERE, FACTS, BANK_TASK, place.work, stores)

    assert done.positions == ENDS
    store = stores.open(BANK, "id", 0)
    assert [each.outgoing for each in store.unsent()] == [sent]
    store.close()


def test_a_store_that_stands_elsewhere_is_not_written_over(place: Place) -> None:
    session: Any = NoSession()
    stores = SqliteStores(place.state)
    rebuild(session, NOWHERE, FACTS, BANK_TASK, place.work, stores)
    longer = replace(BANK_TASK, until={0: 20, 1: 20})

    with pytest.raises(StoreMismatch, match="position 10"):
        rebuild(session, NOWHERE, FACTS, longer, place.work, stores)


def break_off(place: Place, monkeypatch: pytest.MonkeyPatch, task: Task = BANK_TASK) -> None:
    def strike(_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "faults", SimpleNamespace(reach=strike))
        with pytest.raises(Killed):
            place.rebuild(task)
    (place.work / "checkpoint" / "of the first").touch()


def kept_work(place: Place, monkeypatch: pytest.MonkeyPatch, task: Task) -> bool:
    """Whether the second start goes on with the work of the first."""
    seen: list[bool] = []

    def look(_: object) -> None:
        seen.append((place.work / "checkpoint" / "of the first").exists())

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "faults", SimpleNamespace(reach=look))
        place.rebuild(task)
    return seen[0]


@pytest.mark.parametrize(
    "other",
    [
        replace(BANK_TASK, log="payments"),
        replace(BANK_TASK, topic_id="another"),
        replace(BANK_TASK, group="executors", sent={0: 5}),
        replace(BANK_TASK, application=bank(decide=decide_nothing)),
        replace(BANK_TASK, application=bank(rules={Reason.RAISED: Rule.STOP})),
        replace(BANK_TASK, application=bank(window=7)),
    ],
    ids=["log", "topic", "group", "decide", "rules", "window"],
)
def test_work_that_was_begun_for_another_purpose_is_begun_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch, other: Task
) -> None:
    break_off(place, monkeypatch)

    assert not kept_work(place, monkeypatch, other)


def test_work_that_was_begun_with_another_source_of_decide_is_begun_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(inspect, "getsource", lambda _: "as it was")
        break_off(place, monkeypatch)

    assert not kept_work(place, monkeypatch, BANK_TASK)


def test_work_goes_on_to_the_position_it_set_out_for_while_log_and_group_move(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replace(BANK_TASK, group="executors", sent={0: 5})
    break_off(place, monkeypatch, first)

    assert kept_work(place, monkeypatch, replace(first, until={0: 90, 1: 90}, sent={0: 6}))


def test_an_empty_log_becomes_empty_stores_without_spark(place: Place) -> None:
    nothing: Any = None
    empty = dict.fromkeys(ENDS, 0)
    facts, task = replace(FACTS, end=empty), replace(BANK_TASK, until=empty)

    done = rebuild_files(nothing, NOWHERE, facts, task, place.work, place.state)

    assert (done.positions, done.rows, done.outgoing) == (empty, 0, 0)
    assert sorted(file.name for file in place.state.iterdir()) == ["bank-0.sqlite", "bank-1.sqlite"]


def test_a_full_disk_under_the_stores_has_the_name_that_it_has_under_the_lake(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sqlite._connect

    def small(path: Path, synchronous: str) -> sqlite3.Connection:
        db = real(path, synchronous)
        db.execute("pragma max_page_count = 2")
        return db

    monkeypatch.setattr(sqlite, "_connect", small)

    with pytest.raises(RoomMissing, match="the rebuild of bank"):
        place.rebuild()
