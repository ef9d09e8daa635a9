"""Executors on a real Kafka: sharing a log, moving state, rolling back, stopping and continuing."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
)

from examples.payments.bank_check import check_bank
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
from penstock.olep.application import Application, Reason, RejectPolicy
from penstock.olep.event import request
from penstock.olep.fold import PurityChecks
from penstock.olep.log import Appender, end_position, open_log, read
from penstock.olep.pipeline import Pipeline
from penstock.olep.position import Position
from penstock.olep.rejected_events import rejected, retry
from penstock.olep.replay import replay
from penstock.olep.state_snapshot import DirectoryStorage, StateSnapshots
from penstock.olep.store.postgres import PostgresStores
from penstock.olep.store.sqlite import SqliteStores, position_of
from penstock.olep.table import Put
from tests.harness import propagation
from tests.olep.bank_harness import (
    RunningExecutor,
    all_acknowledged,
    executor,
    recreated,
    wait_for,
    wait_until_reached,
)
from tests.olep.test_fold import COUNTS, FEE_1, FEE_2, Count, add, counting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.olep.application import State
    from penstock.olep.event import Event
    from penstock.olep.log import Log
    from penstock.olep.store import Stores
    from tests.harness.fleet import Fleet
    from tests.harness.postgres import PostgresServer
    from tests.olep.bank_harness import BankHarness

pytestmark = pytest.mark.kafka

PAYMENTS = Load(accounts=6, repeats=0.1, agreements=0.3, amount_max=4000)
COUNT_ONLY = counting(lambda state, event: (add(state, event)[0], ()))  # emits nothing


def wait_until_applied(running: RunningExecutor, log: Log) -> None:
    """Waits until the executor has applied the whole log; raises its error if it failed."""
    end = end_position(log)
    wait_for(lambda: running.ended() or running.executor.position().covers(end), "the executor to catch up")
    if running.failure is not None:
        raise running.failure


def stores_of(kind: str, directory: Path, request: pytest.FixtureRequest) -> Stores:
    """Files, or an empty database."""
    if kind == "sqlite":
        return SqliteStores(directory)
    server: PostgresServer = request.getfixturevalue("postgres")
    with psycopg.connect(server.dsn, autocommit=True) as db:
        db.execute('drop schema if exists "count" cascade')
    return PostgresStores(server.dsn)


def counted(state: State, event: Event) -> Count:
    """The count after the event, negative ones included."""
    before = state.get(COUNTS, event.key)
    return Count(event.key, (before.value if before else 0) + event.payload["by"])


def count(log: Log, stores: Stores, key: str = "k", application: Application = COUNT_ONLY) -> int | None:
    store = stores.open(application, log.topic_id, log.partition_of(key))
    try:
        row = store.load(COUNTS, key)
        return None if row is None else row[1]
    finally:
        store.close()


def submit(log: Log, *ids: str, key: str = "k", **keys: Any) -> None:
    appender = Appender(log)
    for each in ids:
        appender.submit(key, request(each, keys.get("kind", "add"), {"by": keys.get("by", 1)}, time=0))
    assert appender.flush() == 0


def test_two_executors_share_a_log_and_hand_over_in_the_middle(harness: BankHarness) -> None:
    seeds = itertools.count(10)
    with harness.executing(member=None) as first, harness.executing(member=None) as second:

        def both_have_worked() -> bool:
            harness.append(PAYMENTS, 5, next(seeds))  # keep both busy until each has decided something
            return bool(first.executor.counters.decided and second.executor.counters.decided)

        wait_for(both_have_worked, "both to have worked")
        harness.append(PAYMENTS, 150, 2)
        first.stop()
        assert check_bank(harness.settings) == []


def test_a_new_tariff_changes_no_payment_made_before_it(harness: BankHarness) -> None:
    harness.append(PAYMENTS, 60, 5)
    with harness.executing():
        assert check_bank(harness.settings) == []
    harness.settings = replace(harness.settings, fee=7, overdrawn_fee=9, earlier_tariffs=[(1, 25)])
    with harness.executing() as running:
        wait_for(lambda: len(running.executor.tasks()) == 3, "all partitions")
        harness.append(PAYMENTS, 60, 6)
        assert check_bank(harness.settings) == []  # compares the state with a replay
    shutil.rmtree(harness.settings.state)
    with harness.executing():
        assert check_bank(harness.settings) == []


def test_state_in_postgres_survives_a_kill(harness: BankHarness, postgres: PostgresServer) -> None:
    harness.move_to(postgres)
    harness.append(PAYMENTS, 60, 3)
    doomed = harness.start("executor", "--member", "only", fault="olep.commit.inside@3")
    assert doomed.wait() == -signal.SIGKILL, doomed.end()
    with harness.executing():
        assert check_bank(harness.settings) == []


def test_executors_wait_for_a_postgres_that_is_down_and_continue(
    harness: BankHarness, postgres: PostgresServer
) -> None:
    harness.move_to(postgres)
    harness.append(PAYMENTS, 60, 7)
    with harness.executing() as running:
        wait_for(lambda: running.executor.counters.decided, "the first decisions")
        postgres.end()
        try:
            harness.append(PAYMENTS, 60, 8)
            wait_for(lambda: running.ended() or running.executor.suspended(), "suspended partitions")
        finally:
            postgres.run()
        assert check_bank(harness.settings) == []
        assert running.executor.suspended() == {}
        postgres.end()
    # An executor that starts while the server is down waits as well.
    with harness.executing() as running:
        try:
            wait_for(lambda: running.ended() or len(running.executor.suspended()) == 3, "three partitions")
            assert not running.ended()
        finally:
            postgres.run()
        harness.append(PAYMENTS, 60, 9)
        assert check_bank(harness.settings) == []


@pytest.mark.parametrize(
    ("store", "point"),
    [("sqlite", "olep.commit.before"), ("sqlite", "olep.send.before"), ("postgres", "olep.commit.before")],
)
def test_a_paused_executor_that_resumes_after_a_take_over_changes_nothing(
    harness: BankHarness, point: str, store: str, request: pytest.FixtureRequest
) -> None:
    if store == "postgres":
        harness.move_to(request.getfixturevalue("postgres"))
    harness.append(PAYMENTS, 60, 4)
    paused = harness.start("executor", "--member", "only", fault=f"{point}@3!stop")
    wait_for(lambda: paused.paused() or not paused.running(), "the executor to be paused")
    with harness.executing():
        harness.append(PAYMENTS, 20, 5)
        assert check_bank(harness.settings) == []
        paused.signal(signal.SIGCONT)
        assert paused.wait() != 0, "it should notice that it was replaced"
        assert check_bank(harness.settings) == []


@pytest.mark.parametrize("group_forgotten", [False, True])
def test_a_file_rolled_back_to_an_older_commit_loses_nothing(
    harness: BankHarness, group_forgotten: bool
) -> None:
    state = harness.settings.state
    harness.append(PAYMENTS, 30, 6)
    with harness.executing(member=None):
        assert check_bank(harness.settings) == []
    shutil.copytree(state, state.with_name("older"))
    harness.append(PAYMENTS, 60, 7)
    with harness.executing(member=None):
        assert check_bank(harness.settings) == []
    log = harness.settings.accounts_log()
    before = end_position(log)
    shutil.rmtree(state)
    state.with_name("older").rename(state)
    if group_forgotten:
        group = f"{log.topic}.bank"
        admin = AdminClient(dict(log.config))
        wait_for(lambda: _forgotten(admin, group), "the group to be forgotten")
    with harness.executing():
        assert check_bank(harness.settings) == []
    # Acknowledged events are not sent again, unless the group has forgotten that they were.
    assert (end_position(log) == before) is not group_forgotten


def test_state_moves_to_another_machine_by_snapshot_and_log(harness: BankHarness, tmp_path: Path) -> None:
    snapshots = StateSnapshots(DirectoryStorage(tmp_path / "snapshots"), tmp_path / "scratch")
    harness.append(PAYMENTS, 60, 8)
    with harness.executing(snapshots=snapshots):
        assert check_bank(harness.settings) == []
    log, before = harness.settings.accounts_log(), end_position(harness.settings.accounts_log())
    for file in harness.settings.state.iterdir():
        file.unlink()
    with harness.executing(snapshots=snapshots) as running:
        wait_until_applied(running, log)
        assert running.executor.counters.decided == 0
        assert check_bank(harness.settings) == []
    assert end_position(log) == before


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
    # The broker responds to a commit before it writes the marker; until then the log ends at the record.
    wait_for(
        lambda: end_position(log).covers(Position({log.topic_id: {partition: 2}})), "the marker to be written"
    )
    with RunningExecutor(executor(COUNT_ONLY, log, SqliteStores(tmp_path))) as running:
        wait_until_applied(running, log)
    assert count(log, SqliteStores(tmp_path)) == 2
    assert position_of(SqliteStores(tmp_path).path(COUNT_ONLY, log.partition_of("k"))) == (log.topic_id, 2)


def test_rejected_events_are_listed_and_retried_by_a_corrected_program(log: Log, tmp_path: Path) -> None:
    stores = SqliteStores(tmp_path)
    submit(log, "a")
    submit(log, "new", kind="added-later", by=5)
    producer = Producer(dict(log.config))
    producer.produce(log.topic, b"no json", b"k", log.partition_of("k"))
    producer.flush()
    with RunningExecutor(executor(COUNT_ONLY, log, stores)) as running:
        wait_until_applied(running, log)
    listed = rejected(COUNT_ONLY, log, stores)
    assert {each.event.reason for each in listed} == {Reason.UNKNOWN_TYPE, Reason.UNREADABLE}
    corrected = counting(COUNT_ONLY.decide, handles={"add": 2, "added-later": 1})
    (later,) = [each for each in listed if each.event.reason == Reason.UNKNOWN_TYPE]
    retry(log, listed, later.partition, later.event.at, time=0)
    with RunningExecutor(executor(corrected, log, stores)) as running:
        wait_until_applied(running, log)
    assert count(log, stores) == 6
    assert {each.event.reason for each in rejected(corrected, log, stores)} == {Reason.UNREADABLE}


def test_only_a_listed_event_can_be_retried(log: Log) -> None:
    with pytest.raises(RejectedMissing):
        retry(log, [], 0, 17, time=0)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_executor_that_stopped_at_an_event_applies_it_once_its_code_is_repaired(
    log: Log, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    stores = stores_of(kind, tmp_path, request)
    strict = counting(COUNT_ONLY.decide, on_reject={Reason.RAISED: RejectPolicy.STOP})
    repaired = replace(strict, decide=lambda state, event: ((Put(COUNTS, counted(state, event)),), ()))
    submit(log, "a")
    submit(log, "b", by=-1)
    submit(log, "c", by=5)
    with pytest.raises(EventRejected), RunningExecutor(executor(strict, log, stores)) as running:
        wait_for(running.ended, "the executor to stop")
    assert count(log, stores) == 1
    with RunningExecutor(executor(repaired, log, stores)) as running:
        wait_until_applied(running, log)
    assert count(log, stores) == 5
    assert rejected(repaired, log, stores) == []


def test_state_restored_after_a_fee_change_is_what_was_paid_out(log: Log, tmp_path: Path) -> None:
    old = replace(FEE_1, decide=lambda state, event: (FEE_1.decide(state, event)[0], ()))
    new = replace(
        FEE_2, decide=lambda state, event: (FEE_2.decide(state, event)[0], ()), earlier=[old], name="count"
    )
    submit(log, "a", "b", "c")
    with RunningExecutor(executor(old, log, SqliteStores(tmp_path / "first"))) as running:
        wait_until_applied(running, log)
    assert count(log, SqliteStores(tmp_path / "first"), application=new) == 82

    with RunningExecutor(executor(new, log, SqliteStores(tmp_path / "first"))) as running:
        # A partition is open once its new version is announced.
        wait_for(lambda: len(running.executor.tasks()) == log.partitions, "all partitions")
        submit(log, "d")
        wait_until_applied(running, log)
    assert count(log, SqliteStores(tmp_path / "first"), application=new) == 75
    with RunningExecutor(executor(new, log, SqliteStores(tmp_path / "restored"))) as running:
        wait_until_applied(running, log)
    assert count(log, SqliteStores(tmp_path / "restored"), application=new) == 75
    (replayed,) = {store.load(COUNTS, "k") for store in replay(new, log).stores.values()} - {None}
    assert replayed == ("k", 75)


def test_an_impure_program_is_stopped_with_nothing_applied(log: Log, tmp_path: Path) -> None:
    impure = counting(lambda state, event: (random.random(), ((), ()))[1])
    submit(log, "a")
    with (
        pytest.raises(DecideImpure),
        RunningExecutor(executor(impure, log, SqliteStores(tmp_path))) as running,
    ):
        wait_for(running.ended, "the executor to stop")
    assert count(log, SqliteStores(tmp_path)) is None


def test_a_row_that_the_store_refuses_rejects_one_event_and_not_its_batch(log: Log, tmp_path: Path) -> None:
    stores = SqliteStores(tmp_path)
    submit(log, "a")
    submit(log, "huge", by=10**30)
    submit(log, "b")
    with RunningExecutor(executor(COUNT_ONLY, log, stores, purity_checks=PurityChecks.NEVER)) as running:
        wait_until_applied(running, log)
    assert count(log, stores) == 2
    assert [each.event.reason for each in rejected(COUNT_ONLY, log, stores)] == [Reason.INVALID]


def test_an_executor_refuses_a_log_whose_start_was_deleted(log: Log, tmp_path: Path) -> None:
    submit(log, "a", "b")
    admin = AdminClient(dict(log.config))
    places = [TopicPartition(log.topic, log.partition_of("k"), 1)]
    for future in admin.delete_records(places).values():
        future.result()
    with (
        pytest.raises(HistoryMissing),
        RunningExecutor(executor(COUNT_ONLY, log, SqliteStores(tmp_path))) as running,
    ):
        wait_for(running.ended, "the executor to stop")


def test_an_executor_refuses_a_recreated_log(log: Log, tmp_path: Path) -> None:
    submit(log, "a")
    with RunningExecutor(executor(COUNT_ONLY, log, SqliteStores(tmp_path))) as running:
        wait_until_applied(running, log)
    log.admin.delete_topics([log.topic])[log.topic].result()
    recreated_log = recreated(log)
    with (
        pytest.raises(LogReplaced),
        RunningExecutor(executor(COUNT_ONLY, recreated_log, SqliteStores(tmp_path))) as running,
    ):
        wait_for(running.ended, "the executor to stop")


def test_an_executor_stops_when_partitions_are_added_and_refuses_to_restart(log: Log, tmp_path: Path) -> None:
    stores = SqliteStores(tmp_path)
    submit(log, "a")
    running = RunningExecutor(executor(COUNT_ONLY, log, stores)).__enter__()
    wait_until_applied(running, log)
    added = NewPartitions(log.topic, log.partitions + 1)
    log.admin.create_partitions([added])[log.topic].result()
    wait_for(running.ended, "the executor to notice")
    assert isinstance(running.failure, LogGrown)
    grown_log = open_log(log.config, log.topic, name="counts")
    with pytest.raises(LogGrown), RunningExecutor(executor(COUNT_ONLY, grown_log, stores)) as running:
        wait_for(running.ended, "the executor to stop")
    assert count(log, stores) == 1


def test_an_event_that_its_topic_refuses_stops_the_executor_and_is_not_skipped(
    fleet: Fleet, log: Log, tmp_path: Path, make_log: Callable[..., Log]
) -> None:
    """If it were skipped, later events would raise the receiver's mark above it, and it would be lost."""
    emitted = make_log("totals", 1, **{"max.message.bytes": "1000"})

    def with_long_text(state: Any, event: Any) -> Any:
        effects, (emit,) = add(state, event)
        size = 3000 if event.id == "long" else 1
        return effects, (emit._replace(payload={"text": "x" * size}),)

    verbose = counting(with_long_text)
    submit(log, "short", "long", "after")
    with (
        pytest.raises(LogUnavailable),
        RunningExecutor(
            executor(verbose, log, SqliteStores(tmp_path), logs=(emitted,), batch_max=1)
        ) as running,
    ):
        wait_for(running.ended, "the executor to stop")
    assert [emitted.decode(p, record).payload["text"] for p, record in read(emitted)] in ([], ["x"])
    _widen(emitted)
    propagation.run_in_thread(
        propagation.wait_for_topic_config(fleet, emitted.topic, "max.message.bytes", "1000000")
    )
    with RunningExecutor(executor(verbose, log, SqliteStores(tmp_path), logs=(emitted,))) as running:
        wait_until_applied(running, log)
        wait_for(lambda: all_acknowledged(running.executor), "everything to be sent")
    sizes = [len(emitted.decode(p, record).payload["text"]) for p, record in read(emitted)]
    assert sizes == [1, 3000, 1]


