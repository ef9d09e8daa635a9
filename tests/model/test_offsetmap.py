"""The offset map: round trips, the shortest form, the size bound, and what is not to be trusted."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import offsetmap

windows = st.integers(0, 1 << 40).flatmap(
    lambda base: st.sets(st.integers(0, 3000), max_size=200).map(
        lambda gaps: (base, sorted({base, *(base + gap for gap in gaps)}))
    )
)


@given(windows, st.integers(1, 5000))
def test_what_was_written_is_read_back(window: tuple[int, list[int]], beyond: int) -> None:
    base, unfinished = window
    end = unfinished[-1] + beyond
    text = offsetmap.encode(base, end, unfinished)
    if end - base == len(unfinished):
        assert text == ""
    else:
        assert offsetmap.decode(base, text) == offsetmap.OffsetMap(base, end, frozenset(unfinished))


@given(st.integers(1, 60_000), st.integers(1, 3_000), st.randoms(use_true_random=False))
def test_a_map_that_is_said_to_fit_does_fit(span: int, count: int, random) -> None:
    count = min(count, span)
    unfinished = sorted({0, *random.sample(range(span), count)})[:count]
    if offsetmap.fits(span, len(unfinished)):
        text = offsetmap.encode(0, span, unfinished)
        assert len(text) <= offsetmap.METADATA_CHARS_MAX


@pytest.mark.parametrize("span", [24_000, 25_000, 400_000, 20_000_000, 1 << 34])
def test_the_worst_pattern_at_the_bound_fits(span: int) -> None:
    count = max(n for n in range(1, 1600) if offsetmap.fits(span, n))
    step = span // count
    text = offsetmap.encode(7, 7 + span, [7 + index * step for index in range(count)])
    assert len(text) <= offsetmap.METADATA_CHARS_MAX


def test_one_stuck_record_leaves_room_however_many_finish_behind_it() -> None:
    text = offsetmap.encode(33, 2_000_000, [33])
    assert offsetmap.fits(2_000_000, 500)
    assert len(text) < 40


def test_a_map_too_large_is_refused_not_cut() -> None:
    with pytest.raises(ValueError, match="4096 are allowed"):
        offsetmap.encode(0, 10_000_000, sorted(Random(7).sample(range(10_000_000), 5_000)))


def test_offset_34_done_and_33_not() -> None:
    found = offsetmap.decode(33, offsetmap.encode(33, 35, [33]))
    assert found is not None
    assert (found.done(33), found.done(34), found.done(35), found.done_count) == (False, True, False, 1)


@pytest.mark.parametrize(
    "metadata", [None, "", "PEN1", "PEN1r", "PEN1r!!", "somebody else's note", "PEN1q" + "A" * 20]
)
def test_foreign_or_broken_metadata_is_no_map(metadata: str | None) -> None:
    assert offsetmap.decode(33, metadata) is None


def test_a_map_next_to_another_offset_is_void() -> None:
    text = offsetmap.encode(33, 40, [33, 36])
    assert offsetmap.decode(34, text) is None


@given(st.integers(5, 60), st.characters(codec="ascii"))
def test_a_damaged_map_never_tells_another_story(at: int, letter: str) -> None:
    text = offsetmap.encode(1000, 1500, list(range(1000, 1500, 7)))
    found = offsetmap.decode(1000, text[:at] + letter + text[at + 1 :])
    assert found is None or found == offsetmap.decode(1000, text)  # two spellings of the same bits
