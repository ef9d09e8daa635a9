"""The fold: what it applies, suppresses and rejects, whatever the division into batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors.olep import (
    ApplicationInvalid,
    DecideImpure,
    EventRejected,
    StoreFailed,
    VersionMissing,
)
from penstock.olep.application import Application, Decision, Emit, Reason, RejectPolicy, State
from penstock.olep.event import REJECTED, REPEATED, RETRY, VERSION, Event, Record, request
from penstock.olep.fold import REJECTED_EVENTS, Batch, Fold, PurityChecks, Source
from penstock.olep.store import digest
from penstock.olep.store.memory import MemoryStore
from penstock.olep.table import Put, Remove, Table
from tests.olep.memory_cluster import CODEC, TOPIC_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Count(NamedTuple):
    key: str
    value: int


COUNTS = Table("counts", Count)
OTHER = Table("other", Count)


def add(state: State, event: Event) -> Decision:
    """Adds `by` to the count of the event's key, and emits the total to another log."""
    before = state.get(COUNTS, event.key)
    by = event.payload["by"]
    value = (before.value if before else 0) + by
    if by < 0:
        raise ValueError("`by` is negative")
    return (Put(COUNTS, Count(event.key, value)),), (Emit("totals", event.key, "counted", {"value": value}),)


def counting(decide: Any = add, **keys: Any) -> Application:
    return Application("count", decide, (COUNTS,), **{"handles": {"add": 2}, "logs": {"totals"}, **keys})


class FoldHarness:
    """One partition of an application, applied batch by batch."""

    def __init__(
        self, application: Application | None = None, purity_checks: PurityChecks = PurityChecks.NEVER
    ) -> None:
        self.application = application or counting()
        self.store = MemoryStore(self.application)
        self.store.claim()
        self.purity_checks = purity_checks
        self.restart()
        self.batches: list[Batch] = []

    def restart(self) -> None:
        source = Source("counts", TOPIC_ID, 0)
        self.fold = Fold(self.application, source, CODEC, self.store, purity_checks=self.purity_checks)

    def apply(self, records: Sequence[Record], *, strict: bool = False) -> Batch:
        batch = self.fold.process(records, self.store.position(), strict=strict)
        self.store.commit(batch, sent=0)
        self.fold.committed()
        self.batches.append(batch)
        return batch

    def count(self, key: str = "k") -> int | None:
        row = self.store.load(COUNTS, key)
        return None if row is None else row[1]

    def rejected(self) -> list[tuple[int, str]]:
        return [(row[0], row[1]) for row in self.store.scan(REJECTED_EVENTS)]

    def emitted(self) -> list[tuple[str, str, str, Any]]:
        """(log, id, type, payload) of everything emitted."""
        outgoing = [out for batch in self.batches for out in batch.outgoing]
        events = [(out.log, CODEC.decode(out.value, "", 0, 0)) for out in outgoing]
        return [(log, event.id, event.type, event.payload) for log, event in events]


def request_record(offset: int, request_id: str, by: int = 1, key: str = "k", **keys: Any) -> Record:
    event = request(request_id, keys.pop("kind", "add"), {"by": by}, time=0, **keys)
    return Record(offset, key.encode(), CODEC.encode(event))


def derived_record(
    offset: int, source_offset: int, index: int = 0, stream: str = "=up:T.1", by: int = 1
) -> Record:
    event = Event(f"{stream}.{source_offset}.{index}", "add", {"by": by}, 1, "cause", "root")
    return Record(offset, b"k", CODEC.encode(event))


def request_record_at(offset: int, by: int) -> Record:
    return request_record(offset, f"r{offset}", by=by)


def derived_record_at(offset: int, by: int) -> Record:
    return derived_record(offset, offset, by=by)


def test_an_event_is_decided_and_emitted_events_have_derived_ids() -> None:
    harness = FoldHarness()
    harness.apply([request_record(0, "a"), request_record(1, "b", by=4)])
    assert harness.count() == 5
    assert harness.emitted() == [
        ("totals", f"=count:{TOPIC_ID}.0.0.0", "counted", {"value": 1}),
        ("totals", f"=count:{TOPIC_ID}.0.1.0", "counted", {"value": 5}),
    ]


def test_an_emitted_event_carries_its_cause_and_request() -> None:
    harness = FoldHarness()
    batch = harness.apply([derived_record(0, 7)])
    event = CODEC.decode(batch.outgoing[0].value, "", 0, 0)
    assert (event.cause, event.request) == ("=up:T.1.7.0", "root")


