"""Rebuilding: a new generation is built, compared and swapped in; skipped events are applied."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.views import ViewFenced, ViewsDiffer
from penstock.olep.log import end_position
from penstock.olep.position import Position
from penstock.olep.view.consistent_reads import Reads
from penstock.olep.view.rebuild import drop_unused, rebuild
from penstock.olep.view.runner import ViewRunner, catch_up
from penstock.olep.view.stores.sqlite import SqliteViews
from tests.olep.bank_harness import wait_for
from tests.olep.counting_view import CORRECTED, COUNTING, RunningView, add, add_many, total

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.olep.log import Log

pytestmark = pytest.mark.kafka


def test_readers_and_the_writer_use_a_new_generation_after_the_swap(log: Log, tmp_path: Path) -> None:
    stores = SqliteViews(tmp_path)
    add_many(log, 50)
    with RunningView(ViewRunner(COUNTING, log, stores)) as old, Reads(COUNTING, log, stores) as reads:
        wait_for(lambda: old.runner.position().covers(end_position(log)), "the view to be running")
        with reads.latest() as reader:
            before = total(reader, "key-3")
        done = rebuild(COUNTING, log, stores, threading.Event())
        assert done is not None
        assert (done.old, done.new, stores.serving("counting")) == (1, 2, 2)
        assert done.compared is not None
        wait_for(lambda: reads.store().generation == 2, "readers to use the new generation")
        with reads.latest() as reader:
            assert total(reader, "key-3") == before
        token = add(log, "key-3", 1000, 7)
        with reads.after(token, timeout=60) as reader:
            assert total(reader, "key-3") == before + 7
        assert old.runner.generation == 2
    assert (drop_unused(COUNTING, stores), stores.generations("counting")) == ([1], [2])


def test_skipped_events_are_applied_by_the_corrected_projection(log: Log, tmp_path: Path) -> None:
    stores = SqliteViews(tmp_path)
    add(log, "a", 1, 5)
    add(log, "a", 2, "7")  # text where the first version expects a number
    catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    with Reads(COUNTING, log, stores) as reads, reads.latest() as reader:
        assert total(reader, "a") == 5
    done = rebuild(CORRECTED, log, stores, threading.Event())
    assert done is not None
    assert done.compared is None, "another version has other rows on purpose"
    with Reads(CORRECTED, log, stores) as reads, reads.latest() as reader:
        assert total(reader, "a") == 12


def test_a_generation_that_differs_does_not_serve(log: Log, tmp_path: Path) -> None:
    stores = SqliteViews(tmp_path)
    add_many(log, 20)
    catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    store = stores.open(COUNTING, log.topic_id, log.partitions, generation=1)
    store._db.execute("update counts__rows set total = total + 1 where name = 'key-1'")
    store.close()
    with pytest.raises(ViewsDiffer, match="generations 1 and 2"):
        rebuild(COUNTING, log, stores, threading.Event())
    assert stores.serving("counting") == 1


def test_during_a_rebuild_a_token_is_honoured_by_a_generation_that_covers_it(
    log: Log, tmp_path: Path
) -> None:
    stores = SqliteViews(tmp_path)
    add_many(log, 10)
    catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    token = add(log, "late", 1)
    # The old generation has no writer; the new one has passed the token.
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


def test_of_two_concurrent_rebuilds_one_is_fenced(log: Log, tmp_path: Path) -> None:
    """They choose the same generation; the later one continues."""
    stores = SqliteViews(tmp_path)
    add_many(log, 20)
    catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    first = RunningView(ViewRunner(COUNTING, log, stores, generation=2))
    first._thread.start()
    wait_for(lambda: first.runner.position().covers(end_position(log)), "the first rebuild to be running")
    done = rebuild(COUNTING, log, stores, threading.Event())
    assert (done is not None, stores.serving("counting")) == (True, 2)
    add_many(log, 20, start=20)
    wait_for(first.ended, "the first rebuild to end")
    assert isinstance(first.failure, ViewFenced)
