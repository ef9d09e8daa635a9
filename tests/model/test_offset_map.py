"""The offset map: round trips, the shortest form, the size bound, and corrupt metadata."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import offset_map

windows = st.integers(0, 1 << 40).flatmap(
    lambda base: st.sets(st.integers(0, 3000), max_size=200).map(
        lambda gaps: (base, sorted({base, *(base + gap for gap in gaps)}))
    )
)


@given(windows, st.integers(1, 5000))
def test_a_map_round_trips(window: tuple[int, list[int]], beyond: int) -> None:
    base, unfinished = window
    end = unfinished[-1] + beyond
    text = offset_map.encode(base, end, unfinished)
    if end - base == len(unfinished):
        assert text == ""
    else:
        assert offset_map.decode(base, text) == offset_map.OffsetMap(base, end, frozenset(unfinished))


@given(st.integers(1, 60_000), st.integers(1, 3_000), st.randoms(use_true_random=False))
def test_a_map_that_fits_by_the_estimate_fits(span: int, count: int, random: Random) -> None:
    count = min(count, span)
    unfinished = sorted({0, *random.sample(range(span), count)})[:count]
    if offset_map.fits(span, len(unfinished)):
        text = offset_map.encode(0, span, unfinished)
        assert len(text) <= offset_map.METADATA_CHARS_MAX


@pytest.mark.parametrize("span", [24_000, 25_000, 400_000, 20_000_000, 1 << 34])
def test_the_worst_pattern_at_the_bound_fits(span: int) -> None:
    count = max(n for n in range(1, 1600) if offset_map.fits(span, n))
    step = span // count
    text = offset_map.encode(7, 7 + span, [7 + index * step for index in range(count)])
    assert len(text) <= offset_map.METADATA_CHARS_MAX


def test_one_stuck_record_leaves_room_for_any_number_of_done_ones_behind_it() -> None:
    text = offset_map.encode(33, 2_000_000, [33])
    assert offset_map.fits(2_000_000, 500)
    assert len(text) < 40


def test_a_map_too_large_is_refused_rather_than_truncated() -> None:
    with pytest.raises(ValueError, match="4096 are allowed"):
        offset_map.encode(0, 10_000_000, sorted(Random(7).sample(range(10_000_000), 5_000)))


def test_a_record_is_done_though_the_one_before_it_is_not() -> None:
    decoded = offset_map.decode(33, offset_map.encode(33, 35, [33]))
    assert decoded is not None
    assert (decoded.done(33), decoded.done(34), decoded.done(35), decoded.done_count) == (
        False,
        True,
        False,
        1,
    )


@pytest.mark.parametrize(
    "metadata", [None, "", "PEN1", "PEN1r", "PEN1r!!", "another tool's note", "PEN1q" + "A" * 20]
)
def test_foreign_or_corrupt_metadata_is_not_a_map(metadata: str | None) -> None:
    assert offset_map.decode(33, metadata) is None


def test_a_map_next_to_another_offset_is_void() -> None:
    text = offset_map.encode(33, 40, [33, 36])
    assert offset_map.decode(34, text) is None


@given(st.integers(5, 60), st.characters(codec="ascii"))
def test_a_corrupt_map_is_never_read_as_another_map(at: int, letter: str) -> None:
    text = offset_map.encode(1000, 1500, list(range(1000, 1500, 7)))
    decoded = offset_map.decode(1000, text[:at] + letter + text[at + 1 :])
    assert decoded is None or decoded == offset_map.decode(1000, text)  # two spellings of the same bits
