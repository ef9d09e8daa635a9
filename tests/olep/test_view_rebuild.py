"""Rebuilding: a new generation beside the old one, compared, swapped; bad events recomputed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.views import ViewsDiffer, ViewTaken
from penstock.olep.log import ends
from penstock.olep.position import Position
from penstock.olep.view.reads import Reads
from penstock.olep.view.rebuild import drop_unused, rebuild
from penstock.olep.view.runner import ViewRunner, catch_up
from penstock.olep.view.sqlite import SqliteViews
from tests.olep.ground import wait_for
from tests.olep.viewing import CORRECTED, COUNTING, RunningView, add, add_many, total

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.olep.log import Log

pytestmark = pytest.mark.kafka


def test_a_rebuild_under_way_is_read_by_nobody_and_then_by_all(log: Log, tmp_path: Path) -> None:
    stores = SqliteViews(tmp_path)
    add_many(log, 50)
    with RunningView(ViewRunner(COUNTING, log, stores)) as old, Reads(COUNTING, log, stores) as reads:
        wait_for(lambda: old.runner.position().covers(ends(log)), "the view to be at work")
        with reads.latest() as reader:
            before = total(reader, "key-3")
        done = rebuild(COUNTING, log, stores, threading.Event())
        assert done is not None
        assert (done.old, done.new, stores.serving("counting")) == (1, 2, 2)
        assert done.compared is not None
        wait_for(lambda: reads.store().generation == 2, "readers to be sent to the new generation")
        with reads.latest() as reader:
            assert total(reader, "key-3") == before
    assert (drop_unused(COUNTING, stores), stores.generations("counting")) == ([1], [2])


def test_events_that_were_skipped_are_recomputed_by_the_corrected_projection(
    log: Log, tmp_path: Path
) -> None:
    stores = SqliteViews(tmp_path)
    add(log, "a", 1, 5)
    add(log, "a", 2, "7")  # a text where the first version wants a number
    catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    with Reads(COUNTING, log, stores) as reads, reads.latest() as reader:
        assert total(reader, "a") == 5
    done = rebuild(CORRECTED, log, stores, threading.Event())
    assert done is not None
    assert done.compared is None, "another version has other rows by intention"
    with Reads(CORRECTED, log, stores) as reads, reads.latest() as reader:
        assert total(reader, "a") == 12


def test_a_generation_that_differs_is_not_served(log: Log, tmp_path: Path) -> None:
    stores = SqliteViews(tmp_path)
    add_many(log, 20)
    catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    store = stores.open(COUNTING, log.topic_id, log.partitions, generation=1)
    store._db.execute("update counts set total = total + 1 where name = 'key-1'")
    store.close()
    with pytest.raises(ViewsDiffer, match="generations 1 and 2"):
        rebuild(COUNTING, log, stores, threading.Event())
    assert stores.serving("counting") == 1


def test_during_a_rebuild_a_token_is_honoured_by_the_generation_that_can(log: Log, tmp_path: Path) -> None:
    stores = SqliteViews(tmp_path)
    add_many(log, 10)
    catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    token = add(log, "late", 1)
    # The old generation is not written any more; the new one has come by.
    catch_up(ViewRunner(COUNTING, log, stores, generation=2), threading.Event())
    assert stores.serving("counting") == 1
    with Reads(COUNTING, log, stores) as reads:
        with reads.latest() as reader:
            assert total(reader, "late") == 0
        with reads.after(token, timeout=60) as reader:
            assert total(reader, "late") == 1
        with pytest.raises(Exception, match="PEN-7110"), reads.after(_beyond(token, log), timeout=0.1):
            pass


def test_a_rebuild_that_is_stopped_swaps_nothing(log: Log, tmp_path: Path) -> None:
    stores, stopped = SqliteViews(tmp_path), threading.Event()
    add_many(log, 5)
    catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    stopped.set()
    assert (rebuild(COUNTING, log, stores, stopped), stores.serving("counting")) == (None, 1)


def _beyond(token: Position, log: Log) -> Position:
    return token.join(Position.at(log.topic_id, 0, 10_000))


def test_of_two_rebuilds_at_once_one_is_told(log: Log, tmp_path: Path) -> None:
    """They pick the same generation; the one that came later goes on."""
    stores = SqliteViews(tmp_path)
    add_many(log, 20)
    catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    first = RunningView(ViewRunner(COUNTING, log, stores, generation=2))
    first._thread.start()
    wait_for(lambda: first.runner.position().covers(ends(log)), "the first rebuild to be at work")
    done = rebuild(COUNTING, log, stores, threading.Event())
    assert (done is not None, stores.serving("counting")) == (True, 2)
    add_many(log, 20, start=20)
    wait_for(first.ended, "the first rebuild to end")
    assert isinstance(first.failure, ViewTaken)
