"""A projection and its fold: what is applied, passed over, suppressed, skipped."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from penstock.model.errors.olep import LogUnavailable
from penstock.model.errors.views import ProjectionInvalid, ViewEventRefused
from penstock.olep.application import Reason, Rule, State
from penstock.olep.codec import JsonCodec
from penstock.olep.event import Event, Record
from penstock.olep.repeats import MARKS
from penstock.olep.table import Put, Remove, Table
from penstock.olep.view import SKIPPED, Horizon
from penstock.olep.view.fold import ViewFold
from penstock.olep.view.memory import MemoryViews
from penstock.olep.view.projection import Projection
from penstock.olep.view.runner import ViewRunner
from tests.olep.viewing import COUNTING, COUNTS, _count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.olep.table import Effect

TOPIC = "AAAAAAAAAAAAAAAAAAAAAA"
CODEC = JsonCodec()


def record(offset: int, event_id: str, kind: str = "added", version: int = 1, **payload: Any) -> Record:
    cause = "x" if event_id.startswith("=") else None
    value = CODEC.encode(Event(event_id, kind, payload or {"n": 1}, version, cause, "r", 0))
    return Record(offset, b"k", value)


def fold(projection: Projection = COUNTING) -> ViewFold:
    store = MemoryViews().open(projection, TOPIC, 1, generation=1)
    store.claim()
    return ViewFold(projection, CODEC, store, 0)


def test_types_that_are_not_handled_are_passed_over_and_the_position_moves() -> None:
    stretch = fold().take([record(3, "a", "other"), record(7, "b", "olep.repeated")], 0)
    assert (stretch.position, stretch.applied, stretch.versions["counts"]) == (8, 0, [])


def test_an_event_is_applied_once_whether_it_was_asked_for_or_derived() -> None:
    derived = f"=bank:{TOPIC}.1.5.0"
    records = [record(0, "a"), record(1, "a"), record(2, derived), record(3, derived)]
    stretch = fold().take(records, 0)
    assert (stretch.applied, stretch.repeated) == (2, 2)
    assert (stretch.versions["counts"][-1].row or ())[1] == 2
    assert stretch.layer[MARKS.name] == {f"=bank:{TOPIC}.1": (f"=bank:{TOPIC}.1", 5 << 16)}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Record(0, b"k", b'{"type":"added","nonsense'), Reason.UNREADABLE),
        (Record(0, b"k", None), Reason.UNREADABLE),
        (Record(0, b"\xff", record(0, "a").value), Reason.UNREADABLE),
        (record(0, "a", version=2), Reason.NEWER_VERSION),
        (record(0, "a", other=1), Reason.RAISED),
    ],
    ids=lambda value: value.value if isinstance(value, Reason) else "",
)
def test_what_cannot_be_applied_is_listed_and_the_rest_goes_on(bad: Record, reason: Reason) -> None:
    stretch = fold().take([bad, record(1, "b")], 0)
    assert (stretch.applied, stretch.skipped, stretch.position) == (1, 1, 2)
    (listed,) = stretch.layer[SKIPPED.name].values()
    assert listed is not None
    assert listed[:2] == (0, reason.value)


def test_by_rule_the_view_stops_before_a_bad_event() -> None:
    strict = Projection("strict", _count, (COUNTS,), {"added": 1}, rules={Reason.RAISED: Rule.STOP})
    stretch = fold(strict).take([record(0, "a"), record(1, "b", other=1), record(2, "c")], 0)
    assert (stretch.position, stretch.applied) == (1, 1)
    assert isinstance(stretch.stopped, ViewEventRefused)


class Other(NamedTuple):
    name: str


OTHERS = Table("others", Other)


def _undeclared(state: State, event: Event) -> Iterator[Effect]:
    yield Put(OTHERS, Other("x"))


def test_a_row_of_a_table_that_is_not_declared_is_skipped() -> None:
    stretch = fold(Projection("wrong", _undeclared, (COUNTS,), {"added": 1})).take([record(0, "a")], 0)
    assert (stretch.applied, stretch.skipped) == (0, 1)


def test_a_row_that_is_removed_is_not_there_for_the_next_event() -> None:
    def project(state: State, event: Event) -> Iterator[Effect]:
        found = state.get(OTHERS, "x")
        yield Remove(OTHERS, "x") if found else Put(OTHERS, Other("x"))

    made = Projection("toggle", project, (OTHERS,), {"added": 1})
    stretch = fold(made).take([record(n, f"r{n}") for n in range(3)], 0)
    assert [version.row for version in stretch.versions["others"]] == [("x",), None, ("x",)]


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "No Good"},
        {"handles": {}},
        {"handles": {"olep.read": 1}},
        {"tables": ()},
        {"tables": (COUNTS, COUNTS)},
        {"text": {"counts": ("total",)}},
        {"text": {"nowhere": ("name",)}},
        {"version": 0},
    ],
    ids=str,
)
def test_a_wrong_declaration_is_refused(keys: dict[str, Any]) -> None:
    good: dict[str, Any] = {"name": "good", "project": _count, "tables": (COUNTS,), "handles": {"added": 1}}
    with pytest.raises(ProjectionInvalid):
        Projection(**{**good, **keys})


def test_versions_are_kept_for_as_long_as_was_asked() -> None:
    horizon, gone = Horizon(10.0), []
    for second in range(30):
        if horizon.due(second):
            gone.append(horizon.mark(second, second))
    assert gone[:11] == [None] * 11
    assert gone[11:14] == [0, 1, 2]


class Unreached(ViewRunner):
    """A runner whose log cannot be reached, and then can."""

    left = 2

    def _follow(self, stopping: Any, until: Any) -> None:
        if self.left:
            self.left -= 1
            raise LogUnavailable(topic="log", reason="no brokers")


def test_a_log_that_cannot_be_reached_is_tried_again() -> None:
    runner = Unreached(COUNTING, cast("Any", None), MemoryViews())
    runner.run(threading.Event())
    assert runner.left == 0


def test_a_view_that_begins_is_not_asked_for_rows_until_memory_is_full_or_a_commit_fails() -> None:
    asked: list[str] = []
    store = MemoryViews().open(COUNTING, TOPIC, 1, generation=1)
    store.claim()
    load = store.load

    def loaded(partition: int, table: Table[Any], key: Any) -> Any:
        asked.append(key)
        return load(partition, table, key)

    store.load = loaded  # type: ignore[method-assign]  # the store itself, watched
    fresh = ViewFold(COUNTING, CODEC, store, 0, fresh=True, cached_max=2)
    records = [Record(n, f"k{n}".encode(), record(n, f"r{n}").value) for n in range(3)]
    stretch = fresh.take(records, 0)
    store.commit([stretch])
    before = [*asked]
    fresh.settle()  # three rows are one too many
    fresh.take([Record(3, b"k0", record(3, "r3").value)], 3)
    assert (before, asked) == ([], ["k0"])
    fresh.forget()
    again = fresh.take([Record(3, b"k2", record(3, "r3").value)], 3)
    assert (again.versions["counts"][0].row or ())[1] == 2