def test_a_repeated_request_is_suppressed_and_its_first_offset_reported() -> None:
    harness = FoldHarness()
    harness.apply([request_record(0, "a"), request_record(1, "b")])
    batch = harness.apply([request_record(2, "a")])
    assert (harness.count(), batch.repeated) == (2, 1)
    assert harness.emitted()[-1] == ("counts", f"=count:{TOPIC_ID}.0.2.0", REPEATED, {"offset": 0})


def test_a_request_is_remembered_over_a_restart() -> None:
    harness = FoldHarness()
    harness.apply([request_record(0, "a")])
    harness.restart()
    harness.apply([request_record(1, "a")])
    assert harness.count() == 1


def test_the_window_forgets_the_oldest_request_and_no_other() -> None:
    harness = FoldHarness(counting(window=2))
    harness.apply([request_record(0, "a"), request_record(1, "b"), request_record(2, "c")])
    harness.restart()
    harness.apply([request_record(3, "c"), request_record(4, "b")])
    assert harness.count() == 3
    harness.apply([request_record(5, "a")])
    assert harness.count() == 4


def test_a_window_that_is_made_smaller_keeps_its_size() -> None:
    harness = FoldHarness(counting(window=5))
    harness.apply([request_record(offset, f"r{offset}") for offset in range(5)])
    harness.application = counting(window=2)
    harness.restart()
    harness.apply([request_record(5, "r5"), request_record(6, "r6"), request_record(7, "r6")])
    assert harness.count() == 7


def test_derived_events_at_or_below_the_mark_are_suppressed() -> None:
    harness = FoldHarness()
    harness.apply([derived_record(0, 5, 0), derived_record(1, 5, 1), derived_record(2, 9)])
    harness.restart()
    harness.apply(
        [derived_record(3, 5, 0), derived_record(4, 5, 1), derived_record(5, 9), derived_record(6, 9, 1)]
    )
    assert harness.count() == 4


def test_each_stream_has_a_separate_mark() -> None:
    harness = FoldHarness()
    harness.apply(
        [
            derived_record(0, 9),
            derived_record(1, 3, stream="=up:T.2"),
            derived_record(2, 3, stream="=other:T.1"),
        ]
    )
    assert harness.count() == 3


