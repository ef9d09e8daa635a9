"""The fold: what is applied, what is suppressed, what is rejected, and that batches do not show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors.olep import DecideImpure, EventRejected
from penstock.olep.application import Application, Decision, Emit, Reason, Rule, State
from penstock.olep.event import REJECTED, REPEATED, RETRY, Event, Record, request
from penstock.olep.fold import REJECTED_EVENTS, Batch, Fold, Source, Watch
from penstock.olep.store import digest
from penstock.olep.store.memory import MemoryStore
from penstock.olep.table import Put, Table
from tests.olep.world import CODEC, TOPIC_ID

if TYPE_CHECKING:
    from collections.abc import Iterable


class Count(NamedTuple):
    key: str
    value: int


COUNTS = Table("counts", Count)
OTHER = Table("other", Count)


def add(state: State, event: Event) -> Decision:
    """Adds `by` to the count of the event's key, and tells another log."""
    before = state.get(COUNTS, event.key)
    by = event.payload["by"]
    value = (before.value if before else 0) + by
    if by < 0:
        raise ValueError("a count never falls")
    return (Put(COUNTS, Count(event.key, value)),), (Emit("told", event.key, "counted", {"value": value}),)


def counting(decide: Any = add, **keys: Any) -> Application:
    return Application("count", decide, (COUNTS,), **{"handles": {"add": 2}, "logs": {"told"}, **keys})


class Ground:
    """One partition of an application, applied batch by batch."""

    def __init__(self, application: Application | None = None, watch: Watch = Watch.NEVER) -> None:
        self.application = application or counting()
        self.store = MemoryStore(self.application)
        self.store.claim()
        self.watch = watch
        self.restart()
        self.batches: list[Batch] = []

    def restart(self) -> None:
        source = Source("counts", TOPIC_ID, 0)
        self.fold = Fold(self.application, source, CODEC, self.store, watch=self.watch)

    def apply(self, records: Iterable[Record], *, strict: bool = False) -> Batch:
        batch = self.fold.take(records, self.store.position(), strict=strict)
        self.store.commit(batch, sent=0)
        self.fold.settle()
        self.batches.append(batch)
        return batch

    def count(self, key: str = "k") -> int | None:
        row = self.store.load(COUNTS, key)
        return None if row is None else row[1]

    def rejected(self) -> list[tuple[int, str]]:
        return [(row[0], row[1]) for row in self.store.scan(REJECTED_EVENTS)]

    def told(self) -> list[tuple[str, str, str, Any]]:
        """(log, id, type, payload) of everything emitted."""
        outgoing = [out for batch in self.batches for out in batch.outgoing]
        events = [(out.log, CODEC.decode(out.value, "", 0, 0)) for out in outgoing]
        return [(log, event.id, event.type, event.payload) for log, event in events]


def asked(offset: int, request_id: str, by: int = 1, key: str = "k", **keys: Any) -> Record:
    event = request(request_id, keys.pop("kind", "add"), {"by": by}, time=0, **keys)
    return Record(offset, key.encode(), CODEC.encode(event))


def derived(offset: int, source_offset: int, index: int = 0, stream: str = "=up:T.1", by: int = 1) -> Record:
    event = Event(f"{stream}.{source_offset}.{index}", "add", {"by": by}, 1, "cause", "root")
    return Record(offset, b"k", CODEC.encode(event))


def test_an_event_is_decided_and_what_it_emits_has_a_derived_id() -> None:
    ground = Ground()
    ground.apply([asked(0, "a"), asked(1, "b", by=4)])
    assert ground.count() == 5
    assert ground.told() == [
        ("told", f"=count:{TOPIC_ID}.0.0.0", "counted", {"value": 1}),
        ("told", f"=count:{TOPIC_ID}.0.1.0", "counted", {"value": 5}),
    ]


