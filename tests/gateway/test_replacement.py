"""Gateways are killed and replaced, drained and replaced, for minutes, under clients of every kind.

What was acknowledged is there, once and in order; clients surface nothing that they do not call
retriable; a gateway that lives through it all holds no more than before; and what was metered is what
passed, but for what a kill may lose and a repeat may add.
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

from penstock.control.feeder import COMPACTED
from penstock.fleet.passwords import SCRAM_ITERATIONS
from penstock.fleet.security import load_platform_key
from penstock.gateway.shares import REPORT_MS
from penstock.gateway.states_topic import GATEWAY_USER, gateway_rules
from penstock.kafka import acls, users
from penstock.kafka.appending import append
from penstock.kafka.client import Client
from penstock.kafka.connection import Connection
from penstock.kafka.log import bounds, ensure_topic, read
from penstock.kafka.outcomes import all_done
from penstock.kafka.partitions import TopicPartition as Partition
from penstock.kafka.security import Mechanism
from penstock.kafka.topics import NewTopic as KafkaTopic
from penstock.kafka.users import Credential
from penstock.model.errors import PenstockError
from penstock.model.events import Dimension, UsageReport
from penstock.model.keys import STATE_TOPIC
from penstock.model.tenantstate import AccountState, KeyState, TenantState
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
    place_of,
)
from tests.gateway.test_server import place
from tests.ground.fleet import wait_for
from tests.ground.gateway import known_everywhere, new_access
from tests.ground.gateway_process import GatewayFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from penstock.gateway.running import Running
    from tests.gateway.soak_clients import Load
    from tests.ground.fleet import Fleet
    from tests.ground.gateway import Access

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.soak,
    # Some libraries leave the sockets of connections that failed to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
BREATH_SECONDS = (2.0, 8.0)  # between two replacements
READ_SECONDS = 120.0
LOST_SECONDS = REPORT_MS / 1000 + 3.0  # of counting, with a kill: a report, a sweep, and its way
MORE_BYTES_MAX = 24 << 20  # that a process may have grown by
MORE_DESCRIPTORS_MAX = 8
OVERHEAD = 1.6  # of frames, fetches and heartbeats over the bytes of records


@pytest.fixture(autouse=True)
def _swept() -> Iterator[None]:
    """Some libraries keep the sockets of connections that failed; they are not to outlive the test."""
    before = {id(one) for one in _sockets()}
    yield
    for one in _sockets():
        if id(one) not in before:
            one.close()


def _sockets() -> list[socket.socket]:
    return [one for one in gc.get_objects() if type(one) is socket.socket]


async def declared(fleet: Fleet, access: Access, quota: Mapping[str, float] | None = None) -> None:
    """As the control plane does it."""
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
        all_done(await users.alter(client, upsert=[credential]))
        all_done(await acls.create(client, gateway_rules()))
        await ensure_topics(client)
        await ensure_topic(client, KafkaTopic(STATE_TOPIC, 1, configs=COMPACTED))
        await append(client, Partition(STATE_TOPIC, 0), [(state.key, state.to_bytes())])


async def metered(fleet: Fleet, access: Access) -> dict[tuple[str, str], UsageReport]:
    """The last report of each run of each gateway."""
    partition, found = usage_partition(access.tenant.id.encode()), {}
    async with Client(fleet.bootstrap, fleet.security()) as client:
        position, end = await bounds(client, partition)
        while position < end:
            chunk = await read(client, partition, position, wait_ms=100)
            position = chunk.position
            for record in chunk.records:
                report = UsageReport.from_bytes(record.value)
                if report.tenant == access.tenant.id:
                    found[report.gateway, report.incarnation] = report
    return found


@dataclass
class Soak:
    file: GatewayFile
    dice: random.Random
    workers: int = 1
    killed: list[float] = field(default_factory=list)
    drained: int = 0

    def kill(self) -> None:
        """All of a gateway at once; its successor comes when it is gone."""
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


def replaced(file: GatewayFile, one: Running, index: int) -> None:
    dead = one.processes[index].pid
    os.kill(dead, signal.SIGKILL)

    def another() -> bool:
        found = [each for each in file.running() if each.pid == one.pid]
        return bool(found) and found[0].processes[index].pid != dead

    wait_for(another, what="another worker", seconds=READ_SECONDS)


class Survivor:
    """A gateway that nobody kills but one of its workers; what its other processes hold."""

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
    writers = [
        kind(access, topic) for kind, topic in zip((Librdkafka, Transactions, KafkaPython, Aiokafka), topics)
    ]
    reader = Reader(access, topics, group)
    try:
        yield writers, reader
    finally:
        for one in (*writers, reader):
            one.stop()
        for one in (*writers, reader):
            one.join()


def everything(access: Access, topic: str) -> list[list[int]]:
    """All that is committed, by partition, in the order of the log."""
    consumer = Consumer(access.client_config(group_id="nobody", isolation_level="read_committed"))
    found: list[list[int]] = []
    for partition in range(PARTITIONS):
        end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=READ_SECONDS)[1]
        consumer.assign([TopicPartition(topic, partition, 0)])
        rows: list[int] = []
        deadline = time.monotonic() + READ_SECONDS
        while consumer.position([TopicPartition(topic, partition)])[0].offset < end:
            assert time.monotonic() < deadline, f"{topic}-{partition} could not be read to its end"
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None, message.error()
                rows.append(place_of(message.value())[1])
        found.append(rows)
    consumer.close()
    return found


def test_gateways_come_and_go_and_nothing_is_lost(
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
            asyncio.run(known_everywhere(access, topic, PARTITIONS))
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
            wanted = {writer.topic: writer.acknowledged.keys() for writer in writers}
            wait_for(
                lambda: all(rows <= reader.read[topic] for topic, rows in wanted.items()),
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
    """Every acknowledged byte is counted, unless its gateway was killed before it could report it; and
    what is counted beyond are frames, and what was in flight when a connection ended, sent once more."""
    reports = asyncio.run(metered(fleet, access))
    counted = sum(report.used[Dimension.INGRESS_BYTES] for report in reports.values())
    times = sorted(when for writer in writers for when in writer.acknowledged.values())
    lost = sum(any(when - LOST_SECONDS <= t <= when for when in soak.killed) for t in times)
    passed = len(times) * RECORD_BYTES
    repeats = (len(soak.killed) + soak.drained) * len(writers) * 3 * IN_FLIGHT * PARTITIONS * BATCH_BYTES
    print(
        f"{len(times)} records acknowledged, {len(soak.killed)} kills, {soak.drained} drains, "
        f"{len(reports)} runs; {passed} bytes passed, {counted} counted, {lost * RECORD_BYTES} may be lost"
    )
    assert counted >= passed - lost * RECORD_BYTES
    assert counted <= passed * OVERHEAD + repeats
