"""Reads of each consistency: read-your-writes, fresh, linearizable, through the log."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.olep import TokenForeign, TokenUnreadable
from penstock.model.errors.views import ViewBehind, ViewMissing, ViewStale, ViewStopped
from penstock.olep.log import Appender, end_position
from penstock.olep.position import Position
from penstock.olep.view.consistent_reads import LogTail, Reads
from penstock.olep.view.runner import ViewRunner, catch_up
from penstock.olep.view.stores.sqlite import SqliteViews
from tests.olep.bank_harness import wait_for
from tests.olep.counting_view import COUNTING, RunningView, add, add_many, total

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.olep.log import Log

pytestmark = pytest.mark.kafka
LONG = 60.0  # seconds; a timeout that must not be reached


@pytest.mark.parametrize("beside", ["the writer", "another process"])
def test_a_reader_sees_its_own_writes(log: Log, tmp_path: Path, beside: str) -> None:
    stores = SqliteViews(tmp_path)
    runner = ViewRunner(COUNTING, log, stores)
    catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    appender = Appender(log)
    with (
        RunningView(runner),
        Reads(COUNTING, log, stores, runner=runner if beside == "the writer" else None) as reads,
    ):
        wait_for(lambda: runner.position().offsets[log.topic_id], "the view to be claimed")
        for number in range(1, 20):
            token = add(log, "key", number, appender=appender).token()
            with reads.after(token, timeout=LONG) as reader:
                assert total(reader, "key") == number
                assert reader.position.covers(Position.parse(token))


def test_a_session_that_passes_on_its_token_never_goes_back(log: Log, tmp_path: Path) -> None:
    """Jepsen's non-monotonic read: two replicas of a view, one of which lags."""
    fast, slow = SqliteViews(tmp_path / "fast"), SqliteViews(tmp_path / "slow")
    add_many(log, 30)
    for stores in (fast, slow):
        catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    add_many(log, 30, start=30)
    catch_up(ViewRunner(COUNTING, log, fast), threading.Event())
    with Reads(COUNTING, log, fast) as one, Reads(COUNTING, log, slow) as two:
        with one.latest() as reader:
            seen, token = total(reader, "key-1"), reader.position.token()
        with two.latest() as reader:
            assert total(reader, "key-1") < seen, "the anomaly is possible without the token"
        with pytest.raises(ViewBehind), two.after(token, timeout=0.1):
            pass
        with RunningView(ViewRunner(COUNTING, log, slow)), two.after(token, timeout=LONG) as reader:
            assert total(reader, "key-1") == seen


def test_a_wait_ends_on_timeout_or_when_the_view_stops(log: Log, tmp_path: Path) -> None:
    stores = SqliteViews(tmp_path)
    runner = ViewRunner(COUNTING, log, stores)
    beyond = Position.at(log.topic_id, 0, 10_000)
    with Reads(COUNTING, log, stores, runner=runner) as reads:
        with pytest.raises(ViewMissing), reads.latest():
            pass
        running = RunningView(runner)
        with running:
            wait_for(lambda: stores.serving("counting"), "the view to serve")
            wait_for(lambda: runner.position().offsets[log.topic_id], "the view to be claimed")
            with pytest.raises(ViewBehind, match=r"0\.05 s"), reads.after(beyond, timeout=0.05):
                pass
            raised: list[Exception] = []

            def wait() -> None:
                try:
                    reads.wait(beyond, timeout=60)
                except ViewStopped as error:
                    raised.append(error)

            waiter = threading.Thread(target=wait)
            waiter.start()
            wait_for(runner.waiters.waiting, "the reader to wait")
        waiter.join(60)
        assert len(raised) == 1
        with pytest.raises(ViewStopped), reads.after(beyond, timeout=5):
            pass


def test_a_foreign_or_malformed_token_is_refused(
    log: Log, make_log: Callable[..., Log], tmp_path: Path
) -> None:
    other = make_log("other", 1)
    stores = SqliteViews(tmp_path)
    catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    with Reads(COUNTING, log, stores) as reads:
        with pytest.raises(TokenForeign), reads.after(add(other, "k", 1).token()):
            pass
        with pytest.raises(TokenUnreadable), reads.after("nonsense"):
            pass


def test_a_view_that_is_too_old_is_an_error_at_once(log: Log, tmp_path: Path) -> None:
    """A stale read after a write: refused with a bound, possible without one."""
    stores = SqliteViews(tmp_path)
    add_many(log, 5)
    catch_up(ViewRunner(COUNTING, log, stores), threading.Event())
    with LogTail(log, every_seconds=0.05) as tail, Reads(COUNTING, log, stores, tail=tail) as reads:
        with reads.fresh(LONG):
            pass
        add(log, "late", 1)
        written = time.monotonic()
        wait_for(lambda: time.monotonic() - written > 0.5, "the view to grow old")
        with pytest.raises(ViewStale, match=r"at most 0\.3 s"), reads.fresh(0.3):
            pass
        with reads.latest() as reader:
            assert total(reader, "late") == 0
        with RunningView(ViewRunner(COUNTING, log, stores)):
            with reads.linearizable(timeout=LONG) as reader:
                assert total(reader, "late") == 1
            with reads.fresh(LONG) as reader:
                assert total(reader, "late") == 1


def test_a_read_through_the_log_is_as_of_its_appended_events(log: Log, tmp_path: Path) -> None:
    stores = SqliteViews(tmp_path)
    with RunningView(ViewRunner(COUNTING, log, stores)), Reads(COUNTING, log, stores) as reads:
        wait_for(lambda: stores.serving("counting"), "the view to serve")
        before = add(log, "k", 1)
        with reads.through_log(timeout=LONG) as reader:
            position = reader.position
            add(log, "k", 2)
            assert (total(reader, "k"), position.covers(before)) == (1, True)
        with reads.through_log(timeout=LONG) as reader:
            assert total(reader, "k") == 2
        assert not position.covers(end_position(log))
