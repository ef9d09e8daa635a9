"""Views of a real log: in order, exactly once, past skipped records, through failures of their store."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import redis
from confluent_kafka import Producer

from penstock.model.errors.views import ViewChanged, ViewEventRefused, ViewFailed, ViewFenced
from penstock.olep.application import Reason, RejectPolicy
from penstock.olep.event import request
from penstock.olep.log import end_position
from penstock.olep.position import Position
from penstock.olep.view import SKIPPED, digest
from penstock.olep.view.consistent_reads import Reads
from penstock.olep.view.projection import Projection
from penstock.olep.view.runner import Tuning, ViewRunner, catch_up
from penstock.olep.view.stores.memory import MemoryViews
from penstock.olep.view.stores.postgres import PostgresViews
from penstock.olep.view.stores.redis import RedisViews
from penstock.olep.view.stores.sqlite import SqliteViews
from tests.olep.bank_harness import wait_for
from tests.olep.counting_view import COUNTING, COUNTS, RunningView, _count, add, add_many, total

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.olep.log import Log
    from penstock.olep.view import ViewBatch, ViewStore, ViewStores
    from tests.harness.postgres import PostgresServer
    from tests.harness.valkey import ValkeyServer

pytestmark = pytest.mark.kafka

FOREVER = threading.Event()


def shown(log: Log, stores: ViewStores, projection: Projection = COUNTING) -> str:
    with Reads(projection, log, stores) as reads, reads.latest() as reader:
        return digest(reader, projection)


def test_a_view_that_is_stopped_often_equals_the_replayed_log(log: Log, tmp_path: Path) -> None:
    stores, memory = SqliteViews(tmp_path), MemoryViews()
    for start in (0, 40, 95):
        add_many(log, 50, start=start)
        add_many(log, 5, start=start)  # the same ids again
        runner = ViewRunner(COUNTING, log, stores, tuning=Tuning(batch_max=7))
        assert catch_up(runner, FOREVER).covers(end_position(log))
    catch_up(ViewRunner(COUNTING, log, memory), FOREVER)
    assert shown(log, stores) == shown(log, memory)


def test_all_stores_have_one_digest_whatever_their_batches(
    log: Log, tmp_path: Path, postgres: PostgresServer, valkey: ValkeyServer
) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    database = PostgresViews(postgres.dsn)
    for generation in database.generations(COUNTING.name):
        database.drop(COUNTING.name, generation)
    places: list[ViewStores] = [
        MemoryViews(),
        SqliteViews(tmp_path / "sqlite"),
        RedisViews(valkey.url),
        database,
    ]
    add_many(log, 200)
    for size, stores in enumerate(places, start=40):
        catch_up(ViewRunner(COUNTING, log, stores, tuning=Tuning(batch_max=size)), FOREVER)
    assert len({shown(log, stores) for stores in places}) == 1


def test_a_checkpoint_moves_past_filtered_records_and_transaction_markers(log: Log, tmp_path: Path) -> None:
    producer = Producer({**log.config, "transactional.id": log.topic})
    producer.init_transactions()
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        value = log.codec.encode(request("other", "not.handled", {}, time=0))
        for partition in range(log.partitions):
            producer.produce(log.topic, value, b"k", partition)
        producer.flush()
        end()
    # The broker responds to the end of a transaction before it writes the markers.
    tail = Position({log.topic_id: dict.fromkeys(range(log.partitions), 4)})
    wait_for(lambda: end_position(log) == tail, "the markers")
    runner = ViewRunner(COUNTING, log, SqliteViews(tmp_path))
    with RunningView(runner), Reads(COUNTING, log, SqliteViews(tmp_path)) as reads:
        wait_for(lambda: runner.position().covers(tail), "the view to pass the markers")
        with reads.linearizable(timeout=60) as reader:
            assert ([*reader.rows(COUNTS)], reader.position) == ([], tail)
    assert (runner.progress().applied, runner.progress().lag) == (0, 0)


def test_a_bad_event_is_skipped_and_listed_or_stops_the_view_by_policy(log: Log, tmp_path: Path) -> None:
    bad = add(log, "a", 1, "seven")
    add(log, "a", 2, 5)
    runner = ViewRunner(COUNTING, log, SqliteViews(tmp_path / "skip"))
    catch_up(runner, FOREVER)
    store = SqliteViews(tmp_path / "skip").open(COUNTING, log.topic_id, log.partitions, generation=1)
    (partition,) = bad.offsets[log.topic_id]
    (skipped,) = store.scan(partition, SKIPPED)
    store.close()
    assert (skipped[0], skipped[1], runner.progress().skipped) == (0, Reason.RAISED, 1)
    strict = Projection(
        "strict", _count, (COUNTS,), {"added": 1}, on_reject={Reason.RAISED: RejectPolicy.STOP}
    )
    with pytest.raises(ViewEventRefused, match="offset 0"):
        catch_up(ViewRunner(strict, log, SqliteViews(tmp_path / "stop")), FOREVER)


def test_a_row_that_no_store_can_store_is_skipped_alone(log: Log, tmp_path: Path) -> None:
    add(log, "a", 1, 5)
    add(log, "a", 2, 1 << 63)
    add(log, "a", 3, 6)
    runner = ViewRunner(COUNTING, log, SqliteViews(tmp_path))
    catch_up(runner, FOREVER)
    with Reads(COUNTING, log, SqliteViews(tmp_path)) as reads, reads.latest() as reader:
        assert (total(reader, "a"), runner.progress().skipped) == (11, 1)


class Flaky:
    """A store whose commits fail for a while."""

    def __init__(self, store: ViewStore, failing: threading.Event, failed: list[int]) -> None:
        self._store, self._failing, self._failed = store, failing, failed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        if self._failing.is_set():
            self._failed.append(1)
            raise ViewFailed(view="flaky", reason="no space left")
        self._store.commit(batches)


class FlakyViews(MemoryViews):
    def __init__(self) -> None:
        super().__init__()
        self.failing, self.failed = threading.Event(), list[int]()

    def open(self, *args: Any, **kwargs: Any) -> Any:
        return Flaky(super().open(*args, **kwargs), self.failing, self.failed)


def test_other_views_continue_while_a_store_is_down_and_it_catches_up(log: Log, tmp_path: Path) -> None:
    flaky, well = FlakyViews(), SqliteViews(tmp_path)
    with (
        RunningView(ViewRunner(COUNTING, log, flaky)) as down,
        RunningView(ViewRunner(COUNTING, log, well)) as up,
    ):
        add_many(log, 20)
        wait_for(lambda: down.runner.position().covers(end_position(log)), "the view to be running")
        flaky.failing.set()
        add_many(log, 20, start=20)
        wait_for(lambda: up.runner.position().covers(end_position(log)), "the other view to continue")
        wait_for(lambda: len(flaky.failed) > 1, "the store to be retried")
        assert (down.runner.progress().failure or "").count("no space left") == 1
        flaky.failing.clear()
        wait_for(lambda: down.runner.position().covers(end_position(log)), "the view to catch up")
    assert shown(log, flaky) == shown(log, well)


def test_of_two_writers_of_a_view_the_first_is_fenced(log: Log, tmp_path: Path) -> None:
    stores = SqliteViews(tmp_path)
    first = RunningView(ViewRunner(COUNTING, log, stores))
    first._thread.start()
    add_many(log, 10)
    wait_for(lambda: first.runner.position().covers(end_position(log)), "the first writer to be running")
    with RunningView(ViewRunner(COUNTING, log, stores)) as second:
        wait_for(lambda: second.runner.position().covers(end_position(log)), "the second writer to take over")
        add_many(log, 10, start=10)
        wait_for(first.ended, "the first writer to end")
        wait_for(lambda: second.runner.position().covers(end_position(log)), "the second writer to continue")
    assert isinstance(first.failure, ViewFenced)
    memory = MemoryViews()
    catch_up(ViewRunner(COUNTING, log, memory), FOREVER)
    assert shown(log, stores) == shown(log, memory)


def test_a_changed_projection_is_not_run_on_the_old_rows(log: Log, tmp_path: Path) -> None:
    catch_up(ViewRunner(COUNTING, log, SqliteViews(tmp_path)), FOREVER)
    changed = Projection("counting", _count, (COUNTS,), {"added": 1}, version=2)
    with pytest.raises(ViewChanged, match=r"version 1.*version 2"):
        catch_up(ViewRunner(changed, log, SqliteViews(tmp_path)), FOREVER)


def test_progress_and_rate_are_reported_while_a_view_catches_up(log: Log, tmp_path: Path) -> None:
    add_many(log, 300)
    reports: list[Any] = []
    runner = ViewRunner(
        COUNTING, log, SqliteViews(tmp_path), tuning=Tuning(batch_max=10), on_progress=reports.append
    )
    assert runner.not_ready() == "no generation of the view is claimed"
    with RunningView(runner):
        wait_for(lambda: reports and reports[-1].lag == 0 and reports[-1].records >= 300, "the progress")
        assert runner.not_ready() == ""
    assert reports[-1].applied == 300


@pytest.fixture(autouse=True)
def _nothing_forever() -> Iterator[None]:
    yield
    assert not FOREVER.is_set()