def test_an_emitted_event_stands_under_its_cause_and_its_request() -> None:
    ground = Ground()
    batch = ground.apply([derived(0, 7)])
    event = CODEC.decode(batch.outgoing[0].value, "", 0, 0)
    assert (event.cause, event.request) == ("=up:T.1.7.0", "root")


def test_a_repeated_request_is_suppressed_and_answered_with_the_first_place() -> None:
    ground = Ground()
    ground.apply([asked(0, "a"), asked(1, "b")])
    batch = ground.apply([asked(2, "a")])
    assert (ground.count(), batch.repeated) == (2, 1)
    assert ground.told()[-1] == ("counts", f"=count:{TOPIC_ID}.0.2.0", REPEATED, {"offset": 0})


def test_a_request_is_remembered_over_a_restart() -> None:
    ground = Ground()
    ground.apply([asked(0, "a")])
    ground.restart()
    ground.apply([asked(1, "a")])
    assert ground.count() == 1


def test_the_window_forgets_the_oldest_request_and_no_other() -> None:
    ground = Ground(counting(window=2))
    ground.apply([asked(0, "a"), asked(1, "b"), asked(2, "c")])
    ground.restart()
    ground.apply([asked(3, "c"), asked(4, "b")])
    assert ground.count() == 3
    ground.apply([asked(5, "a")])
    assert ground.count() == 4


def test_a_window_made_smaller_keeps_its_bound() -> None:
    ground = Ground(counting(window=5))
    ground.apply([asked(offset, f"r{offset}") for offset in range(5)])
    ground.application = counting(window=2)
    ground.restart()
    ground.apply([asked(5, "r5"), asked(6, "r6"), asked(7, "r6")])
    assert ground.count() == 7


def test_derived_events_at_or_below_the_mark_are_suppressed() -> None:
    ground = Ground()
    ground.apply([derived(0, 5, 0), derived(1, 5, 1), derived(2, 9)])
    ground.restart()
    ground.apply([derived(3, 5, 0), derived(4, 5, 1), derived(5, 9), derived(6, 9, 1)])
    assert ground.count() == 4


def test_streams_have_marks_of_their_own() -> None:
    ground = Ground()
    ground.apply([derived(0, 9), derived(1, 3, stream="=up:T.2"), derived(2, 3, stream="=other:T.1")])
    assert ground.count() == 3