def test_ignored_types_change_nothing() -> None:
    harness = FoldHarness(counting(ignores={"counted"}))
    batch = harness.apply([request_record(0, "a", kind="counted"), Record(1, b"k", b'{ "type":"counted"}')])
    assert (batch.decided, batch.position, [*harness.store.scan(COUNTS)]) == (0, 2, [])


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(0, b"k", None), Reason.UNREADABLE),
        (Record(0, b"k", b"no json"), Reason.UNREADABLE),
        (Record(0, b"\xff", request_record(0, "a").value), Reason.UNREADABLE),
        (derived_record(0, 1, stream="=no"), None),
        (Record(0, b"k", CODEC.encode(Event("=x.y", "add", {}, 1, "c", "r"))), Reason.UNREADABLE),
        (request_record(0, "a", kind="unknown"), Reason.UNKNOWN_TYPE),
        (request_record(0, "a", version=3), Reason.NEWER_VERSION),
        (request_record(0, "a", by=-1), Reason.RAISED),
        (request_record(0, "a", by=10**30), None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_event_is_listed_and_the_next_one_applied(record: Record, reason: Reason | None) -> None:
    harness = FoldHarness()
    harness.apply([record, request_record(1, "next", key="next")])
    assert harness.rejected() == ([] if reason is None else [(0, reason)])
    assert harness.count("next") == 1


@pytest.mark.parametrize(
    "record",
    [request_record(0, "a", kind="new"), request_record(0, "a", version=3), request_record(0, "a", by=-1)],
)
def test_a_rejected_request_gets_a_rejected_event(record: Record) -> None:
    harness = FoldHarness()
    batch = harness.apply([record])
    event = CODEC.decode(batch.outgoing[0].value, "", 0, 0)
    assert (event.type, event.request, event.payload["offset"]) == (REJECTED, "a", 0)


def test_nothing_of_a_decision_that_raises_is_applied() -> None:
    harness = FoldHarness()
    harness.apply([request_record(0, "a", by=3), request_record(1, "b", by=-1)])
    assert harness.count() == 3


@pytest.mark.parametrize(
    ("decision", "detail"),
    [
        (((Put(COUNTS, Count("k", 1)), Put(OTHER, Count("k", 1))), ()), "`other` is not declared"),
        (((Put(COUNTS, Count("k", 1)),), (Emit("nowhere", "k", "t", {}),)), "`nowhere` is not declared"),
        (((Put(COUNTS, Count("k", 1)),), (Emit("totals", "k", "t", {"x": {1}}),)), "JSON cannot represent"),
        (((Put(COUNTS, Count("k", 1)),), (Emit("totals", "k", "t", {"x": "y" * 2_000_000}),)), "bytes"),
        (((Put(COUNTS, Count("k", 1)),), (Emit("totals", "\ud800", "t", {}),)), "surrogates"),
    ],
    ids=["table", "log", "payload", "size", "key"],
)
def test_nothing_of_an_invalid_decision_is_applied(decision: Decision, detail: str) -> None:
    harness = FoldHarness(counting(lambda state, event: decision))
    harness.apply([request_record(0, "a")])
    assert (harness.count(), harness.rejected()) == (None, [(0, Reason.INVALID)])
    assert detail in next(iter(harness.store.scan(REJECTED_EVENTS)))[2]


@pytest.mark.parametrize("purity_checks", [PurityChecks.NEVER, PurityChecks.ALWAYS])
def test_a_decision_may_be_made_of_generators(purity_checks: PurityChecks) -> None:
    def decide(state: State, event: Event) -> Decision:
        effects, emits = add(state, event)
        return (each for each in effects), (each for each in emits)  # type: ignore[return-value]  # accepted

    harness = FoldHarness(counting(decide), purity_checks)
    harness.apply([request_record(0, "a"), request_record(1, "b")])
    assert (harness.count(), len(harness.emitted()), harness.rejected()) == (2, 2, [])


def test_a_generator_that_raises_or_is_impure_is_treated_as_decide_is() -> None:
    def decide(state: State, event: Event) -> Decision:
        return (Put(COUNTS, Count("k", 1 // event.payload["by"] + now())) for now in [time.time_ns]), ()  # type: ignore[return-value]  # accepted

    harness = FoldHarness(counting(decide), PurityChecks.ALWAYS)
    assert isinstance(harness.apply([request_record(0, "a")]).stopped, DecideImpure)
    harness = FoldHarness(counting(decide))
    harness.apply([request_record(0, "a", by=0)])
    assert (harness.count(), harness.rejected()) == (None, [(0, Reason.RAISED)])


@pytest.mark.parametrize(
    "decision",
    [
        (("text",), ()),
        (((COUNTS, Count("k", 1)),), ()),
        ((Put(COUNTS, None),), ()),  # type: ignore[arg-type]  # the defect
        ((Put(COUNTS, Count([], 1)),), ()),  # type: ignore[arg-type]  # the defect
        ((Remove(COUNTS, []),), ()),
        ((), ("text",)),
        ((), (("totals", "k", "t", {}),)),
    ],
    ids=["no effect", "a tuple", "no row", "unhashable key", "unhashable removed", "no event", "short event"],
)
def test_a_decision_of_something_else_is_rejected_alone(decision: Any) -> None:
    harness = FoldHarness(counting(lambda state, event: decision if event.id == "bad" else add(state, event)))
    harness.apply([request_record(0, "a"), request_record(1, "bad"), request_record(2, "c")])
    assert (harness.count(), harness.rejected()) == (2, [(1, Reason.INVALID)])


def test_a_key_that_no_row_can_have_finds_none() -> None:
    keys: list[Any] = [5, None, 1.5, True, "\ud800", ("k", 1)]
    harness = FoldHarness(
        counting(lambda state, event: ((), [AssertionError] * any(state.get(COUNTS, k) for k in keys)))
    )
    harness.apply([request_record(0, "a")])
    assert harness.rejected() == []


@pytest.mark.parametrize("caught", [False, True], ids=["raised", "caught by decide"])
def test_a_store_that_fails_while_a_row_is_read_rejects_no_event(
    caught: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def catching(state: State, event: Event) -> Decision:
        try:
            return add(state, event)
        except StoreFailed:
            return (), ()

    harness = FoldHarness(counting(catching if caught else add))
    with monkeypatch.context() as patched:
        patched.setattr(harness.store, "load", _failing_load)
        with pytest.raises(StoreFailed):
            harness.fold.process([request_record(0, "a")], 0)
    harness.fold.discard()
    harness.apply([request_record(0, "a")])
    assert (harness.count(), harness.rejected()) == (1, [])


def _failing_load(table: Table[Any], key: Any) -> None:
    if table is COUNTS:
        raise StoreFailed(store="memory", reason="a passing failure")


def test_a_decision_that_cannot_be_encoded_is_rejected_alone_and_the_others_applied_once() -> None:
    def decide(state: State, event: Event) -> Decision:
        effects, (emit,) = add(state, event)
        return effects, (emit._replace(payload={"x": {1}}) if event.id == "bad" else emit,)

    harness = FoldHarness(counting(decide))
    harness.apply([request_record(0, "a"), request_record(1, "b")])
    batch = harness.apply(
        [request_record(2, "c"), request_record(3, "bad"), request_record(4, "a"), request_record(5, "d")]
    )
    assert (harness.count(), harness.rejected(), batch.repeated) == (4, [(3, Reason.INVALID)], 1)
    assert [each[1].split(".", 2)[2] for each in harness.emitted()] == [
        "0.0",
        "1.0",
        "2.0",
        "3.0",
        "4.0",
        "5.0",
    ]


@pytest.mark.parametrize("payload", [{"x": float("nan")}, {"x": [float("inf")]}, {"x": b"y"}, {"x": {2, 1}}])
def test_a_payload_that_json_would_change_is_refused(payload: dict[str, Any]) -> None:
    harness = FoldHarness(counting(lambda state, event: ((), (Emit("totals", "k", "t", payload),))))
    harness.apply([request_record(0, "a")])
    assert harness.rejected() == [(0, Reason.INVALID)]


def test_a_row_out_of_range_is_rejected_when_rows_are_checked() -> None:
    harness = FoldHarness()
    harness.apply([request_record(0, "a", by=10**30), request_record(1, "b", key="next")], strict=True)
    assert (harness.rejected(), harness.count("next")) == ([(0, Reason.INVALID)], 1)


def test_a_record_that_a_store_refuses_can_be_rejected_alone() -> None:
    harness = FoldHarness()
    batch = harness.fold.reject(request_record(0, "a"), 0, "the store's reason")
    harness.store.commit(batch, sent=0)
    assert (harness.rejected(), harness.store.position()) == ([(0, Reason.INVALID)], 1)


@pytest.mark.parametrize("reason", [Reason.RAISED, Reason.UNREADABLE])
def test_with_policy_stop_the_fold_stops_before_a_bad_event(reason: Reason) -> None:
    harness = FoldHarness(counting(on_reject={reason: RejectPolicy.STOP}))
    bad = request_record(1, "b", by=-1) if reason is Reason.RAISED else Record(1, b"k", b"no json")
    batch = harness.apply([request_record(0, "a"), bad, request_record(2, "c")])
    assert isinstance(batch.stopped, EventRejected)
    assert (batch.position, harness.count(), harness.rejected()) == (1, 1, [])


def test_a_rejected_event_is_decided_again_at_the_offset_of_its_retry() -> None:
    harness = FoldHarness(counting(handles={"other": 1}))
    harness.apply([request_record(0, "a", by=5)])
    harness.application = counting()
    harness.restart()
    retry = request("retry-1", RETRY, {"offset": 0}, time=0)
    harness.apply([request_record(1, "b"), Record(2, b"k", CODEC.encode(retry))])
    assert (harness.count(), harness.rejected()) == (6, [])
    assert harness.emitted()[-1] == ("totals", f"=count:{TOPIC_ID}.0.2.0", "counted", {"value": 6})


def test_a_retry_that_fails_again_leaves_the_event_listed() -> None:
    harness = FoldHarness()
    retry = request("retry-1", RETRY, {"offset": 0}, time=0)
    harness.apply([request_record(0, "a", by=-1), Record(1, b"k", CODEC.encode(retry))])
    assert harness.rejected() == [(0, Reason.RAISED)]


@pytest.mark.parametrize("offset", [7, "0", None, 1.5])
def test_a_retry_of_an_unlisted_event_does_nothing(offset: object) -> None:
    harness = FoldHarness()
    retry = request("retry-1", RETRY, {"offset": offset}, time=0)
    batch = harness.apply([Record(0, b"k", CODEC.encode(retry))])
    assert (batch.position, batch.outgoing, harness.rejected()) == (1, [], [])


def test_an_impure_decision_stops_the_fold_before_it() -> None:
    calls = iter(range(100))
    harness = FoldHarness(
        counting(lambda state, event: ((Put(COUNTS, Count("k", next(calls))),), ())), PurityChecks.ALWAYS
    )
    batch = harness.apply([request_record(0, "a")])
    assert isinstance(batch.stopped, DecideImpure)
    assert (batch.position, harness.count()) == (0, None)


def _raises_at_two(state: State, event: Event) -> Decision:
    if event.payload["by"] == 2:
        raise ValueError("a bug")
    return add(state, event)


def _impure_at_two(state: State, event: Event) -> Decision:
    return add(
        state, event._replace(payload={"by": time.time_ns()} if event.payload["by"] == 2 else event.payload)
    )


def _unencodable_at_two(state: State, event: Event) -> Decision:
    effects, emits = add(state, event)
    return effects, [emits[0]._replace(payload={"x": {1}})] if event.payload["by"] == 2 else emits


@pytest.mark.parametrize("record_at", [request_record_at, derived_record_at], ids=["request", "derived"])
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("decide", [_raises_at_two, _impure_at_two, _unencodable_at_two])
def test_an_event_at_which_the_fold_stopped_is_applied_by_repaired_code(
    decide: Any, strict: bool, record_at: Callable[[int, int], Record]
) -> None:
    stops = dict.fromkeys(Reason, RejectPolicy.STOP)
    records = [record_at(offset, by) for offset, by in enumerate([1, 2, 4])]
    harness = FoldHarness(counting(decide, on_reject=stops), PurityChecks.ALWAYS)
    batch = harness.apply(records, strict=strict)
    assert (batch.position, harness.count()) == (1, 1)
    assert batch.stopped is not None

    harness.application = counting(on_reject=stops)
    harness.restart()
    harness.apply(records[1:])

    undisturbed = FoldHarness(counting())
    undisturbed.apply(records)
    assert (harness.count(), harness.rejected()) == (7, [])
    assert harness.emitted() == undisturbed.emitted()
    assert digest(harness.store, harness.application) == digest(undisturbed.store, undisturbed.application)


def test_a_retry_at_which_the_fold_stopped_is_carried_out_by_repaired_code() -> None:
    harness = FoldHarness(counting(_raises_at_two))
    retry = Record(1, b"k", CODEC.encode(request("retry-1", RETRY, {"offset": 0}, time=0)))
    harness.apply([request_record(0, "a", by=2)])
    harness.application = counting(_raises_at_two, on_reject={Reason.RAISED: RejectPolicy.STOP})
    harness.restart()
    assert harness.apply([retry]).stopped is not None
    harness.application = counting()
    harness.restart()
    harness.apply([retry])
    assert (harness.count(), harness.rejected()) == (2, [])


def test_a_refused_batch_leaves_nothing_in_memory() -> None:
    harness = FoldHarness()
    harness.apply([request_record(0, "a")])
    harness.fold.process([request_record(1, "b"), derived_record(2, 3)], 1)
    harness.fold.discard()
    harness.apply([request_record(1, "b"), derived_record(2, 3)])
    assert harness.count() == 3


event = st.one_of(
    st.builds(lambda n, by: ("request", n, by), st.integers(0, 9), st.integers(-1, 3)),
    st.builds(lambda n, i: ("derived", n, i), st.integers(0, 5), st.integers(0, 1)),
    st.builds(lambda n: ("retry", n), st.integers(0, 20)),
    st.just(("garbage",)),
)


def record_of(offset: int, spec: tuple[Any, ...]) -> Record:
    match spec:
        case ("request", n, by):
            return request_record(offset, f"r{n}", by=by, key=f"k{n % 3}")
        case ("derived", n, index):
            return derived_record(offset, n, index)
        case ("retry", n):
            return Record(
                offset, b"k", CODEC.encode(request(f"retry-{offset}", RETRY, {"offset": n}, time=0))
            )
    return Record(offset, b"k", b"garbage")


@given(st.lists(event, max_size=40), st.lists(st.integers(1, 7), min_size=1), st.integers(1, 8))
def test_the_division_into_batches_does_not_change_the_result(
    specs: list[tuple[Any, ...]], sizes: list[int], window: int
) -> None:
    records = [record_of(offset, spec) for offset, spec in enumerate(specs)]
    whole, split = FoldHarness(counting(window=window)), FoldHarness(counting(window=window))
    whole.apply(records)
    at = number = 0
    while at < len(records):
        step = sizes[number % len(sizes)]
        split.apply(records[at : at + step])
        if number % 2:
            split.restart()
        at, number = at + step, number + 1
    assert digest(split.store, split.application) == digest(whole.store, whole.application)
    assert split.emitted() == whole.emitted()


def with_fee(cents: int) -> Any:
    def decide(state: State, event: Event) -> Decision:
        account = state.get(COUNTS, event.key) or Count(event.key, 100)
        fee = Emit("totals", "fees", "fee", {"cents": cents})
        return (Put(COUNTS, account._replace(value=account.value - 5 - cents)),), (fee,)

    return decide


def version_record(offset: int, version: object, application: str = "count") -> Record:
    payload = {"application": application, "version": version}
    return Record(offset, b"", CODEC.encode(request(f"version-{version}", VERSION, payload, time=0)))


FEE_1 = counting(with_fee(1))
FEE_2 = counting(with_fee(2), version=2, earlier=[FEE_1])


def test_a_replay_after_a_new_version_decides_each_event_as_it_was_decided() -> None:
    records = [request_record(offset, f"r{offset}") for offset in range(3)]
    lived = FoldHarness(FEE_1)
    lived.apply(records)
    assert lived.count() == 82
    lived.application = FEE_2
    lived.restart()
    more = [request_record(3, "r3"), version_record(4, 2), request_record(5, "r5")]
    lived.apply(more)
    assert lived.count() == 82 - 6 - 7

    replayed = FoldHarness(FEE_2)
    replayed.apply([*records, *more])

    assert replayed.emitted() == lived.emitted()
    assert digest(replayed.store, FEE_2) == digest(lived.store, FEE_2)
    replayed.restart()
    replayed.apply([request_record(6, "r6")])
    assert replayed.count() == 62


def test_a_version_that_the_program_does_not_have_stops_it_before_anything_is_decided() -> None:
    harness = FoldHarness(FEE_1)
    batch = harness.apply([request_record(0, "a"), version_record(1, 2), request_record(2, "b")])
    assert isinstance(batch.stopped, VersionMissing)
    assert (batch.position, harness.count()) == (1, 94)
    harness.application = FEE_2
    harness.restart()
    harness.apply([version_record(1, 2), request_record(2, "b")])
    assert harness.count() == 87
    harness.application = FEE_1
    with pytest.raises(VersionMissing):
        harness.restart()
    harness.application = counting(with_fee(2), version=2)
    harness.restart()  # the version before is not needed any more


def test_versions_that_were_announced_before_or_are_of_others_change_nothing() -> None:
    harness = FoldHarness(FEE_2)
    batch = harness.apply(
        [
            *(version_record(0, 3, "other"), version_record(1, "2"), version_record(2, 2)),
            *(version_record(3, 2), version_record(4, 1), request_record(5, "a")),
        ]
    )
    assert (batch.stopped, batch.outgoing[1:], harness.count()) == (None, [], 93)


def test_a_new_version_may_handle_a_type_that_the_one_before_ignored_or_rejected() -> None:
    old = counting(handles={"other": 1}, ignores={"add"})
    new = counting(version=2, earlier=[old], window=2)
    harness = FoldHarness(new)
    harness.apply([request_record(0, "a"), version_record(1, 2), request_record(2, "b", by=4)])
    assert (harness.count(), harness.rejected()) == (4, [])


@pytest.mark.parametrize("window", [2, 3, 9])
def test_a_new_version_may_remember_more_or_fewer_requests(window: int) -> None:
    harness = FoldHarness(counting(version=2, window=window, earlier=[counting(window=3)]))
    harness.apply([*(request_record(n, f"r{n}") for n in range(5)), version_record(5, 2)])
    kept = min(window, 3)
    harness.restart()
    batch = harness.apply([request_record(6 + n, f"r{4 - n}") for n in range(kept)])
    assert (harness.count(), batch.repeated) == (5, kept)
    batch = harness.apply([request_record(20, f"r{4 - kept}")])
    assert batch.repeated == 0


@pytest.mark.parametrize(
    "keys",
    [
        {"version": 0},
        {"version": 2, "earlier": [counting(version=2)]},
        {"version": 2, "earlier": [Application("other", add, (COUNTS,), {"add": 1})]},
        {"version": 2, "earlier": [Application("count", add, (OTHER,), {"add": 1})]},
    ],
    ids=["zero", "same", "name", "tables"],
)
def test_versions_of_an_application_must_ascend_and_match(keys: dict[str, Any]) -> None:
    with pytest.raises(ApplicationInvalid):
        counting(**keys)
