"""A projection and its fold: what it applies, ignores, suppresses and skips."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from penstock.model.errors.olep import LogUnavailable
from penstock.model.errors.views import ProjectionInvalid, ViewEventRefused, ViewFailed
from penstock.olep.application import Reason, RejectPolicy, State
from penstock.olep.codec import JsonCodec
from penstock.olep.deduplication import MARKS
from penstock.olep.event import Event, Record
from penstock.olep.table import Put, Remove, Table
from penstock.olep.view import SKIPPED, Horizon
from penstock.olep.view.fold import ViewFold
from penstock.olep.view.projection import Projection
from penstock.olep.view.runner import ViewRunner
from penstock.olep.view.stores.memory import MemoryViews
from tests.olep.counting_view import COUNTING, COUNTS, _count

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


def test_unhandled_types_are_skipped_and_the_position_moves() -> None:
    batch = fold().process([record(3, "a", "other"), record(7, "b", "olep.repeated")], 0)
    assert (batch.position, batch.applied, batch.versions["counts"]) == (8, 0, [])


def test_requests_and_derived_events_are_applied_once() -> None:
    derived = f"=bank:{TOPIC}.1.5.0"
    records = [record(0, "a"), record(1, "a"), record(2, derived), record(3, derived)]
    batch = fold().process(records, 0)
    assert (batch.applied, batch.repeated) == (2, 2)
    assert (batch.versions["counts"][-1].row or (None, None))[1] == 2
    assert batch.internal[MARKS.name] == {f"=bank:{TOPIC}.1": (f"=bank:{TOPIC}.1", 5 << 16)}


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
def test_an_event_that_cannot_be_applied_is_listed_and_the_rest_applied(bad: Record, reason: Reason) -> None:
    batch = fold().process([bad, record(1, "b")], 0)
    assert (batch.applied, batch.skipped, batch.position) == (1, 1, 2)
    (listed,) = batch.internal[SKIPPED.name].values()
    assert listed is not None
    assert listed[:2] == (0, reason.value)


def test_with_policy_stop_the_view_stops_before_a_bad_event() -> None:
    strict = Projection(
        "strict", _count, (COUNTS,), {"added": 1}, on_reject={Reason.RAISED: RejectPolicy.STOP}
    )
    batch = fold(strict).process([record(0, "a"), record(1, "b", other=1), record(2, "c")], 0)
    assert (batch.position, batch.applied) == (1, 1)
    assert isinstance(batch.stopped, ViewEventRefused)


@pytest.mark.parametrize("prefix", ["r", f"=bank:{TOPIC}.1.0."], ids=["request", "derived"])
def test_an_event_at_which_a_view_stopped_is_applied_by_the_repaired_projection(prefix: str) -> None:
    def faulty(state: State, event: Event) -> Iterator[Effect]:
        if event.payload["n"] == 2:
            raise ValueError("a bug")
        yield from _count(state, event)

    stops = {Reason.RAISED: RejectPolicy.STOP}
    records = [record(offset, f"{prefix}{offset}", n=n) for offset, n in enumerate([1, 2, 4])]
    store = MemoryViews().open(COUNTING, TOPIC, 1, generation=1)
    store.claim()
    before = Projection("counting", faulty, (COUNTS,), {"added": 1}, on_reject=stops)
    batch = ViewFold(before, CODEC, store, 0).process(records, 0)
    store.commit([batch])
    assert isinstance(batch.stopped, ViewEventRefused)
    assert batch.position == 1

    resumed = ViewFold(COUNTING, CODEC, store, 0).process(records[1:], 1)
    store.commit([resumed])
    assert (resumed.applied, resumed.repeated, resumed.skipped) == (2, 0, 0)
    assert store.load(0, COUNTS, "k") == ("k", 7, f"{prefix}2")


class Other(NamedTuple):
    name: str


OTHERS = Table("others", Other)


def _undeclared(state: State, event: Event) -> Iterator[Effect]:
    yield Put(OTHERS, Other("x"))


def test_a_row_of_a_table_that_is_not_declared_is_skipped() -> None:
    batch = fold(Projection("wrong", _undeclared, (COUNTS,), {"added": 1})).process([record(0, "a")], 0)
    assert (batch.applied, batch.skipped) == (0, 1)


def test_a_removed_row_is_missing_for_the_next_event() -> None:
    def project(state: State, event: Event) -> Iterator[Effect]:
        row = state.get(OTHERS, "x")
        yield Remove(OTHERS, "x") if row else Put(OTHERS, Other("x"))

    toggle = Projection("toggle", project, (OTHERS,), {"added": 1})
    batch = fold(toggle).process([record(n, f"r{n}") for n in range(3)], 0)
    assert [version.row for version in batch.versions["others"]] == [("x",), None, ("x",)]


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
def test_an_invalid_declaration_is_refused(keys: dict[str, Any]) -> None:
    good: dict[str, Any] = {"name": "good", "project": _count, "tables": (COUNTS,), "handles": {"added": 1}}
    with pytest.raises(ProjectionInvalid):
        Projection(**{**good, **keys})


def test_versions_are_retained_for_keep_seconds() -> None:
    horizon, expired = Horizon(10.0), []
    for second in range(30):
        if horizon.due(second):
            expired.append(horizon.mark(second, second))
    assert expired[:11] == [None] * 11
    assert expired[11:14] == [0, 1, 2]


class Unreached(ViewRunner):
    """A runner whose log becomes reachable at the third attempt."""

    left = 2

    def _follow(self, stopping: Any, until: Any) -> None:
        if self.left:
            self.left -= 1
            raise LogUnavailable(topic="log", reason="no brokers")


def test_an_unreachable_log_is_retried() -> None:
    runner = Unreached(COUNTING, cast("Any", None), MemoryViews())
    runner.run(threading.Event())
    assert runner.left == 0


def test_a_fresh_view_is_not_read_until_the_cache_is_full_or_a_commit_fails() -> None:
    loaded_keys: list[str] = []
    store = MemoryViews().open(COUNTING, TOPIC, 1, generation=1)
    store.claim()
    load = store.load

    def recording_load(partition: int, table: Table[Any], key: Any) -> Any:
        loaded_keys.append(key)
        return load(partition, table, key)

    store.load = recording_load  # type: ignore[method-assign]  # records its calls
    fresh = ViewFold(COUNTING, CODEC, store, 0, fresh=True, cached_max=2)
    records = [Record(n, f"k{n}".encode(), record(n, f"r{n}").value) for n in range(3)]
    batch = fresh.process(records, 0)
    store.commit([batch])
    before = [*loaded_keys]
    fresh.committed()  # three rows are more than `cached_max`
    fresh.process([Record(3, b"k0", record(3, "r3").value)], 3)
    assert (before, loaded_keys) == ([], ["k0"])
    fresh.discard()
    again = fresh.process([Record(3, b"k2", record(3, "r3").value)], 3)
    assert (again.versions["counts"][0].row or (None, None))[1] == 2


def test_a_store_that_cannot_be_read_fails_the_batch_and_skips_no_event() -> None:
    """Otherwise a server that does not respond for a moment would cost the view the events of that moment."""
    store = MemoryViews().open(COUNTING, TOPIC, 1, generation=1)
    store.claim()
    view = ViewFold(COUNTING, CODEC, store, 0)

    def unreachable(*_: object) -> Any:
        raise ViewFailed(view="counting", reason="timed out")

    store.load = unreachable  # type: ignore[assignment,method-assign]  # a server that is down for a moment
    with pytest.raises(ViewFailed):
        view.process([record(0, "a")], 0)
    del store.load
    batch = ViewFold(COUNTING, CODEC, store, 0).process([record(0, "a")], 0)
    assert (batch.applied, batch.skipped, batch.position) == (1, 0, 1)


@pytest.mark.parametrize(
    "effect",
    ["no effect", Put(COUNTS, cast("Any", ([], 1, "x"))), Remove(COUNTS, cast("Any", []))],
    ids=["other-type", "row-without-hash", "key-without-hash"],
)
def test_an_event_with_an_impossible_effect_is_skipped_and_the_rest_applied(effect: Any) -> None:
    def project(state: State, event: Event) -> Iterator[Effect]:
        if event.offset == 1:
            yield effect
        yield from _count(state, event)

    wrong = Projection("counting", project, (COUNTS,), {"added": 1})
    batch = fold(wrong).process([record(0, "a"), record(1, "b"), record(2, "c")], 0)
    assert (batch.applied, batch.skipped, batch.position) == (2, 1, 3)
    assert [version.row[1] for version in batch.versions["counts"] if version.row] == [1, 2]
    assert [row[1] for row in batch.internal[SKIPPED.name].values() if row] == [Reason.INVALID.value]