def test_ignored_types_pass_without_a_trace() -> None:
    ground = Ground(counting(ignores={"counted"}))
    batch = ground.apply([asked(0, "a", kind="counted"), Record(1, b"k", b'{ "type":"counted"}')])
    assert (batch.decided, batch.position, [*ground.store.scan(COUNTS)]) == (0, 2, [])


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(0, b"k", None), Reason.UNREADABLE),
        (Record(0, b"k", b"no json"), Reason.UNREADABLE),
        (Record(0, b"\xff", asked(0, "a").value), Reason.UNREADABLE),
        (derived(0, 1, stream="=no"), None),
        (Record(0, b"k", CODEC.encode(Event("=x.y", "add", {}, 1, "c", "r"))), Reason.UNREADABLE),
        (asked(0, "a", kind="unheard-of"), Reason.UNKNOWN_TYPE),
        (asked(0, "a", version=3), Reason.NEWER_VERSION),
        (asked(0, "a", by=-1), Reason.RAISED),
        (asked(0, "a", by=10**30), None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_event_is_listed_and_the_next_one_goes_through(record: Record, reason: Reason | None) -> None:
    ground = Ground()
    ground.apply([record, asked(1, "next", key="next")])
    assert ground.rejected() == ([] if reason is None else [(0, reason)])
    assert ground.count("next") == 1


@pytest.mark.parametrize(
    "record", [asked(0, "a", kind="new"), asked(0, "a", version=3), asked(0, "a", by=-1)]
)
def test_the_caller_of_a_rejected_request_is_told(record: Record) -> None:
    ground = Ground()
    batch = ground.apply([record])
    event = CODEC.decode(batch.outgoing[0].value, "", 0, 0)
    assert (event.type, event.request, event.payload["offset"]) == (REJECTED, "a", 0)


def test_nothing_of_a_decision_that_raises_is_applied() -> None:
    ground = Ground()
    ground.apply([asked(0, "a", by=3), asked(1, "b", by=-1)])
    assert ground.count() == 3


@pytest.mark.parametrize(
    ("decision", "detail"),
    [
        (((Put(COUNTS, Count("k", 1)), Put(OTHER, Count("k", 1))), ()), "`other` is not declared"),
        (((Put(COUNTS, Count("k", 1)),), (Emit("nowhere", "k", "t", {}),)), "`nowhere` is not declared"),
        (((Put(COUNTS, Count("k", 1)),), (Emit("told", "k", "t", {"x": {1}}),)), "no form in JSON"),
        (((Put(COUNTS, Count("k", 1)),), (Emit("told", "k", "t", {"x": "y" * 2_000_000}),)), "bytes"),
        (((Put(COUNTS, Count("k", 1)),), (Emit("told", "\ud800", "t", {}),)), "surrogates"),
    ],
    ids=["table", "log", "payload", "size", "key"],
)
def test_nothing_of_a_decision_that_cannot_be_kept_is_applied(decision: Decision, detail: str) -> None:
    ground = Ground(counting(lambda state, event: decision))
    ground.apply([asked(0, "a")])
    assert (ground.count(), ground.rejected()) == (None, [(0, Reason.INVALID)])
    assert detail in next(iter(ground.store.scan(REJECTED_EVENTS)))[2]


def test_a_decision_that_cannot_be_encoded_is_rejected_alone_and_its_neighbours_are_applied_once() -> None:
    def decide(state: State, event: Event) -> Decision:
        effects, (emit,) = add(state, event)
        return effects, (emit._replace(payload={"x": {1}}) if event.id == "bad" else emit,)

    ground = Ground(counting(decide))
    ground.apply([asked(0, "a"), asked(1, "b")])
    batch = ground.apply([asked(2, "c"), asked(3, "bad"), asked(4, "a"), asked(5, "d")])
    assert (ground.count(), ground.rejected(), batch.repeated) == (4, [(3, Reason.INVALID)], 1)
    assert [told[1].split(".", 2)[2] for told in ground.told()] == ["0.0", "1.0", "2.0", "3.0", "4.0", "5.0"]


@pytest.mark.parametrize("payload", [{"x": float("nan")}, {"x": [float("inf")]}, {"x": b"y"}, {"x": {2, 1}}])
def test_a_payload_that_json_would_change_is_refused_and_not_changed(payload: dict[str, Any]) -> None:
    ground = Ground(counting(lambda state, event: ((), (Emit("told", "k", "t", payload),))))
    ground.apply([asked(0, "a")])
    assert ground.rejected() == [(0, Reason.INVALID)]


def test_a_row_out_of_range_is_rejected_when_rows_are_checked() -> None:
    ground = Ground()
    ground.apply([asked(0, "a", by=10**30), asked(1, "b", key="next")], strict=True)
    assert (ground.rejected(), ground.count("next")) == ([(0, Reason.INVALID)], 1)


def test_a_record_that_a_store_refuses_can_be_rejected_alone() -> None:
    ground = Ground()
    batch = ground.fold.refuse(asked(0, "a"), "the store's reason")
    ground.store.commit(batch, sent=0)
    assert (ground.rejected(), ground.store.position()) == ([(0, Reason.INVALID)], 1)


@pytest.mark.parametrize("reason", [Reason.RAISED, Reason.UNREADABLE])
def test_by_rule_a_bad_event_stops_the_fold_before_it(reason: Reason) -> None:
    ground = Ground(counting(rules={reason: Rule.STOP}))
    bad = asked(1, "b", by=-1) if reason is Reason.RAISED else Record(1, b"k", b"no json")
    batch = ground.apply([asked(0, "a"), bad, asked(2, "c")])
    assert isinstance(batch.stopped, EventRejected)
    assert (batch.position, ground.count(), ground.rejected()) == (1, 1, [])


def test_a_rejected_event_is_decided_anew_where_its_retry_stands() -> None:
    ground = Ground(counting(handles={"other": 1}))
    ground.apply([asked(0, "a", by=5)])
    ground.application = counting()
    ground.restart()
    retry = request("retry-1", RETRY, {"offset": 0}, time=0)
    ground.apply([asked(1, "b"), Record(2, b"k", CODEC.encode(retry))])
    assert (ground.count(), ground.rejected()) == (6, [])
    assert ground.told()[-1] == ("told", f"=count:{TOPIC_ID}.0.2.0", "counted", {"value": 6})


def test_a_retry_that_fails_again_leaves_the_event_listed() -> None:
    ground = Ground()
    retry = request("retry-1", RETRY, {"offset": 0}, time=0)
    ground.apply([asked(0, "a", by=-1), Record(1, b"k", CODEC.encode(retry))])
    assert ground.rejected() == [(0, Reason.RAISED)]


@pytest.mark.parametrize("offset", [7, "0", None, 1.5])
def test_a_retry_of_what_is_not_listed_does_nothing(offset: object) -> None:
    ground = Ground()
    retry = request("retry-1", RETRY, {"offset": offset}, time=0)
    batch = ground.apply([Record(0, b"k", CODEC.encode(retry))])
    assert (batch.position, batch.outgoing, ground.rejected()) == (1, [], [])


def test_an_impure_decision_stops_the_fold_before_it() -> None:
    calls = iter(range(100))
    ground = Ground(
        counting(lambda state, event: ((Put(COUNTS, Count("k", next(calls))),), ())), Watch.ALWAYS
    )
    batch = ground.apply([asked(0, "a")])
    assert isinstance(batch.stopped, DecideImpure)
    assert (batch.position, ground.count()) == (0, None)


def test_a_refused_batch_leaves_no_trace_in_memory() -> None:
    ground = Ground()
    ground.apply([asked(0, "a")])
    ground.fold.take([asked(1, "b"), derived(2, 3)], 1)
    ground.fold.forget()
    ground.apply([asked(1, "b"), derived(2, 3)])
    assert ground.count() == 3


event = st.one_of(
    st.builds(lambda n, by: ("ask", n, by), st.integers(0, 9), st.integers(-1, 3)),
    st.builds(lambda n, i: ("derived", n, i), st.integers(0, 5), st.integers(0, 1)),
    st.builds(lambda n: ("retry", n), st.integers(0, 20)),
    st.just(("garbage",)),
)


def built(offset: int, spec: tuple[Any, ...]) -> Record:
    match spec:
        case ("ask", n, by):
            return asked(offset, f"r{n}", by=by, key=f"k{n % 3}")
        case ("derived", n, index):
            return derived(offset, n, index)
        case ("retry", n):
            return Record(
                offset, b"k", CODEC.encode(request(f"retry-{offset}", RETRY, {"offset": n}, time=0))
            )
    return Record(offset, b"k", b"garbage")


@given(st.lists(event, max_size=40), st.lists(st.integers(1, 7), min_size=1), st.integers(1, 8))
def test_how_records_are_cut_into_batches_does_not_show(
    specs: list[tuple[Any, ...]], cuts: list[int], window: int
) -> None:
    records = [built(offset, spec) for offset, spec in enumerate(specs)]
    whole, cut = Ground(counting(window=window)), Ground(counting(window=window))
    whole.apply(records)
    at = turn = 0
    while at < len(records):
        step = cuts[turn % len(cuts)]
        cut.apply(records[at : at + step])
        if turn % 2:
            cut.restart()
        at, turn = at + step, turn + 1
    assert digest(cut.store, cut.application) == digest(whole.store, whole.application)
    assert cut.told() == whole.told()
