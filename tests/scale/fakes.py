"""A fake cluster and journal, and a scaler on top of them: everything but the brokers is real."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import _async as health_aio
from grpc_health.v1 import health_pb2
from prometheus_client import generate_latest

from penstock.model.errors.wire import BrokerUnreachable
from penstock.scale.decision.values import GroupState, Log, offsets
from penstock.scale.grpc_service import SERVICE, ExternalScalerStub
from penstock.scale.metrics import CallMetrics
from penstock.scale.proto import externalscaler_pb2 as pb
from penstock.scale.sampler.process import make_loop
from penstock.scale.sampler.records import decoded, encoded
from penstock.scale.sampler.source import GroupSnapshot, Position
from penstock.scale.server import grpc_server, serve_metrics
from penstock.scale.verdict_cache import VerdictCache
from penstock.scale.watched_groups import WatchedGroups

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from penstock.model.errors import PenstockError
    from penstock.scale.sampler.samples_topic import Event, EventHandler, Journal
    from penstock.scale.sampler.source import LagSource
    from penstock.scale.settings import ServerTls

INTERVAL = 0.05  # seconds


@dataclass
class FakeCluster:
    """A `LagSource` with one group and one topic."""

    end: list[int] = field(default_factory=lambda: [100, 100])
    committed: list[int] = field(default_factory=lambda: [100, 100])
    members: int = 2
    state: GroupState = GroupState.STABLE
    group_exists: bool = True
    topic_exists: bool = True
    reachable: bool = True
    marker_count: int = 0
    rounds: int = 0
    arriving: int = 0  # records added to each partition each round, not consumed

    async def groups(
        self, names: Collection[str], *, share: bool
    ) -> dict[str, GroupSnapshot | PenstockError]:
        self._check_reachable()
        self.rounds += 1
        self.end = [end + self.arriving for end in self.end]
        if not self.group_exists:
            return {}
        positions = {"orders": {index: Position(at) for index, at in enumerate(self.committed)}}
        owners = (
            {"orders": {index: index % self.members for index in range(len(self.end))}}
            if self.members
            else {}
        )
        look = GroupSnapshot(self.state, self.members, 1, positions, owners)
        return dict.fromkeys(names, look)

    async def logs(self, topics: Collection[str]) -> dict[str, Log | PenstockError]:
        self._check_reachable()
        log = Log("one", offsets([0] * len(self.end)), offsets(self.end))
        return {topic: log for topic in topics if topic == "orders" and self.topic_exists}

    async def markers(self, topic: str, partition: int, begin: int, end: int) -> int:
        return self.marker_count

    def _check_reachable(self) -> None:
        if not self.reachable:
            raise BrokerUnreachable(address="nowhere:9092", reason="made unreachable by the test")


class FakeJournal:
    """A journal of encoded records that several instances share, with a clock that is not theirs."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, float]] = []  # with the time of the append
        self._appended = asyncio.Condition()

    async def publish(self, events: Sequence[Event]) -> None:
        async with self._appended:
            now = time.monotonic()
            self.records += [(encoded(record, now), now + 10**9) for record in events]
            self._appended.notify_all()

    async def follow(self, take: EventHandler) -> None:
        position, history = 0, len(self.records)
        while True:
            async with self._appended:
                while len(self.records) <= position:
                    await self._appended.wait()
            while position < len(self.records):
                record = decoded(*self.records[position])
                assert record is not None
                await take(record, position >= history)
                position += 1


@dataclass(frozen=True)
class Running:
    """A running scaler that samples in the same event loop."""

    port: int
    verdicts: VerdictCache
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
    """The service and the sampling loop, without a separate process."""
    watches = WatchedGroups(intervals)
    verdicts = VerdictCache(
        frozenset(sources), watches, CallMetrics(), on_watch=lambda watch: loop.watch_requested(watch)
    )
    loop = make_loop(sources, journal, watches, intervals, instance=instance, report=verdicts.notify)
    verdicts.unreachable = loop.unreachable
    health = health_aio.HealthServicer()
    await health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)

    async def page() -> bytes:
        return generate_latest(verdicts.metrics.registry) + generate_latest(loop.metrics.registry)

    running_loop = asyncio.create_task(loop.run())
    try:
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(grpc_server(verdicts, health, listen, tls))
            metrics_port = (
                await stack.enter_async_context(serve_metrics(metrics, page, lambda: "")) if metrics else None
            )
            yield Running(port, verdicts, metrics_port)
    finally:
        running_loop.cancel()
        await asyncio.gather(running_loop, return_exceptions=True)


@asynccontextmanager
async def scaler(
    cluster: FakeCluster, journal: Journal, *, instance: str = "one", interval: float = INTERVAL
) -> AsyncIterator[tuple[Running, ExternalScalerStub]]:
    async with (
        served(
            {"default": cluster}, journal, {"default": interval}, listen="127.0.0.1:0", instance=instance
        ) as up,
        grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel,
    ):
        yield up, stub_for(channel)


def stub_for(channel: grpc.aio.Channel) -> ExternalScalerStub:
    return ExternalScalerStub(channel)


def reference(**metadata: str) -> pb.ScaledObjectRef:
    trigger = {"group": "billing", "topic": "orders", **metadata}
    return pb.ScaledObjectRef(name="billing", namespace="shop", scalerMetadata=trigger)


# Times scaled down with the interval: the same rules, hundreds of times as fast.
FAST = {
    "warmUpSeconds": "0.1", "sustainSeconds": "0.3", "settleSeconds": "0.1", "lowSeconds": "0.3",
    "coolDownSeconds": "0.3", "scaleUpIntervalSeconds": "0.3", "idleSeconds": "0.3", "stallSeconds": "60",
}  # fmt: skip


async def metric_value(stub: ExternalScalerStub, about: pb.ScaledObjectRef) -> float:
    request = pb.GetMetricsRequest(scaledObjectRef=about, metricName="persistent-lag-replicas")
    response = await stub.GetMetrics(request)
    return float(response.metricValues[0].metricValueFloat)


async def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


async def value_when(
    stub: ExternalScalerStub, about: pb.ScaledObjectRef, expected: Callable[[float], bool]
) -> float:
    """Waits until the metric value is as expected; ignores UNAVAILABLE meanwhile."""
    async with asyncio.timeout(60):
        while True:
            try:
                value = await metric_value(stub, about)
            except grpc.aio.AioRpcError as failure:
                if failure.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            else:
                if expected(value):
                    return value
            await asyncio.sleep(0.01)
