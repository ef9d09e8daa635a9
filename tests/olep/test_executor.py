"""Executors on a real Kafka: sharing, moving, rolling back, stopping, going on."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from examples.payments.audit import audit
from examples.payments.load import Load
from penstock.model.errors.olep import (
    DecideImpure,
    EventRejected,
    HistoryMissing,
    LogGrown,
    LogReplaced,
    LogUnavailable,
    RejectedMissing,
    StoreFailed,
)
from penstock.olep.application import Application, Reason, Rule
from penstock.olep.event import request
from penstock.olep.fold import Watch
from penstock.olep.log import Appender, ends, open_log, read
from penstock.olep.outcome import wait_until
from penstock.olep.pipeline import Pipeline
from penstock.olep.position import Position
from penstock.olep.rejected import rejected, retry
from penstock.olep.snapshot import DirectoryShelf, Snapshots
from penstock.olep.store.sqlite import SqliteStores, position_of
from penstock.olep.table import Put
from tests.ground import heard
from tests.olep.ground import Running, created_anew, executor, wait_for
from tests.olep.test_fold import COUNTS, Count, add, counting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.olep.log import Log
    from tests.ground.fleet import Fleet
    from tests.ground.postgres import PostgresServer
    from tests.olep.ground import BankGround

pytestmark = pytest.mark.kafka

PAYMENTS = Load(accounts=6, repeats=0.1, agreements=0.3, amount_max=4000)
QUIET = counting(lambda state, event: (add(state, event)[0], ()))  # counts, and tells nobody


def settled(running: Running, log: Log) -> None:
    """Waits until the executor has applied all that is in the log, and fails if it has failed."""
    goal = ends(log)
    wait_for(lambda: running.ended() or running.executor.position().covers(goal), "the executor to catch up")
    if running.failure is not None:
        raise running.failure


def count(log: Log, stores: SqliteStores, key: str = "k", application: Application = QUIET) -> int | None:
    store = stores.open(application, log.topic_id, log.partition_of(key))
    try:
        row = store.load(COUNTS, key)
        return None if row is None else row[1]
    finally:
        store.close()


def ask(log: Log, *ids: str, key: str = "k", **keys: Any) -> None:
    appender = Appender(log)
    for each in ids:
        appender.begin(key, request(each, keys.get("kind", "add"), {"by": keys.get("by", 1)}, time=0))
    assert appender.flush() == 0


def test_two_executors_share_a_log_and_hand_over_in_the_middle(ground: BankGround) -> None:
    seeds = itertools.count(10)
    with ground.executing(member=None) as first, ground.executing(member=None) as second:

        def both_have_worked() -> bool:
            ground.append(PAYMENTS, 5, next(seeds))  # there is something to do until both have some of it
            return bool(first.executor.figures.decided and second.executor.figures.decided)

        wait_for(both_have_worked, "both to have worked")
        ground.append(PAYMENTS, 150, 2)
        first.stop()
        assert audit(ground.setting) == []


def test_state_in_postgres_survives_a_kill(ground: BankGround, postgres: PostgresServer) -> None:
    ground.move_to(postgres)
    ground.append(PAYMENTS, 60, 3)
    doomed = ground.start("executor", "--member", "only", fault="olep.commit.inside@3")
    assert doomed.wait() == -signal.SIGKILL, doomed.end()
    with ground.executing():
        assert audit(ground.setting) == []


@pytest.mark.parametrize(
    ("store", "point"),
    [("sqlite", "olep.commit.before"), ("sqlite", "olep.send.before"), ("postgres", "olep.commit.before")],
)
def test_a_paused_executor_that_wakes_up_after_a_take_over_changes_nothing(
    ground: BankGround, point: str, store: str, request: pytest.FixtureRequest
) -> None:
    if store == "postgres":
        ground.move_to(request.getfixturevalue("postgres"))
    ground.append(PAYMENTS, 60, 4)
    paused = ground.start("executor", "--member", "only", fault=f"{point}@3!stop")
    wait_for(lambda: paused.paused() or not paused.running(), "the executor to be paused")
    with ground.executing():
        ground.append(PAYMENTS, 20, 5)
        assert audit(ground.setting) == []
        paused.signal(signal.SIGCONT)
        assert paused.wait() != 0, "it should find out that it was replaced"
        assert audit(ground.setting) == []


@pytest.mark.parametrize("group_forgotten", [False, True])
def test_a_file_rolled_back_to_an_older_commit_costs_nothing(
    ground: BankGround, group_forgotten: bool
) -> None:
    state = ground.setting.state
    ground.append(PAYMENTS, 30, 6)
    with ground.executing(member=None):
        assert audit(ground.setting) == []
    shutil.copytree(state, state.with_name("older"))
    ground.append(PAYMENTS, 60, 7)
    with ground.executing(member=None):
        assert audit(ground.setting) == []
    log = ground.setting.accounts_log()
    before = ends(log)
    shutil.rmtree(state)
    state.with_name("older").rename(state)
    if group_forgotten:
        group = f"{log.topic}.bank"
        admin = AdminClient(dict(log.config))
        wait_for(lambda: _forgotten(admin, group), "the group to be forgotten")
    with ground.executing():
        assert audit(ground.setting) == []
    # What was acknowledged is not sent a second time, unless nobody remembers that it was.
    assert (ends(log) == before) is not group_forgotten


def test_state_moves_to_another_machine_by_snapshot_and_log(ground: BankGround, tmp_path: Path) -> None:
    snapshots = Snapshots(DirectoryShelf(tmp_path / "shelf"), tmp_path / "scratch")
    ground.append(PAYMENTS, 60, 8)
    with ground.executing(snapshots=snapshots):
        assert audit(ground.setting) == []
    log, before = ground.setting.accounts_log(), ends(ground.setting.accounts_log())
    for file in ground.setting.state.iterdir():
        file.unlink()
    with ground.executing(snapshots=snapshots) as running:
        settled(running, log)
        assert running.executor.figures.decided == 0
        assert audit(ground.setting) == []
    assert ends(log) == before


def test_a_position_moves_past_transaction_markers(
    log: Log, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    producer = Producer({**log.config, "transactional.id": unique("writer")})
    producer.init_transactions()
    producer.begin_transaction()
    value = log.codec.encode(request("r", "add", {"by": 2}, time=0))
    producer.produce(log.topic, value, b"k", log.partition_of("k"))
    producer.commit_transaction()
    partition = log.partition_of("k")
    # A commit is answered before its marker is written: until then the log ends at the record.
    wait_for(lambda: ends(log).covers(Position({log.topic_id: {partition: 2}})), "the marker to be written")
    with Running(executor(QUIET, log, SqliteStores(tmp_path))) as running:
        settled(running, log)
    assert count(log, SqliteStores(tmp_path)) == 2
    assert position_of(SqliteStores(tmp_path).path(QUIET, log.partition_of("k"))) == (log.topic_id, 2)


def test_bad_events_are_listed_and_a_mended_program_retries_them(log: Log, tmp_path: Path) -> None:
    stores = SqliteStores(tmp_path)
    ask(log, "a")
    ask(log, "new", kind="added-later", by=5)
    producer = Producer(log.config)
    producer.produce(log.topic, b"no json", b"k", log.partition_of("k"))
    producer.flush()
    with Running(executor(QUIET, log, stores)) as running:
        settled(running, log)
    listed = rejected(QUIET, log, stores)
    assert {each.event.reason for each in listed} == {Reason.UNKNOWN_TYPE, Reason.UNREADABLE}
    mended = counting(QUIET.decide, handles={"add": 2, "added-later": 1})
    (later,) = [each for each in listed if each.event.reason == Reason.UNKNOWN_TYPE]
    retry(log, listed, later.partition, later.event.at, time=0)
    with Running(executor(mended, log, stores)) as running:
        settled(running, log)
    assert count(log, stores) == 6
    assert {each.event.reason for each in rejected(mended, log, stores)} == {Reason.UNREADABLE}


def test_what_is_not_listed_cannot_be_retried(log: Log) -> None:
    with pytest.raises(RejectedMissing):
        retry(log, [], 0, 17, time=0)


def test_by_rule_a_bad_event_stops_the_executor_before_it(log: Log, tmp_path: Path) -> None:
    strict = counting(QUIET.decide, rules={Reason.RAISED: Rule.STOP})
    ask(log, "a")
    ask(log, "b", by=-1)
    with pytest.raises(EventRejected), Running(executor(strict, log, SqliteStores(tmp_path))) as running:
        wait_for(running.ended, "the executor to stop")
    assert count(log, SqliteStores(tmp_path)) == 1


def test_an_impure_program_is_stopped_with_nothing_applied(log: Log, tmp_path: Path) -> None:
    impure = counting(lambda state, event: (random.random(), ((), ()))[1])
    ask(log, "a")
    with pytest.raises(DecideImpure), Running(executor(impure, log, SqliteStores(tmp_path))) as running:
        wait_for(running.ended, "the executor to stop")
    assert count(log, SqliteStores(tmp_path)) is None


def test_a_row_that_the_store_refuses_rejects_one_event_and_not_its_batch(log: Log, tmp_path: Path) -> None:
    stores = SqliteStores(tmp_path)
    ask(log, "a")
    ask(log, "huge", by=10**30)
    ask(log, "b")
    with Running(executor(QUIET, log, stores, watch=Watch.NEVER)) as running:
        settled(running, log)
    assert count(log, stores) == 2
    assert [each.event.reason for each in rejected(QUIET, log, stores)] == [Reason.INVALID]


def test_an_executor_without_its_history_refuses_to_guess(log: Log, tmp_path: Path) -> None:
    ask(log, "a", "b")
    admin = AdminClient(dict(log.config))
    places = [TopicPartition(log.topic, log.partition_of("k"), 1)]
    for future in admin.delete_records(places).values():
        future.result()
    with pytest.raises(HistoryMissing), Running(executor(QUIET, log, SqliteStores(tmp_path))) as running:
        wait_for(running.ended, "the executor to stop")


def test_an_executor_refuses_a_log_that_was_created_anew(log: Log, tmp_path: Path) -> None:
    ask(log, "a")
    with Running(executor(QUIET, log, SqliteStores(tmp_path))) as running:
        settled(running, log)
    log.admin.delete_topics([log.topic])[log.topic].result()
    anew = created_anew(log)
    with pytest.raises(LogReplaced), Running(executor(QUIET, anew, SqliteStores(tmp_path))) as running:
        wait_for(running.ended, "the executor to stop")


def test_an_executor_stops_when_partitions_are_added_and_does_not_start_again(
    log: Log, tmp_path: Path
) -> None:
    stores = SqliteStores(tmp_path)
    ask(log, "a")
    running = Running(executor(QUIET, log, stores)).__enter__()
    settled(running, log)
    grown = NewPartitions(log.topic, log.partitions + 1)
    log.admin.create_partitions([grown])[log.topic].result()
    wait_for(running.ended, "the executor to notice")
    assert isinstance(running.failure, LogGrown)
    anew = open_log(log.config, log.topic, name="counts")
    with pytest.raises(LogGrown), Running(executor(QUIET, anew, stores)) as running:
        wait_for(running.ended, "the executor to stop")
    assert count(log, stores) == 1


def test_an_event_that_its_topic_refuses_stops_the_executor_and_is_not_skipped(
    fleet: Fleet, log: Log, tmp_path: Path, make_log: Callable[..., Log]
) -> None:
    """Were it skipped, the events behind it would lift the mark, and it would be lost for good."""
    told = make_log("told", 1, **{"max.message.bytes": "1000"})

    def long_winded(state: Any, event: Any) -> Any:
        effects, (emit,) = add(state, event)
        size = 3000 if event.id == "long" else 1
        return effects, (emit._replace(payload={"text": "x" * size}),)

    wordy = counting(long_winded)
    ask(log, "short", "long", "after")
    with (
        pytest.raises(LogUnavailable),
        Running(executor(wordy, log, SqliteStores(tmp_path), logs=(told,), batch_max=1)) as running,
    ):
        wait_for(running.ended, "the executor to stop")
    assert [told.decode(p, record).payload["text"] for p, record in read(told)] in ([], ["x"])
    _widen(told)
    heard.now(heard.setting_heard(fleet, told.topic, "max.message.bytes", "1000000"))
    with Running(executor(wordy, log, SqliteStores(tmp_path), logs=(told,))) as running:
        settled(running, log)
        wait_for(running.executor.quiet, "everything to be sent")
    sizes = [len(told.decode(p, record).payload["text"]) for p, record in read(told)]
    assert sizes == [1, 3000, 1]


def test_a_pipeline_hands_events_from_log_to_log(
    log: Log, tmp_path: Path, make_log: Callable[..., Log]
) -> None:
    told = make_log("told", 2)

    def double(state: Any, event: Any) -> Any:
        return (Put(COUNTS, Count(event.key, 2 * event.payload["value"])),), ()

    doubling = Application("double", double, (COUNTS,), handles={"counted": 1})
    stores = SqliteStores(tmp_path)
    ask(log, "a", "b", "c")
    stopping = threading.Event()
    stages = [executor(counting(), log, stores, logs=(told,)), executor(doubling, told, stores)]
    thread = threading.Thread(target=Pipeline(stages).run, args=(stopping,))
    thread.start()
    try:
        wait_until(log, stages[0].position, timeout=60)
        wait_for(stages[0].quiet, "the first stage to have sent all")
        wait_until(told, stages[1].position, timeout=60)
    finally:
        stopping.set()
        thread.join()
    assert count(told, stores, application=doubling) == 6


def test_a_pipeline_whose_stage_fails_ends_as_a_whole(log: Log, tmp_path: Path) -> None:
    (tmp_path / "count-0.sqlite").mkdir()
    other = Application("other", add, (COUNTS,), handles={"add": 1})
    stages = [
        executor(QUIET, log, SqliteStores(tmp_path)),
        executor(other, log, SqliteStores(tmp_path / "b")),
    ]
    with pytest.raises(StoreFailed):
        Pipeline(stages).run(threading.Event())


def _forgotten(admin: AdminClient, group: str) -> bool:
    try:
        admin.delete_consumer_groups([group])[group].result()
    except Exception:  # noqa: BLE001 - static members leave when their session ends
        return False
    return True


def _widen(log: Log) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", log.topic, incremental_configs=[entry])
    log.admin.incremental_alter_configs([resource])[resource].result()
