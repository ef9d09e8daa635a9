"""Interrupting and restarting a rebuild. Folding itself is stubbed out."""

from __future__ import annotations

import inspect
import shutil
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from examples.payments.bank import BANK
from penstock.model.errors.olep import StoreMismatch
from penstock.model.errors.pipeline import DiskFull, JobBusy
from penstock.olep.application import NOTHING, Application, Reason, RejectPolicy
from penstock.olep.codec import JsonCodec
from penstock.olep.fold import Outgoing
from penstock.olep.store import sqlite
from penstock.olep.store.sqlite import SqliteStores
from penstock.pipeline import olep_rebuild as rebuilding
from penstock.pipeline.lake.ledger import TopicOffsets
from penstock.pipeline.olep_fold import FoldTask
from penstock.pipeline.olep_rebuild import STORE_WRITTEN, TASK, rebuild
from penstock.pipeline.settings import Connection

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from penstock.olep.application import Decision, State
    from penstock.olep.event import Event
    from penstock.pipeline.olep_rebuild import RebuildResult

NOWHERE = Connection("127.0.0.1:1")
ENDS = {0: 10, 1: 10}
OFFSETS = TopicOffsets("accounts", "00" * 16, dict.fromkeys(ENDS, 0), ENDS)
BANK_TASK = FoldTask(BANK, "accounts", "id", JsonCodec(), ENDS, {})


def decide_nothing(_state: State, _event: Event) -> Decision:
    return NOTHING


def bank(**changes: Any) -> Application:
    return replace(BANK, **changes)


class Killed(BaseException):
    """Not caught by any of our code."""


class NoSession:
    """A Spark session in which every query returns no rows."""

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

    def rebuild(self, task: FoldTask = BANK_TASK) -> RebuildResult:
        session: Any = NoSession()
        return rebuild(session, NOWHERE, OFFSETS, task, self.work, self.state)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    def fold(*arguments: Any) -> None:
        checkpoint = arguments[-1] / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "metadata").touch()

    monkeypatch.setattr(rebuilding, "_fold", fold)
    monkeypatch.setattr(rebuilding, "ship_package", lambda *_: None)
    return Place(tmp_path / "work", tmp_path / "state")


def test_partly_removed_work_is_not_resumed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.rmtree

    def half(directory: Path) -> None:
        real(directory / "checkpoint")
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", half)
        with pytest.raises(Killed):
            place.rebuild()

    resumable = (place.work / TASK).exists()

    assert place.state.exists()  # and complete
    assert not resumable


def test_a_concurrent_rebuild_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BaseException] = []

    def start_again(_: object) -> None:
        with pytest.raises(JobBusy, match="the rebuild of bank") as raised:
            place.rebuild()
        seen.append(raised.value)

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "fault_points", SimpleNamespace(reach=start_again))
        place.rebuild()

    assert len(seen) == len(ENDS) + 1  # at every store, and at the end
    assert sorted(file.name for file in place.state.iterdir()) == ["bank-0.sqlite", "bank-1.sqlite"]
    place.state.rename(place.state.with_name("first"))
    assert place.rebuild().positions == ENDS  # the first has ended


def test_stores_written_before_a_kill_are_left_unchanged(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = NoSession()
    stores = SqliteStores(place.state)
    sent = [Outgoing("accounts", b"k", b"v")]
    monkeypatch.setattr(rebuilding, "_outgoing", lambda *where: sent if where[-1] == 0 else [])

    def kill(point: str) -> None:
        if point == STORE_WRITTEN:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "fault_points", SimpleNamespace(reach=kill))
        with pytest.raises(Killed):
            rebuild(session, NOWHERE, OFFSETS, BANK_TASK, place.work, stores)

    done = rebuild(session, NOWHERE, OFFSETS, BANK_TASK, place.work, stores)

    assert done.positions == ENDS
    store = stores.open(BANK, "id", 0)
    assert [each.outgoing for each in store.unsent()] == [sent]
    store.close()


def test_a_store_at_another_position_is_not_overwritten(place: Place) -> None:
    session: Any = NoSession()
    stores = SqliteStores(place.state)
    rebuild(session, NOWHERE, OFFSETS, BANK_TASK, place.work, stores)
    longer = replace(BANK_TASK, until={0: 20, 1: 20})

    with pytest.raises(StoreMismatch, match="position 10"):
        rebuild(session, NOWHERE, OFFSETS, longer, place.work, stores)


def interrupt(place: Place, monkeypatch: pytest.MonkeyPatch, task: FoldTask = BANK_TASK) -> None:
    def kill(_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "fault_points", SimpleNamespace(reach=kill))
        with pytest.raises(Killed):
            place.rebuild(task)
    (place.work / "checkpoint" / "of the first").touch()


def resumes(place: Place, monkeypatch: pytest.MonkeyPatch, task: FoldTask) -> bool:
    """Whether the second start resumes the work of the first."""
    seen: list[bool] = []

    def record(_: object) -> None:
        seen.append((place.work / "checkpoint" / "of the first").exists())

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "fault_points", SimpleNamespace(reach=record))
        place.rebuild(task)
    return seen[0]


@pytest.mark.parametrize(
    "other",
    [
        replace(BANK_TASK, log="payments"),
        replace(BANK_TASK, topic_id="another"),
        replace(BANK_TASK, group="executors", sent={0: 5}),
        replace(BANK_TASK, application=bank(decide=decide_nothing)),
        replace(BANK_TASK, application=bank(on_reject={Reason.RAISED: RejectPolicy.STOP})),
        replace(BANK_TASK, application=bank(window=7)),
    ],
    ids=["log", "topic", "group", "decide", "rules", "window"],
)
def test_work_for_another_task_is_restarted_from_scratch(
    place: Place, monkeypatch: pytest.MonkeyPatch, other: FoldTask
) -> None:
    interrupt(place, monkeypatch)

    assert not resumes(place, monkeypatch, other)


def test_work_with_another_source_of_decide_is_restarted_from_scratch(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(inspect, "getsource", lambda _: "as it was")
        interrupt(place, monkeypatch)

    assert not resumes(place, monkeypatch, BANK_TASK)


def test_resumed_work_keeps_its_end_position_while_log_and_group_advance(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replace(BANK_TASK, group="executors", sent={0: 5})
    interrupt(place, monkeypatch, first)

    assert resumes(place, monkeypatch, replace(first, until={0: 90, 1: 90}, sent={0: 6}))


def test_an_empty_log_gives_empty_stores_without_spark(place: Place) -> None:
    nothing: Any = None
    empty = dict.fromkeys(ENDS, 0)
    offsets, task = replace(OFFSETS, end=empty), replace(BANK_TASK, until=empty)

    done = rebuild(nothing, NOWHERE, offsets, task, place.work, place.state)

    assert (done.positions, done.rows, done.outgoing) == (empty, 0, 0)
    assert sorted(file.name for file in place.state.iterdir()) == ["bank-0.sqlite", "bank-1.sqlite"]


def test_a_full_disk_under_the_stores_is_reported_like_one_under_the_lake(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sqlite.connect

    def small(path: Path, *arguments: Any, **options: Any) -> sqlite3.Connection:
        db = real(path, *arguments, **options)
        db.execute("pragma max_page_count = 2")
        return db

    monkeypatch.setattr(sqlite, "connect", small)

    with pytest.raises(DiskFull, match="the rebuild of bank"):
        place.rebuild()