def test_a_pipeline_passes_events_from_log_to_log(
    log: Log, tmp_path: Path, make_log: Callable[..., Log]
) -> None:
    emitted = make_log("totals", 2)

    def double(state: Any, event: Any) -> Any:
        return (Put(COUNTS, Count(event.key, 2 * event.payload["value"])),), ()

    doubling = Application("double", double, (COUNTS,), handles={"counted": 1})
    stores = SqliteStores(tmp_path)
    submit(log, "a", "b", "c")
    stopping = threading.Event()
    stages = [executor(counting(), log, stores, logs=(emitted,)), executor(doubling, emitted, stores)]
    thread = threading.Thread(target=Pipeline(stages).run, args=(stopping,))
    thread.start()
    try:
        wait_until_reached(log, stages[0].position)
        wait_for(lambda: all_acknowledged(stages[0]), "the first stage to have sent everything")
        wait_until_reached(emitted, stages[1].position)
    finally:
        stopping.set()
        thread.join()
    assert count(emitted, stores, application=doubling) == 6


def test_a_pipeline_whose_stage_fails_ends_as_a_whole(log: Log, tmp_path: Path) -> None:
    (tmp_path / "count-0.sqlite").mkdir()
    other = Application("other", add, (COUNTS,), handles={"add": 1})
    stages = [
        executor(COUNT_ONLY, log, SqliteStores(tmp_path)),
        executor(other, log, SqliteStores(tmp_path / "b")),
    ]
    with pytest.raises(StoreFailed):
        Pipeline(stages).run(threading.Event())


def _forgotten(admin: AdminClient, group: str) -> bool:
    try:
        admin.delete_consumer_groups([group])[group].result()
    except Exception:  # noqa: BLE001 - a static member stays until its session ends
        return False
    return True


def _widen(log: Log) -> None:
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
    )

    entry = ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", log.topic, incremental_configs=[entry])
    log.admin.incremental_alter_configs([resource])[resource].result()
