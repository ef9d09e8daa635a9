"""The sampler's process: what happens when it dies, hangs, or cannot begin; and that nothing stays."""

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

from penstock.kafka import commits, topics
from penstock.kafka.client import Client
from penstock.kafka.commits import Committed
from penstock.kafka.outcomes import all_done
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.security import Mechanism
from penstock.model.errors.scale import SamplerDown, SamplerGone
from penstock.scale import supervisor
from penstock.scale.board import Board
from penstock.scale.link import Kind, next_frame
from penstock.scale.metrics import CallMetrics
from penstock.scale.proto.externalscaler_pb2_grpc import ExternalScalerStub
from penstock.scale.sampling import Teller
from penstock.scale.server import SERVICE, serving
from penstock.scale.settings import ClusterSettings, ScalerSettings
from penstock.scale.supervisor import SamplerProcess
from penstock.scale.values import Standing
from penstock.scale.watches import Watches
from tests.ground.heard import topics_heard
from tests.scale.pretend import reference, until, value_when

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.scale.server import Running
    from tests.ground.fleet import Fleet

NOWHERE = ScalerSettings({"default": ClusterSettings("127.0.0.1:1")}, "127.0.0.1:0", metrics="127.0.0.1:0")
GONE = "the sampler's process is gone: it ended with status -9"


def pid_of(up: Running) -> int:
    assert up.sampler.pid is not None
    return up.sampler.pid


async def health(up: Running, service: str) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel:
        asked = health_pb2.HealthCheckRequest(service=service)
        return int((await health_pb2_grpc.HealthStub(channel).Check(asked)).status)


async def page_of(up: Running) -> str:
    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{up.metrics_port}/metrics") as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(read)


def board_at(now: list[float]) -> Board:
    return Board(
        frozenset({"default"}), Watches({"default": 10.0}), CallMetrics(),
        wish=lambda watch: None, clock=lambda: now[0],
    )  # fmt: skip


def test_without_a_sampler_the_last_verdict_counts_three_and_a_half_intervals_and_then_is_refused() -> None:
    now = [1000.0]
    board = board_at(now)
    watch = board.admit("shop/billing", {"group": "billing"})
    watch.told(Standing(1000.0, 3, 3.0, True, None, "Stable"))
    board.down = GONE

    now[0] = 1035.0
    assert board.answer(watch).replicas == 3
    now[0] = 1036.0
    with pytest.raises(SamplerDown, match=r"no sample of group `billing` for 36 s: the sampler's process is"):
        board.answer(watch)


def test_without_a_sampler_a_watch_that_was_never_sampled_is_refused_at_once() -> None:
    board = board_at([1000.0])
    watch = board.admit("shop/billing", {"group": "billing"})
    board.down = GONE

    with pytest.raises(SamplerDown, match="no sample of group `billing` yet"):
        board.answer(watch)


async def test_a_sampler_that_is_killed_is_seen_at_once_and_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_SECONDS", 3.0)  # time to look while there is none
    async with serving(NOWHERE) as up:
        first = pid_of(up)
        fine = await health(up, SERVICE)
        os.kill(first, signal.SIGKILL)
        await until(lambda: up.board.down, "its death")
        down, poor, alive = up.board.down, await health(up, SERVICE), await health(up, "")
        dead = await page_of(up)
        await until(lambda: up.board.down is None, "another life")
        again, better = pid_of(up), await health(up, SERVICE)
        page = await page_of(up)

    serving_, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert (fine, poor, alive, better) == (serving_, not_serving, serving_, serving_)
    assert (down, again != first) == (GONE, True)
    assert "penstock_scale_sampler_up 0.0" in dead
    assert "penstock_scale_sampler_up 1.0" in page
    assert "penstock_scale_sampler_ends_total 1.0" in page
    assert "penstock_scale_watches 0.0" in page  # told by the sampler


async def test_the_sampler_ends_with_the_service() -> None:
    async with serving(NOWHERE) as up:
        process = psutil.Process(pid_of(up))

    assert not process.is_running()


async def test_a_sampler_that_ends_before_it_begins_is_an_error_that_says_so() -> None:
    async def shown(up: bool) -> None:
        raise AssertionError("it is up")

    broken: ScalerSettings = None  # type: ignore[assignment]  # what a bug would do
    with pytest.raises(SamplerGone, match="it ended with status 1"):
        async with SamplerProcess(broken, instance="one").supervised(board_at([0.0]), shown):
            raise AssertionError("it runs")


async def test_a_bug_in_what_keeps_the_sampler_ends_the_service_and_is_raised() -> None:
    async def shown(up: bool) -> None:
        if not up:
            raise RuntimeError("a bug")

    sampler = SamplerProcess(NOWHERE, instance="one")

    async def serve() -> None:
        async with sampler.supervised(board_at([0.0]), shown):
            psutil.Process(sampler.pid).kill()
            await asyncio.Event().wait()  # as a service waits, until it is told to end

    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(serve(), timeout=60)


async def test_what_cannot_be_seen_is_told_with_the_next_beat() -> None:
    ours, theirs = socket.socketpair()
    reader, here = await asyncio.open_connection(sock=ours)
    _, there = await asyncio.open_connection(sock=theirs)
    beating = asyncio.create_task(Teller(there).beat({"default": "no route to host"}))
    async with asyncio.timeout(60):
        first, second = await next_frame(reader), await next_frame(reader)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    for writer in (here, there):
        writer.close()
        await writer.wait_closed()

    assert first == (Kind.UNSEEN, b'{"default": "no route to host"}')
    assert second == (Kind.BEAT, b"")


@pytest.mark.kafka
async def test_a_sampler_that_dies_comes_back_with_its_watches_and_their_history(
    fleet: Fleet, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic, group, config = unique("orders"), unique("billing"), fleet.client_config()
    async with Client(fleet.bootstrap, fleet.security()) as client:
        all_done(await topics.create(client, [topics.NewTopic(topic, 2, 1)]))
        await topics_heard(fleet, topic)
        all_done(await commits.commit(client, group, {TopicPartition(topic, 0): Committed(0)}))
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
        stub = ExternalScalerStub(channel)
        before = await value_when(stub, about, lambda value: value > 0)
        (watch,) = up.board.watches
        os.kill(pid_of(up), signal.SIGKILL)
        await until(lambda: up.board.down, "its death")
        died_at = watch.sampled_at or 0.0
        await until(lambda: (watch.sampled_at or 0.0) > died_at, "a sample of its next life", seconds=60)
        after = await value_when(stub, about, lambda value: value > 0)

    assert (before, after) == (1.0, 1.0)
