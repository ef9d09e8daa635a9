"""Exactly once: at every moment, the visible outputs are those of the records that the offsets cover.

The pure tests check this after each transaction. Those with a real Kafka kill the member in between, and
continue until every record has its output: once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.consume import Output, ParallelConsumer, Record, fault_points
from penstock.consume.testing import MemoryKafka, MemoryProducer
from penstock.model import offset_map
from tests.consume.conftest import KafkaCluster
from tests.consume.journal import ended, lines
from tests.consume.test_consumer import QUICK, until
from tests.consume.test_kill import PROTOCOLS, SHORT_SESSIONS
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet
    from tests.harness.processes import Processes

NEVER = 600.0  # seconds between transactions: only a rebalance commits


class Checked(MemoryProducer):
    """After each transaction, compares the visible outputs with the records that the offsets cover."""

    breaches: list[str]

    def commit_transaction(self, timeout: float = 0) -> None:
        super().commit_transaction(timeout)
        outputs, covered = Counter(self._kafka.values("copies")), Counter(covered_values(self._kafka))
        if outputs != covered:
            self.breaches.append(f"visible {outputs}, covered {covered}")


def covered_values(kafka: MemoryKafka) -> list[bytes | None]:
    """The values of the records that the group's offsets and offset maps list as done."""
    values = []
    for message in kafka.messages("orders"):
        offset, metadata = kafka.committed("g", "orders", message.partition()) or (0, "")
        stored = offset_map.decode(offset, metadata)
        if message.offset() < offset or (stored is not None and stored.done(message.offset())):
            values.append(message.value())
    return values


@pytest.fixture
def kafka() -> MemoryKafka:
    cluster = MemoryKafka()
    cluster.create("orders", partitions=2)
    return cluster


def checked_consumer(kafka: MemoryKafka, **options: Any) -> tuple[ParallelConsumer, list[str]]:
    breaches: list[str] = []

    def producer(properties: dict[str, Any]) -> Checked:
        made = Checked(kafka, properties)
        made.breaches = breaches
        return made

    clients = kafka.clients | {"producer_client": producer}
    options = QUICK | clients | {"transactional_id": "t"} | options
    return ParallelConsumer(kafka.properties("g"), topics=["orders"], **options), breaches


def write(kafka: MemoryKafka, partition: int, *values: str) -> None:
    for value in values:
        kafka.write("orders", value, key=value, partition=partition)


async def test_a_revoke_of_one_partition_commits_the_offsets_of_all_with_their_outputs(
    kafka: MemoryKafka,
) -> None:
    consumer, breaches = checked_consumer(kafka, transaction_seconds=NEVER)
    handled: list[bytes] = []

    @consumer.handler
    async def copy(record: Record) -> Output:
        handled.append(record.value)
        return Output("copies", record.value)

    async with consumer:
        write(kafka, 0, "a1")
        await until(lambda: len(handled) == 1)
        write(kafka, 0, "a2", "a3")
        write(kafka, 1, "b1", "b2")
        await until(lambda: len(handled) == 5)
        kafka.revoke("orders", 1)
        await until(lambda: len(kafka.values("copies")) == 5)
        kafka.assign("orders", 1)
    assert breaches == []
    assert Counter(kafka.values("copies")) == Counter([b"a1", b"a2", b"a3", b"b1", b"b2"])


