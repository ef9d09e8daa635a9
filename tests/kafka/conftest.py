"""Clients of the shared fleet, and topics to try calls on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.kafka import topics
from penstock.kafka.client import Client
from penstock.kafka.outcomes import all_done
from penstock.wire.records import Record, write
from tests.ground.topics import led_everywhere
from tests.kafka.appending import append

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tests.ground.fleet import Fleet

    MakeTopic = Callable[..., Awaitable[str]]
    Produce = Callable[..., Awaitable[int]]


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(fleet.bootstrap, fleet.security()) as one:
        yield one


@pytest.fixture
async def controllers(fleet: Fleet) -> AsyncIterator[Client]:
    """A client of the controllers' own listener."""
    node = next(node for node in fleet.nodes if node.spec.is_controller)
    bootstrap = node.cluster.spec.bootstrap(Listener.CONTROLLER)
    async with Client(bootstrap, security_of(node), controllers=True) as one:
        yield one


@pytest.fixture
def make_topic(fleet: Fleet, client: Client, unique: Callable[[str], str]) -> MakeTopic:
    """`await make_topic(partitions=2)` is the name of a new topic, led and ready."""

    async def make(**keys: Any) -> str:
        name = unique("topic")
        wanted = {"partitions": 1, "replication_factor": 1} if "replicas" not in keys else {}
        new = topics.NewTopic(name, **{**wanted, **keys})
        all_done(await topics.create(client, [new]))
        await led_everywhere(awake(fleet), fleet.security(), name, len(new.replicas) or new.partitions)
        return name

    return make


def awake(fleet: Fleet) -> str:
    """The brokers that can be asked: a test may have paused one."""
    found = [node for node in fleet.brokers if (identity := node.running()) and not _stopped(identity.pid)]
    return ",".join(node.spec.address(Listener.INTERNAL) for node in found)


def _stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


@pytest.fixture
def produce(client: Client) -> Produce:
    """`await produce(topic, b"a", b"b")` appends values to a partition; the first one's offset."""

    async def produced(topic: str, *values: bytes, partition: int = 0, time_ms: int = 0) -> int:
        first_ms = time_ms or int(time.time() * 1000)
        rows = [Record(i, first_ms + i, None, value) for i, value in enumerate(values)]
        return await append(client, topic, partition, write(rows))

    return produced


@pytest.fixture
def fleet_with_a_paused_broker(fleet: Fleet) -> Iterator[int]:
    """One broker stands still for the time of the test: what is to be copied there takes its time."""
    node = fleet.brokers[-1]
    fleet.pause(node.name)
    yield node.spec.id
    fleet.resume(node.name)
    fleet.wait_ready([node])
