"""The sampler process: when it dies, hangs or cannot start, and that it never outlives the service."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import urllib.request
from typing import TYPE_CHECKING

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.kafka.admin import group_offsets, topics
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.kafka.security import Mechanism
from penstock.model.backoff import Backoff
from penstock.model.errors.scale import SamplerExited, SamplerUnavailable
from penstock.model.metric_catalogue import PROCESS, SCALE
from penstock.scale.decision.values import VerdictSummary
from penstock.scale.grpc_service import SERVICE
from penstock.scale.metrics import CallMetrics
from penstock.scale.sampler import supervisor
from penstock.scale.sampler.channel import Kind, read_frame
from penstock.scale.sampler.process import NICENESS, VerdictSender
from penstock.scale.sampler.supervisor import SamplerProcess
from penstock.scale.server import serving
from penstock.scale.settings import ClusterSettings, ScalerSettings
from penstock.scale.verdict_cache import VerdictCache
from penstock.scale.watched_groups import WatchedGroups
from tests.harness.metrics import differences
from tests.harness.propagation import wait_for_topics
from tests.scale.fakes import reference, stub_for, until, value_when

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.scale.server import Running
    from tests.harness.fleet import Fleet

NOWHERE = ScalerSettings({"default": ClusterSettings("127.0.0.1:1")}, "127.0.0.1:0", metrics="127.0.0.1:0")
GONE = "the sampler process is gone: it ended with status -9"


def pid_of(up: Running) -> int:
    assert up.sampler.pid is not None
    return up.sampler.pid


async def health(up: Running, service: str) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return int((await health_pb2_grpc.HealthStub(channel).Check(request)).status)


async def metrics_of(up: Running) -> str:
    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{up.metrics_port}/metrics") as response:
            return str(response.read().decode())

    return await asyncio.to_thread(read)


def cache_at(now: list[float]) -> VerdictCache:
    return VerdictCache(
        frozenset({"default"}), WatchedGroups({"default": 10.0}), CallMetrics(),
        on_watch=lambda watch: None, clock=lambda: now[0],
    )  # fmt: skip


def test_without_a_sampler_the_last_verdict_is_valid_for_three_and_a_half_intervals() -> None:
    now = [1000.0]
    verdicts = cache_at(now)
    watch = verdicts.admit("shop/billing", {"group": "billing"})
    watch.apply_summary(VerdictSummary(1000.0, 3, 3.0, True, None, "Stable"))
    verdicts.sampler_down = GONE

    now[0] = 1035.0
    assert verdicts.current_verdict(watch).replicas == 3
    now[0] = 1036.0
    with pytest.raises(
        SamplerUnavailable, match=r"no sample of group `billing` for 36 s: the sampler process is"
    ):
        verdicts.current_verdict(watch)


def test_without_a_sampler_a_watch_without_samples_is_refused_at_once() -> None:
    verdicts = cache_at([1000.0])
    watch = verdicts.admit("shop/billing", {"group": "billing"})
    verdicts.sampler_down = GONE

    with pytest.raises(SamplerUnavailable, match="no sample of group `billing` yet"):
        verdicts.current_verdict(watch)


async def test_a_killed_sampler_is_noticed_at_once_and_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "RESTART", Backoff(3.0))  # time to check while there is none
    async with serving(NOWHERE) as up:
        first = pid_of(up)
        healthy = await health(up, SERVICE)
        os.kill(first, signal.SIGKILL)
        await until(lambda: up.verdicts.sampler_down, "its death")
        down, unhealthy, alive = up.verdicts.sampler_down, await health(up, SERVICE), await health(up, "")
        metrics_while_down = await metrics_of(up)
        await until(lambda: up.verdicts.sampler_down is None, "a restart")
        again, recovered = pid_of(up), await health(up, SERVICE)
        metrics = await metrics_of(up)

    serving_, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert (healthy, unhealthy, alive, recovered) == (serving_, not_serving, serving_, serving_)
    assert (down, again != first) == (GONE, True)
    assert "penstock_scale_sampler_up 0.0" in metrics_while_down
    assert "penstock_scale_sampler_up 1.0" in metrics
    assert "penstock_scale_sampler_exits_total 1.0" in metrics
    assert "penstock_scale_watches 0.0" in metrics  # from the sampler
    assert differences(metrics, PROCESS, SCALE) == []
    assert ("penstock_ready 0.0" in metrics_while_down, "penstock_ready 1.0" in metrics) == (True, True)


async def test_the_sampler_yields_to_the_service_and_is_not_hit_by_ctrl_c() -> None:
    """Niceness counts within a session only, where Linux schedules sessions as groups (autogroup)."""
    async with serving(NOWHERE) as up:
        pid = pid_of(up)
        niceness, session, group = psutil.Process(pid).nice(), os.getsid(pid), os.getpgid(pid)
        own_niceness = psutil.Process().nice()

    assert niceness == min(own_niceness + NICENESS, 19)
    assert session == os.getsid(0)
    assert group == pid


async def test_the_sampler_ends_with_the_service() -> None:
    async with serving(NOWHERE) as up:
        process = psutil.Process(pid_of(up))

    assert not process.is_running()


async def test_a_sampler_that_exits_before_it_starts_is_an_error() -> None:
    async def set_health(up: bool) -> None:
        raise AssertionError("it is up")

    broken: ScalerSettings = None  # type: ignore[assignment]  # simulates a bug
    with pytest.raises(SamplerExited, match="it ended with status 1"):
        async with SamplerProcess(broken, instance="one").supervised(cache_at([0.0]), set_health):
            raise AssertionError("it runs")


async def test_a_bug_in_the_supervision_ends_the_service_and_is_raised() -> None:
    async def set_health(up: bool) -> None:
        if not up:
            raise RuntimeError("a bug")

    sampler = SamplerProcess(NOWHERE, instance="one")

    async def serve() -> None:
        async with sampler.supervised(cache_at([0.0]), set_health):
            psutil.Process(sampler.pid).kill()
            await asyncio.Event().wait()  # as a service waits until it is stopped

    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(serve(), timeout=60)


async def test_unreachable_clusters_are_sent_with_the_next_heartbeat() -> None:
    parent, child = socket.socketpair()
    reader, parent_writer = await asyncio.open_connection(sock=parent)
    _, child_writer = await asyncio.open_connection(sock=child)
    heartbeats = asyncio.create_task(
        VerdictSender(child_writer).send_heartbeats({"default": "no route to host"})
    )
    async with asyncio.timeout(60):
        first, second = await read_frame(reader), await read_frame(reader)
    heartbeats.cancel()
    await asyncio.gather(heartbeats, return_exceptions=True)
    for writer in (parent_writer, child_writer):
        writer.close()
        await writer.wait_closed()

    assert first == (Kind.UNREACHABLE, b'{"default": "no route to host"}')
    assert second == (Kind.HEARTBEAT, b"")


@pytest.mark.kafka
async def test_a_restarted_sampler_has_its_watches_and_their_history(
    fleet: Fleet, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic, group, config = unique("orders"), unique("billing"), fleet.client_config()
    async with Client(fleet.bootstrap, fleet.security()) as client:
        results_or_raise(await topics.create(client, [topics.NewTopic(topic, 2, 1)]))
        await wait_for_topics(fleet, topic)
        results_or_raise(
            await group_offsets.commit(client, group, {TopicPartition(topic, 0): CommittedOffset(0)})
        )
    (tmp_path / "password").write_text(config["sasl.password"])
    cluster = ClusterSettings(
        config["bootstrap.servers"], 1.0, config["sasl.username"], tmp_path / "password",
        Mechanism(config["sasl.mechanism"]),
    )  # fmt: skip
    settings = ScalerSettings(
        {"default": cluster}, "127.0.0.1:0", samples_cluster="default", samples_topic=unique("lag")
    )
    about = reference(group=group, topic=topic, minReplicas="0")
    async with (
        serving(settings) as up,
        grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel,
    ):
        stub = stub_for(channel)
        before = await value_when(stub, about, lambda value: value > 0)
        (watch,) = up.verdicts.watches
        os.kill(pid_of(up), signal.SIGKILL)
        await until(lambda: up.verdicts.sampler_down, "its death")
        died_at = watch.received_at or 0.0
        await until(lambda: (watch.received_at or 0.0) > died_at, "a sample after the restart", seconds=60)
        after = await value_when(stub, about, lambda value: value > 0)

    assert (before, after) == (1.0, 1.0)
