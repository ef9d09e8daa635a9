"""Garbage collections are rare within the block and as before after it."""

from __future__ import annotations

import gc

import pytest

from penstock.gc_tuning import COLLECT_EVERY, rare_collections


def test_only_the_young_threshold_changes_by_default() -> None:
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold() == (COLLECT_EVERY, *before[1:])
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before


def test_all_three_thresholds_can_be_set() -> None:
    with rare_collections(700, 5, 1_000_000):
        assert gc.get_threshold() == (700, 5, 1_000_000)


def test_the_thresholds_are_restored_after_an_exception() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), rare_collections():
        raise RuntimeError

    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