async def test_outputs_published_after_the_reply_to_a_revoke_are_in_the_next_transaction(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, breaches = checked_consumer(kafka, transaction_seconds=NEVER)
    go_on, loop = asyncio.Event(), asyncio.get_running_loop()

    @consumer.handler
    async def copy(record: Record) -> Output:
        if record.value == b"a2":
            await go_on.wait()
        return Output("copies", record.value)

    def wait_for_an_output(point: str) -> None:
        """On the client's thread: the reply is here, and now an output is queued behind it."""
        orchestrator = consumer._orchestrator
        if point == fault_points.DURING_REVOKE and orchestrator is not None and not go_on.is_set():
            loop.call_soon_threadsafe(go_on.set)
            wait_for(lambda: orchestrator.proxy._commands, what="an output")

    monkeypatch.setattr(fault_points, "reach", wait_for_an_output)
    write(kafka, 0, "a1", "a2")
    write(kafka, 1, "b1")
    async with consumer:
        await until(lambda: consumer.inspect().counts["received"] == 3)
        await until(lambda: [each.offset for each in consumer.inspect().running] == [1])
        kafka.revoke("orders", 1)
        await until(lambda: kafka.values("copies"))
    assert breaches == []
    assert sorted(filter(None, kafka.values("copies"))) == [b"a1", b"a2", b"b1"]


async def test_a_batch_that_lost_a_partition_runs_again_without_it(kafka: MemoryKafka) -> None:
    consumer, breaches = checked_consumer(kafka, transaction_seconds=0.01, revoke_seconds=0.05)
    batches: list[list[bytes]] = []
    revoked = threading.Event()

    @consumer.batch_handler(records=10)
    def copy(batch: list[Record]) -> list[Output]:
        batches.append([record.value for record in batch])
        if len(batches) == 1:
            assert revoked.wait(60)
        return [Output("copies", record.value) for record in batch]

    write(kafka, 0, "a1", "a2")
    write(kafka, 1, "b1")
    async with consumer:
        await until(lambda: batches)
        kafka.revoke("orders", 1)
        await until(lambda: len(kafka.members[0].positions) == 1)
        revoked.set()
        await until(lambda: len(kafka.values("copies")) == 2)
        kafka.assign("orders", 1)
        await kafka.until_committed("g", "orders")
    assert breaches == []
    assert sorted(filter(None, kafka.values("copies"))) == [b"a1", b"a2", b"b1"]


# With a real Kafka, and kill -9 in between


class TwoMembers:
    """A transactional member that has all partitions, and a second one that takes some of them."""

    def __init__(
        self, cluster: KafkaCluster, processes: Processes, folder: Path, properties: dict[str, Any]
    ) -> None:
        self.cluster, self.processes, self.properties = cluster, processes, properties
        self.topic, self.copies, self.group = cluster.topic(4), cluster.topic(1), cluster.unique("group")
        self.journal, self.gate = folder / "journal", folder / "gate"

    def start(self, name: str, **plan: Any) -> Any:
        options = {
            "transactional_id": f"{self.group}-{name}", "transaction_seconds": 0.1, "revoke_seconds": 0.5,
            "producer": {"transaction.timeout.ms": 60_000},
        } | plan.pop("options", {})  # fmt: skip
        static = {} if "group.protocol" in self.properties else {"group.instance.id": name}
        plan |= {
            "properties": self.cluster.fleet.client_config()
            | {"group.id": self.group} | static | self.properties,
            "topics": [self.topic], "journal": str(self.journal), "output": self.copies,
            "wait_for": str(self.gate), "options": options,
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.consume.member", json.dumps(plan)]
        return self.processes.start(command, env=dict(os.environ))

    def write(self, numbers: range) -> None:
        for partition in range(4):
            rows = [(str(number), str(number)) for number in numbers if number % 4 == partition]
            self.cluster.write(self.topic, rows, partition=partition)

    def until_ended(self, count: int) -> None:
        wait_for(lambda: len(ended(lines(self.journal))) >= count, what=f"{count} records", seconds=90)

    def until_some_are_committed(self) -> None:
        """The first transaction after the rebalance: the revoked partitions are committed to their end."""
        ends = self.cluster.ends(self.topic, 4)

        def some() -> bool:
            stored = self.cluster.committed(self.group, self.topic, 4)
            return any(stored[number].offset == end for number, end in ends.items())

        wait_for(some, what="a partition to be committed", seconds=90)

    def assert_each_output_once(self, count: int) -> None:
        done = lambda: self.cluster.all_committed(self.group, self.topic, 4)  # noqa: E731
        wait_for(done, what="everything to be committed", seconds=120)
        written = self.cluster.read([self.copies], count, **{"isolation.level": "read_committed"})
        assert sorted(int(message.value()) for message in written) == list(range(count))


def revoke_then_kill(members: TwoMembers) -> None:
    """Outputs of all partitions are in one open transaction when the second member takes two of them."""
    members.write(range(8))
    first = members.start("a", options={"transaction_seconds": NEVER}, wait_after=7)
    members.until_ended(8)
    members.write(range(8, 40))
    members.gate.touch()
    members.until_ended(40)
    members.start("b")
    members.until_some_are_committed()
    members.processes.kill(first.pid)
    members.start("a")
    members.assert_each_output_once(40)


def lose_in_a_batch_then_kill(members: TwoMembers) -> None:
    """The second member takes two partitions while a batch with records of all four runs on a thread."""
    members.write(range(40))
    first = members.start("a", batch_records=40, linger_seconds=NEVER)
    wait_for(
        lambda: len({line.partition for line in lines(members.journal)}) == 4, what="a batch", seconds=90
    )
    second = members.start("b", wait_after=-1)
    wait_for(
        lambda: any(line.pid == second.pid for line in lines(members.journal)), what="a revoke", seconds=90
    )
    members.gate.touch()
    members.until_ended(40)
    members.until_some_are_committed()
    members.processes.kill(first.pid)
    members.start("a", batch_records=40)
    members.assert_each_output_once(40)


@pytest.mark.kafka
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("scenario", [revoke_then_kill, lose_in_a_batch_then_kill])
def test_each_output_is_visible_once_after_a_rebalance_and_a_kill(
    make_fleet: Callable[..., Fleet],
    request: pytest.FixtureRequest,
    unique: Callable[[str], str],
    processes: Processes,
    tmp_path: Path,
    scenario: Callable[[TwoMembers], None],
    name: str,
) -> None:
    if name == "kip-848":  # the broker sets the session time-out
        fleet = make_fleet(combined=True, brokers=1, zones=["a"], config=SHORT_SESSIONS)
    else:
        fleet = request.getfixturevalue("fleet")
    cluster = KafkaCluster(fleet, unique)
    scenario(TwoMembers(cluster, processes, tmp_path, PROTOCOLS[name]))
    cluster.close()
