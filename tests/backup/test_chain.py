"""One log from segments that may overlap, be lost, or belong to a truncated history."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.backup.chain import Chain, Hole, chain_of
from penstock.tier.format import Manifest, id_text
from tests.tier.segments import CLUSTER, NOW_MS, TOPIC_ID

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence


def segment(
    first: int, last: int, *epochs: tuple[int, int], number: int = 0, at_ms: int = NOW_MS, size: int = 100
) -> Manifest:
    segment_id = id_text(UUID(int=number or first * 10_000 + last))
    return Manifest(
        CLUSTER, TOPIC_ID, "orders", 0, segment_id, first, last, at_ms, at_ms, 1,
        epochs or ((0, first),), size, ("00000000",), "",
    )  # fmt: skip


def spans(chain: Chain) -> list[tuple[int, int]]:
    return [(piece.first, piece.last) for piece in chain.pieces]


def test_consecutive_segments_are_one_log() -> None:
    chain = chain_of([segment(5, 9), segment(0, 4)])
    assert (spans(chain), chain.start, chain.end, chain.holes) == ([(0, 4), (5, 9)], 0, 10, ())
    assert [piece.first for piece in chain.from_offset(5)] == [5]
    assert chain.log_bytes == 200


def test_a_missing_segment_is_a_hole() -> None:
    chain = chain_of([segment(0, 4), segment(8, 9)])
    assert chain.holes == (Hole(5, 7),)


def test_a_copy_of_the_same_offsets_is_used_once() -> None:
    chain = chain_of([segment(0, 4, number=1), segment(0, 4, number=2), segment(3, 9, number=3)])
    assert spans(chain) in ([(0, 4), (5, 9)], [(0, 2), (3, 9)])


def test_a_longer_segment_of_the_tier_replaces_many_small_ones() -> None:
    small = [segment(at, at + 4, number=at + 1) for at in range(0, 100, 5)]
    assert spans(chain_of([*small, segment(0, 99, number=500)])) == [(0, 99)]


def test_after_an_unclean_election_the_new_log_wins() -> None:
    old = [segment(0, 9, (0, 0)), segment(10, 19, (0, 10))]
    new = segment(15, 17, (3, 15))
    chain = chain_of([*old, new])
    assert spans(chain) == [(0, 9), (10, 14), (15, 17)]
    assert chain.end == 18


def test_what_followed_a_truncation_continues_the_new_log() -> None:
    old = segment(0, 19, (0, 0))
    chain = chain_of([old, segment(15, 17, (3, 15)), segment(18, 30, (3, 18))])
    assert spans(chain) == [(0, 14), (15, 17), (18, 30)]


def test_until_a_time_later_segments_do_not_count() -> None:
    chain = chain_of([segment(0, 4), segment(5, 9, at_ms=NOW_MS + 1)], until_ms=NOW_MS)
    assert chain.end == 5


def test_an_empty_log_keeps_its_position() -> None:
    chain = Chain(empty_at=7)
    assert (chain.start, chain.end, chain.holes, chain.oldest_ms) == (7, 7, (), -1)
    assert chain_of([]) == Chain()


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Manifest], dict[int, int]]:
    """Segments of a log with elections, some of them unclean, and the epoch of each offset at the end."""
    log: dict[int, int] = {}
    manifests: list[Manifest] = []
    end = stored = 0
    for epoch in range(draw(st.integers(1, 5))):
        lost = draw(st.integers(0, 3))
        end = max(0, end - lost)
        log = {offset: one for offset, one in log.items() if offset < end}
        stored = min(stored, end)
        for _ in range(draw(st.integers(1, 4))):
            for _ in range(draw(st.integers(1, 5))):
                log[end] = epoch
                end += 1
            epochs: list[tuple[int, int]] = []
            for offset in range(stored, end):
                if not epochs or epochs[-1][0] != log[offset]:
                    epochs.append((log[offset], offset))
            manifests.append(segment(stored, end - 1, *epochs, number=len(manifests) + 1))
            stored = end
    copies = draw(st.lists(st.sampled_from(manifests), max_size=3))
    renamed = [replace(one, segment_id=id_text(UUID(int=1000 + number))) for number, one in enumerate(copies)]
    return [*manifests, *renamed], log


def epoch_at(pieces: Sequence[tuple[int, int, Manifest]], offset: int) -> int:
    for first, last, manifest in pieces:
        if first <= offset <= last:
            return [epoch for epoch, start in manifest.leader_epochs if start <= offset][-1]
    raise AssertionError(offset)


@given(histories(), st.randoms(use_true_random=False))
def test_whatever_happened_the_chain_is_the_last_log(
    history: tuple[list[Manifest], dict[int, int]], order: random.Random
) -> None:
    manifests, log = history
    shuffled = list(manifests)
    order.shuffle(shuffled)
    chain = chain_of(shuffled)
    assert (chain.start, chain.end, chain.holes) == (0, len(log), ())
    assert {offset: chain.epochs.at(offset) for offset in range(chain.end)} == log
    pieces = [(piece.first, piece.last, piece.manifest) for piece in chain.pieces]
    assert {offset: epoch_at(pieces, offset) for offset in range(chain.end)} == log
