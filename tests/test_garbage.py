"""The collector of cyclic garbage: rare while the block lasts, as before after it."""

from __future__ import annotations

import gc

import pytest

from penstock.garbage import COLLECT_EVERY, rare_collections


def test_young_garbage_is_searched_for_rarely_and_the_rest_as_ever() -> None:
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold() == (COLLECT_EVERY, *before[1:])
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before


def test_all_three_numbers_can_be_chosen() -> None:
    with rare_collections(700, 5, 1_000_000):
        assert gc.get_threshold() == (700, 5, 1_000_000)


def test_a_failure_in_the_block_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), rare_collections():
        raise RuntimeError

    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
