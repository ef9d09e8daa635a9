"""A cluster, a topic and a scaler of pretence: everything but the brokers is real."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import _async as health_aio
from grpc_health.v1 import health_pb2
from prometheus_client import generate_latest

from penstock.model.errors.wire import BrokerUnreachable
from penstock.scale.board import Board
from penstock.scale.metrics import CallMetrics
from penstock.scale.page import page_served
from penstock.scale.proto import externalscaler_pb2 as pb
from penstock.scale.proto.externalscaler_pb2_grpc import ExternalScalerStub
from penstock.scale.records import decoded, encoded
from penstock.scale.sampling import looped
from penstock.scale.server import SERVICE, answering
from penstock.scale.source import GroupLook, Position
from penstock.scale.values import GroupState, Log, offsets
from penstock.scale.watches import Watches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from penstock.scale.journal import Journal, Taker, Told
    from penstock.scale.settings import ServerTls
    from penstock.scale.source import LagSource

INTERVAL = 0.05  # seconds: the rules are tested in scenarios, here only that they are asked


@dataclass
class PretendCluster:
    """A `LagSource`: one group, one topic, unless a test says otherwise."""

    end: list[int] = field(default_factory=lambda: [100, 100])
    committed: list[int] = field(default_factory=lambda: [100, 100])
    members: int = 2
    state: GroupState = GroupState.STABLE
    there: bool = True  # the group exists
    topic_there: bool = True
    reachable: bool = True
    marked: int = 0
    looks: int = 0
    arriving: int = 0  # records a look, each partition, that nobody consumes

    async def groups(self, names: Collection[str], *, share: bool) -> dict[str, GroupLook | None]:
        self._reach()
        self.looks += 1
        self.end = [end + self.arriving for end in self.end]
        if not self.there:
            return {}
        positions = {"orders": {index: Position(at) for index, at in enumerate(self.committed)}}
        owners = (
            {"orders": {index: index % self.members for index in range(len(self.end))}}
            if self.members
            else {}
        )
        look = GroupLook(self.state, self.members, 1, positions, owners)
        return dict.fromkeys(names, look)

    async def logs(self, topics: Collection[str]) -> dict[str, Log | None]:
        self._reach()
        log = Log("one", offsets([0] * len(self.end)), offsets(self.end))
        return {topic: log for topic in topics if topic == "orders" and self.topic_there}

    async def markers(self, topic: str, partition: int, begin: int, end: int) -> int:
        return self.marked

    async def close(self) -> None:
        """Nothing is open."""

    def _reach(self) -> None:
        if not self.reachable:
            raise BrokerUnreachable(address="nowhere:9092", reason="a test said so")


class PretendTopic:
    """A journal that several instances share, bytes and all."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self._grown = asyncio.Condition()

    async def publish(self, told: Sequence[Told]) -> None:
        async with self._grown:
            self.records += [encoded(record) for record in told]
            self._grown.notify_all()

    async def follow(self, take: Taker) -> None:
        position, history = 0, len(self.records)
        while True:
            async with self._grown:
                while len(self.records) <= position:
                    await self._grown.wait()
            while position < len(self.records):
                record = decoded(self.records[position])
                assert record is not None
                await take(record, position >= history)
                position += 1


@dataclass(frozen=True)
class Running:
    """A scaler that answers, and samples in the same event loop."""

    port: int
    board: Board
    metrics_port: int | None


@asynccontextmanager
async def served(
    sources: Mapping[str, LagSource],
    journal: Journal,
    intervals: Mapping[str, float],
    *,
    listen: str,
    tls: ServerTls | None = None,
    metrics: str | None = None,
    instance: str = "one",
) -> AsyncIterator[Running]:
    """The service and its sampling, without the process and the link between the two."""
    watches = Watches(intervals)
    board = Board(frozenset(sources), watches, CallMetrics(), wish=lambda watch: loop.want(watch))
    loop = looped(sources, journal, watches, intervals, instance=instance, report=board.notify)
    board.unseen = loop.unseen
    health = health_aio.HealthServicer()
    await health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)

    async def page() -> bytes:
        return generate_latest(board.metrics.registry) + generate_latest(loop.metrics.registry)

    beating = asyncio.create_task(loop.run())
    try:
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(answering(board, health, listen, tls))
            metrics_port = await stack.enter_async_context(page_served(metrics, page)) if metrics else None
            yield Running(port, board, metrics_port)
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


@asynccontextmanager
async def scaler(
    cluster: PretendCluster, journal: Journal, *, instance: str = "one", interval: float = INTERVAL
) -> AsyncIterator[tuple[Running, ExternalScalerStub]]:
    async with (
        served(
            {"default": cluster}, journal, {"default": interval}, listen="127.0.0.1:0", instance=instance
        ) as up,
        grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel,
    ):
        yield up, ExternalScalerStub(channel)


def reference(**metadata: str) -> pb.ScaledObjectRef:
    wishes = {"group": "billing", "topic": "orders", **metadata}
    return pb.ScaledObjectRef(name="billing", namespace="shop", scalerMetadata=wishes)


# Seconds scaled down with the interval: the same rules, fifty times as fast.
HASTY = {
    "warmUpSeconds": "0.1", "sustainSeconds": "0.3", "settleSeconds": "0.1", "lowSeconds": "0.3",
    "coolDownSeconds": "0.3", "scaleUpIntervalSeconds": "0.3", "idleSeconds": "0.3", "stallSeconds": "60",
}  # fmt: skip


async def asked(stub: ExternalScalerStub, about: pb.ScaledObjectRef) -> float:
    request = pb.GetMetricsRequest(scaledObjectRef=about, metricName="persistent-lag-replicas")
    answer = await stub.GetMetrics(request)
    return float(answer.metricValues[0].metricValueFloat)


async def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


async def value_when(
    stub: ExternalScalerStub, about: pb.ScaledObjectRef, wanted: Callable[[float], bool]
) -> float:
    """The value, once it is as wanted; errors on the way are waited out."""
    async with asyncio.timeout(60):
        while True:
            try:
                value = await asked(stub, about)
            except grpc.aio.AioRpcError as failure:
                if failure.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            else:
                if wanted(value):
                    return value
            await asyncio.sleep(0.01)
