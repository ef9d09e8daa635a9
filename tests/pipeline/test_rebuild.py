"""OLEP at scale: state made on Spark equals a replay, and executors go on from it."""

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
from penstock.pipeline.folding import Task, decoded, encoded
from penstock.pipeline.kafka import look_at
from penstock.pipeline.rebuild import kafka_form, rebuild
from tests.ground.fleet import wait_for
from tests.olep.ground import Running, executor

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.olep.executor import Executor
    from penstock.olep.fold import Batch
    from tests.pipeline.conftest import Ground


def requests(chance: random.Random, count: int) -> list[tuple[bytes, Event]]:
    """Accounts, then payments between them, some repeated; each with the account it is for."""
    opening = {"deposit": 1000, "overdraft": 0, "ceiling": None}
    made = [(f"a{n}".encode(), request(f"o{n}", "account.open", opening, time=n)) for n in range(20)]
    for n in range(count):
        payload = {"to": f"a{chance.randrange(20)}", "amount": chance.randrange(1, 90)}
        identity = f"p{n if chance.random() < 0.9 else 0}"
        paid = request(identity, "payment.requested", payload, time=n)
        made.append((f"a{chance.randrange(20)}".encode(), paid))
    return made


@pytest.mark.spark
def test_state_made_on_spark_is_that_of_a_replay_and_an_executor_goes_on_from_it(
    ground: Ground, unique: Callable[[str], str]
) -> None:
    topic = ground.make_topic(unique("accounts"), partitions=3)
    codec = JsonCodec()
    made = requests(random.Random(7), 250)
    events, more = made[:220], made[220:]
    ground.send(
        topic, [*(codec.encode(e) for _, e in events), b"broken"], keys=[*(k for k, _ in events), b"a1"]
    )
    log = open_log(ground.client, topic, name="accounts")
    emitted: dict[int, list[tuple[str, bytes, bytes]]] = {}

    def see(partition: int, batch: Batch) -> None:
        emitted.setdefault(partition, []).extend(batch.outgoing)

    expected = replay(BANK, log, see=see)
    facts = asyncio.run(look_at(ground.connection, topic, job="bank"))
    task = Task(BANK, "accounts", log.topic_id, codec, facts.end, sent={})
    stores = SqliteStores(ground.directory / "stores")

    done = rebuild(ground.session, ground.connection, facts, task, ground.directory / "work", stores)

    assert kafka_form(facts.id) == log.topic_id
    assert done.positions == dict(facts.end)
    for partition in range(3):
        store = stores.open(BANK, log.topic_id, partition)
        assert store.position() == facts.end[partition]
        assert digest(store, BANK) == expected.digests()[partition]
        unsent = [tuple(out) for each in store.unsent() for out in each.outgoing]
        assert unsent == emitted.get(partition, [])
        store.close()

    ground.send(topic, [codec.encode(e) for _, e in more], keys=[k for k, _ in more])
    with Running(executor(BANK, log, stores)) as running:
        wait_for(lambda: level(running.executor, ground), what="the executor to have taken over", seconds=120)
    after = replay(BANK, log)
    for partition in range(3):
        store = stores.open(BANK, log.topic_id, partition)
        assert digest(store, BANK) == after.digests()[partition]
        store.close()


def level(executor: Executor, ground: Ground) -> bool:
    """Whether everything is applied, and what that emitted, too."""
    lanes = list(executor.lanes())
    facts = asyncio.run(look_at(ground.connection, executor.log.topic, job="bank"))
    sent = not any(lane.unacknowledged for lane in lanes)
    return sent and {lane.partition: lane.position for lane in lanes} == dict(facts.end)


def test_rows_of_state_survive_being_text() -> None:
    row = ("a", 7, None, 1.5, b"\x00\xff", "é")

    assert decoded(encoded(row)) == row
    assert encoded(("a", 1)) == encoded(["a", 1])
