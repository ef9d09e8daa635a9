"""Gateways are killed, drained and replaced for minutes, under clients of every kind.

Acknowledged records exist once and in order, clients report only retriable errors, and a surviving gateway
holds no more resources than before. Metered usage equals what passed, except what a kill may lose and a retry
may add.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import socket
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.control.gateways.state_publisher import COMPACTED
from penstock.fleet.credentials.certificates import load_platform_key
from penstock.fleet.credentials.passwords import SCRAM_ITERATIONS
from penstock.gateway.limits.quota_shares import REPORT_MS
from penstock.gateway.process.tenant_source import GATEWAY_USER, gateway_acls
from penstock.kafka.admin import acls, users
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition as Partition
from penstock.kafka.admin.topics import NewTopic as KafkaTopic
from penstock.kafka.admin.users import Credential
from penstock.kafka.append import append
from penstock.kafka.client import Client
from penstock.kafka.connection import Connection
from penstock.kafka.partition_log import bounds, ensure_topic, read
from penstock.kafka.security import Mechanism
from penstock.model.errors import PenstockError
from penstock.model.events import Dimension, UsageReport
from penstock.model.key_names import STATE_TOPIC
from penstock.model.tenant_state import AccountState, KeyState, TenantState
from penstock.quota.topics import ensure_topics, usage_partition
from tests.gateway.soak_clients import (
    BATCH_BYTES,
    IN_FLIGHT,
    PARTITIONS,
    RECORD_BYTES,
    Aiokafka,
    KafkaPython,
    Librdkafka,
    Reader,
    Transactions,
    position_of,
)
from tests.gateway.test_server import place
from tests.harness.fleet import wait_for
from tests.harness.gateway import new_access, wait_for_topic
from tests.harness.gateway_process import GatewayFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from penstock.gateway.process.run_file import RunFile
    from tests.gateway.soak_clients import Load
    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.soak,
    # Some libraries leave sockets of failed connections to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
BREATH_SECONDS = (2.0, 8.0)  # between two replacements
READ_SECONDS = 120.0
LOST_SECONDS = REPORT_MS / 1000 + 3.0  # of usage that a kill may lose: a report, a sweep, and its way
MORE_BYTES_MAX = 24 << 20  # growth allowed for a process
MORE_DESCRIPTORS_MAX = 8
OVERHEAD = 1.6  # of frames, fetches and heartbeats over record bytes


@pytest.fixture(autouse=True)
def _swept() -> Iterator[None]:
    """Some libraries keep sockets of failed connections; these must not outlive the test."""
    before = {id(one) for one in _sockets()}
    yield
    for one in _sockets():
        if id(one) not in before:
            one.close()


def _sockets() -> list[socket.socket]:
    return [one for one in gc.get_objects() if type(one) is socket.socket]


async def declared(fleet: Fleet, access: Access, quota: Mapping[str, float] | None = None) -> None:
    """Provision it as the control plane does."""
    tenant, platform = access.tenant, load_platform_key(fleet.local.layout.secrets)
    credential = Credential(
        GATEWAY_USER, platform.password(GATEWAY_USER), Mechanism.SCRAM_SHA_512, SCRAM_ITERATIONS
    )
    state = TenantState(
        id=tenant.id,
        version=1,
        accounts=tuple(AccountState(one.id, one.generation) for one in tenant.accounts.values()),
        keys=tuple(KeyState(key.id, key.account, key.secret_sha256.hex()) for key in tenant.keys),
        quota=dict(quota or {}),
    ).to_record()
    async with Client(fleet.bootstrap, fleet.security()) as client:
        results_or_raise(await users.alter(client, upsert=[credential]))
        results_or_raise(await acls.create(client, gateway_acls()))
        await ensure_topics(client)
        await ensure_topic(client, KafkaTopic(STATE_TOPIC, 1, configs=COMPACTED))
        await append(client, Partition(STATE_TOPIC, 0), [(state.key, state.to_bytes())])


async def metered(fleet: Fleet, access: Access) -> dict[tuple[str, str], UsageReport]:
    """The last report of each run of each gateway."""
    partition, collected = usage_partition(access.tenant.id.encode()), {}
    async with Client(fleet.bootstrap, fleet.security()) as client:
        position, end = await bounds(client, partition)
        while position < end:
            chunk = await read(client, partition, position, wait_ms=100)
            position = chunk.position
            for record in chunk.records:
                report = UsageReport.from_bytes(record.value)
                if report.tenant == access.tenant.id:
                    collected[report.gateway, report.incarnation] = report
    return collected


@dataclass
class Soak:
    file: GatewayFile
    dice: random.Random
    workers: int = 1
    killed: list[float] = field(default_factory=list)
    drained: int = 0

    def kill(self) -> None:
        """Kill all processes of a gateway; its successor starts afterwards."""
        (one,) = self.file.running()
        self.killed.append(time.monotonic())
        for pid in {one.pid, *(process.pid for process in one.processes)}:
            os.kill(pid, signal.SIGKILL)
        self.file.wait(one)
        self.file.start(self.workers)

    def kill_worker(self) -> None:
        (one,) = self.file.running()
        if len(one.processes) < 2:
            return
        self.killed.append(time.monotonic())
        replaced(self.file, one, self.dice.randrange(len(one.processes)))

    def drain(self) -> None:
        (one,) = self.file.running()
        self.file.start(self.workers)
        os.kill(one.pid, signal.SIGTERM)
        assert self.file.wait(one) == 0
        self.drained += 1


def replaced(file: GatewayFile, one: RunFile, index: int) -> None:
    dead = one.processes[index].pid
    os.kill(dead, signal.SIGKILL)

    def another() -> bool:
        collected = [each for each in file.running() if each.pid == one.pid]
        return bool(collected) and collected[0].processes[index].pid != dead

    wait_for(another, what="another worker", seconds=READ_SECONDS)


class Survivor:
    """A gateway of which only workers are killed; what its other processes hold."""

    def __init__(self, file: GatewayFile, access: Access) -> None:
        self.file, self.access = file, access
        self.one = file.start(2)
        self.processes = [psutil.Process(pid) for pid in (self.one.pid, self.one.processes[0].pid)]
        for _ in range(3):
            self.come_and_go()
        self.before = self.held()

    def held(self) -> list[tuple[int, int]]:
        return [(process.memory_info().rss, process.num_fds()) for process in self.processes]

    def come_and_go(self) -> None:
        asyncio.run(self._come_and_go())

    async def _come_and_go(self) -> None:
        opened = await asyncio.gather(
            *(Connection.open(*place(self.access, n % 3), self.access.security()) for n in range(30)),
            return_exceptions=True,
        )
        for connection in opened:
            if isinstance(connection, BaseException):
                assert isinstance(connection, PenstockError), connection
                continue
            async with connection:
                await connection.call("Metadata", {"Topics": None})

    def kill_the_other(self) -> None:
        (self.one,) = self.file.running()
        replaced(self.file, self.one, 1)


@contextmanager
def load(access: Access, topics: list[str], group: str) -> Iterator[tuple[list[Load], Reader]]:
    kinds: tuple[Callable[[Access, str], Load], ...] = (Librdkafka, Transactions, KafkaPython, Aiokafka)
    writers = [kind(access, topic) for kind, topic in zip(kinds, topics)]
    reader = Reader(access, topics, group)
    try:
        yield writers, reader
    finally:
        for one in (*writers, reader):
            one.stop()
        for one in (*writers, reader):
            one.join()


def everything(access: Access, topic: str) -> list[list[int]]:
    """All committed records, by partition, in log order."""
    consumer = Consumer(access.client_config(group_id="nobody", isolation_level="read_committed"))
    collected: list[list[int]] = []
    for partition in range(PARTITIONS):
        end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=READ_SECONDS)[1]
        consumer.assign([TopicPartition(topic, partition, 0)])
        rows: list[int] = []
        deadline = time.monotonic() + READ_SECONDS
        while consumer.position([TopicPartition(topic, partition)])[0].offset < end:
            assert time.monotonic() < deadline, f"{topic}-{partition} could not be read to its end"
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None, message.error()
                rows.append(position_of(message.value())[1])
        collected.append(rows)
    consumer.close()
    return collected


def test_nothing_is_lost_while_gateways_are_replaced(
    fleet: Fleet, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    dice = random.Random(seed := os.environ.get("SOAK_SEED", os.urandom(4).hex()))
    access = new_access()
    asyncio.run(declared(fleet, access))
    file = GatewayFile(fleet, tmp_path / "gateway.yaml", {"tenants_from": "state"})
    steady = GatewayFile(fleet, tmp_path / "steady.yaml", {"tenants_from": "state", "gateway": "gw-2"})
    with ExitStack() as ending:
        for one in (file, steady):
            ending.callback(one.stop)
        (access,) = file.write(access)
        (another_way,) = steady.write(access)
        soak = Soak(file, dice)
        file.start(1)
        survivor = Survivor(steady, another_way)
        topics = [unique(name) for name in ("librdkafka", "transactions", "kafka-python", "aiokafka")]
        admin = AdminClient(access.client_config())
        for made in admin.create_topics([NewTopic(topic, PARTITIONS, 3) for topic in topics]).values():
            made.result(READ_SECONDS)
        for topic in topics:
            asyncio.run(wait_for_topic(access, topic, PARTITIONS))
        with load(access, topics, unique("readers")) as (writers, reader):
            # To find its cluster for the first time, aiokafka tries each address once.
            wait_for(
                lambda: all(writer.acknowledged or writer.surfaced for writer in writers),
                what="every client to begin",
                seconds=READ_SECONDS,
            )
            began = time.monotonic()
            while (passed := time.monotonic() - began) < SECONDS:
                soak.workers = 1 if passed < SECONDS / 2 else 2
                dice.choice((soak.kill, soak.drain, soak.drain, soak.kill_worker))()
                survivor.come_and_go()
                if dice.random() < 0.2:
                    survivor.kill_the_other()
                time.sleep(dice.uniform(*BREATH_SECONDS))
            for writer in writers:
                writer.stop()
            for writer in writers:
                writer.join()
            acknowledged = {writer.topic: writer.acknowledged.keys() for writer in writers}
            wait_for(
                lambda: all(rows <= reader.read[topic] for topic, rows in acknowledged.items()),
                what=f"the group to have read everything (seed {seed})",
                seconds=READ_SECONDS,
            )
        judge_clients(access, writers, reader, seed)
        judge_survivor(survivor)
        (last,) = file.running()
        os.kill(last.pid, signal.SIGTERM)
        assert file.wait(last) == 0
        judge_metering(fleet, access, writers, soak)


def judge_clients(access: Access, writers: list[Load], reader: Reader, seed: str) -> None:
    assert [(type(one).__name__, one.surfaced) for one in (*writers, reader) if one.surfaced] == [], seed
    for writer in writers:
        rows = everything(access, writer.topic)
        kept = {(partition, row) for partition, some in enumerate(rows) for row in some}
        assert all(some == sorted(set(some)) for some in rows), f"{writer.topic}: order, seed {seed}"
        assert writer.acknowledged.keys() <= kept, f"{writer.topic}: lost, seed {seed}"
        assert len(writer.acknowledged) > PARTITIONS
        if isinstance(writer, Transactions):
            assert not writer.aborted & kept
            assert kept <= writer.acknowledged.keys() | writer.unsure


def judge_survivor(survivor: Survivor) -> None:
    wait_for(lambda: survivor.held()[1][1] <= survivor.before[1][1] + MORE_DESCRIPTORS_MAX, what="its end")
    for (bytes_before, _), (bytes_after, descriptors), (_, descriptors_before) in zip(
        survivor.before, survivor.held(), survivor.before, strict=True
    ):
        assert bytes_after <= bytes_before + MORE_BYTES_MAX
        assert descriptors <= descriptors_before + MORE_DESCRIPTORS_MAX


def judge_metering(fleet: Fleet, access: Access, writers: list[Load], soak: Soak) -> None:
    """Every acknowledged byte is counted, unless its gateway was killed before it could report it. Anything
    counted beyond is framing, or was in flight when a connection closed and was sent again.
    """
    reports = asyncio.run(metered(fleet, access))
    counted = sum(report.used[Dimension.INGRESS_BYTES] for report in reports.values())
    times = sorted(when for writer in writers for when in writer.acknowledged.values())
    lost = sum(any(when - LOST_SECONDS <= t <= when for when in soak.killed) for t in times)
    passed = len(times) * RECORD_BYTES
    retried = (len(soak.killed) + soak.drained) * len(writers) * 3 * IN_FLIGHT * PARTITIONS * BATCH_BYTES
    print(
        f"{len(times)} records acknowledged, {len(soak.killed)} kills, {soak.drained} drains, "
        f"{len(reports)} runs; {passed} bytes passed, {counted} counted, {lost * RECORD_BYTES} may be lost"
    )
    assert counted >= passed - lost * RECORD_BYTES
    assert counted <= passed * OVERHEAD + retried
