"""A rebuild on Spark equals a replay, and executors continue from it."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from examples.payments.bank import BANK
from penstock.olep.codec import JsonCodec
from penstock.olep.event import Event, request
from penstock.olep.log import open_log
from penstock.olep.replay import replay
from penstock.olep.store import digest
from penstock.olep.store.sqlite import SqliteStores
from penstock.pipeline.lake.ledger import kafka_topic_id
from penstock.pipeline.olep_fold import FoldTask, decode_row, encode_value
from penstock.pipeline.olep_rebuild import rebuild
from penstock.pipeline.spark.kafka import describe_topic
from tests.harness.fleet import wait_for
from tests.olep.bank_harness import RunningExecutor, executor
from tests.pipeline.interruption import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.olep.executor import Executor
    from penstock.olep.fold import Batch
    from tests.pipeline.conftest import PipelineHarness


def requests(chance: random.Random, count: int) -> list[tuple[bytes, Event]]:
    """Account openings, then payments, some repeated; each with its account as key."""
    opening = {"deposit": 1000, "overdraft": 0, "ceiling": None}
    events = [(f"a{n}".encode(), request(f"o{n}", "account.open", opening, time=n)) for n in range(20)]
    for n in range(count):
        payload = {"to": f"a{chance.randrange(20)}", "amount": chance.randrange(1, 90)}
        identity = f"p{n if chance.random() < 0.9 else 0}"
        paid = request(identity, "payment.requested", payload, time=n)
        events.append((f"a{chance.randrange(20)}".encode(), paid))
    return events


@pytest.mark.spark
def test_a_rebuild_equals_a_replay_and_an_executor_continues_from_it(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    topic = harness.make_topic(unique("accounts"), partitions=3)
    codec = JsonCodec()
    payments = requests(random.Random(7), 250)
    events, more = payments[:220], payments[220:]
    harness.send(
        topic, [*(codec.encode(e) for _, e in events), b"broken"], keys=[*(k for k, _ in events), b"a1"]
    )
    log = open_log(harness.client, topic, name="accounts")
    emitted: dict[int, list[tuple[str, bytes, bytes]]] = {}

    def see(partition: int, batch: Batch) -> None:
        emitted.setdefault(partition, []).extend(batch.outgoing)

    expected = replay(BANK, log, on_batch=see)
    offsets = asyncio.run(describe_topic(harness.connection, topic, job="bank"))
    task = FoldTask(BANK, "accounts", log.topic_id, codec, offsets.end, sent={})
    stores = SqliteStores(harness.directory / "stores")

    work = harness.directory / "work"
    with interrupted("pipeline.rebuild.stored"):
        rebuild(harness.session, harness.connection, offsets, task, work, stores)

    done = rebuild(harness.session, harness.connection, offsets, task, work, stores)

    assert kafka_topic_id(offsets.id) == log.topic_id
    assert done.positions == dict(offsets.end)
    for partition in range(3):
        store = stores.open(BANK, log.topic_id, partition)
        assert store.position() == offsets.end[partition]
        assert digest(store, BANK) == expected.digests()[partition]
        unsent = [tuple(out) for each in store.unsent() for out in each.outgoing]
        assert unsent == emitted.get(partition, [])
        store.close()

    harness.send(topic, [codec.encode(e) for _, e in more], keys=[k for k, _ in more])
    with RunningExecutor(executor(BANK, log, stores)) as running:
        wait_for(
            lambda: is_caught_up(running.executor, harness),
            what="the executor to catch up",
            seconds=120,
        )
    after = replay(BANK, log)
    for partition in range(3):
        store = stores.open(BANK, log.topic_id, partition)
        assert digest(store, BANK) == after.digests()[partition]
        store.close()


def is_caught_up(executor: Executor, harness: PipelineHarness) -> bool:
    """Whether every event is applied, and everything emitted is acknowledged."""
    tasks = list(executor.tasks())
    offsets = asyncio.run(describe_topic(harness.connection, executor.log.topic, job="bank"))
    sent = not any(task.unacknowledged for task in tasks)
    return sent and {task.partition: task.position for task in tasks} == dict(offsets.end)


def test_rows_of_state_survive_encoding() -> None:
    row = ("a", 7, None, 1.5, b"\x00\xff", "é")

    assert decode_row(encode_value(row)) == row
    assert encode_value(("a", 1)) == encode_value(["a", 1])
