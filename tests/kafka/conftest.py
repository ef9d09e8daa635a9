"""Clients of the shared fleet, and topics for tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.wire.records import Record, write
from tests.harness.propagation import wait_for_leaders
from tests.kafka.append_batch import append_batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tests.harness.fleet import Fleet

    MakeTopic = Callable[..., Awaitable[str]]
    Produce = Callable[..., Awaitable[int]]


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(fleet.bootstrap, fleet.security()) as one:
        yield one


@pytest.fixture
async def controllers(fleet: Fleet) -> AsyncIterator[Client]:
    """A client of the controller listener."""
    node = next(node for node in fleet.nodes if node.spec.is_controller)
    bootstrap = node.cluster.spec.bootstrap(Listener.CONTROLLER)
    async with Client(bootstrap, security_of(node), controllers=True) as one:
        yield one


@pytest.fixture
def make_topic(fleet: Fleet, client: Client, unique: Callable[[str], str]) -> MakeTopic:
    """`await make_topic(partitions=2)` creates a topic with leaders and returns its name."""

    async def make(**keys: Any) -> str:
        name = unique("topic")
        defaults = {"partitions": 1, "replication_factor": 1} if "replicas" not in keys else {}
        new = topics.NewTopic(name, **{**defaults, **keys})
        results_or_raise(await topics.create(client, [new]))
        await wait_for_leaders(
            responsive_brokers(fleet), fleet.security(), name, len(new.replicas) or new.partitions
        )
        return name

    return make


def responsive_brokers(fleet: Fleet) -> str:
    """Addresses of the brokers that respond: a test may have paused one."""
    nodes = [node for node in fleet.brokers if (identity := node.running()) and not _stopped(identity.pid)]
    return ",".join(node.spec.address(Listener.INTERNAL) for node in nodes)


def _stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


@pytest.fixture
def produce(client: Client) -> Produce:
    """`await produce(topic, b"a", b"b")` appends values and returns the offset of the first."""

    async def produced(topic: str, *values: bytes, partition: int = 0, time_ms: int = 0) -> int:
        first_ms = time_ms or int(time.time() * 1000)
        rows = [Record(i, first_ms + i, None, value) for i, value in enumerate(values)]
        return await append_batch(client, topic, partition, write(rows))

    return produced


@pytest.fixture
def fleet_with_a_paused_broker(fleet: Fleet) -> Iterator[int]:
    """One broker is paused during the test, so that replication to it does not finish."""
    node = fleet.brokers[-1]
    fleet.pause(node.name)
    yield node.spec.id
    fleet.resume(node.name)
    fleet.wait_ready([node])
