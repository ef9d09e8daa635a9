"""What a reader of `_penstock.acks` knows of each gateway run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.ack_evidence import GatewayRun, step
from penstock.model.events import AckRange, AckRanges
from penstock.model.ids import PhysicalClusterId


def record(sequence: int, *, lost: int = 0, final: bool = False) -> AckRanges:
    row = (0, -1, 10 * sequence, 10, 10, 500, 7, 0)
    return AckRanges(
        cluster=PhysicalClusterId("pkc-000001"),
        gateway="b1",
        incarnation="3f9c2a71",
        sequence=sequence,
        since_ms=1_000 * sequence,
        time_ms=1_000 * sequence + 1_000,
        ranges={"AAAAAAAAAAAAAAAAAAAABw": (row,)},
        lost=lost,
        final=final,
    )


def read(*records: AckRanges) -> tuple[GatewayRun, list[AckRange]]:
    run: GatewayRun | None = None
    ranges: list[AckRange] = []
    for one in records:
        run, some = step(run, AckRanges.from_bytes(one.to_bytes()))
        ranges += some
    assert run is not None
    return run, ranges


def test_an_ended_run_without_gaps_is_complete() -> None:
    run, ranges = read(record(0), record(1), record(2, final=True))

    assert run.complete
    assert run.until_ms == 3_000
    assert [(one.first, one.last) for one in ranges] == [(0, 9), (10, 19), (20, 29)]


def test_a_run_without_its_last_record_is_not_complete() -> None:
    run, _ = read(record(0), record(1))

    assert not run.ended
    assert not run.complete


def test_missing_records_are_a_gap() -> None:
    run, _ = read(record(2), record(5, final=True))

    assert run.missing == ((0, 1), (3, 4))
    assert not run.complete


def test_ranges_that_the_gateway_lost_are_counted() -> None:
    run, _ = read(record(0, lost=4), record(1, lost=4, final=True))

    assert run.lost == 4
    assert not run.complete


@given(st.permutations(range(8)), st.lists(st.integers(0, 7), max_size=8))
def test_repeated_and_late_records_change_nothing(order: list[int], repeats: list[int]) -> None:
    run, ranges = read(*(record(number, final=number == 7) for number in (*order, *repeats)))

    assert run.complete
    assert sorted(one.first for one in ranges) == [10 * number for number in range(8)]
