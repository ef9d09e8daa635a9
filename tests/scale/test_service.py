"""KEDA's protocol over a real socket, by a client made from the same proto."""

from __future__ import annotations

import asyncio
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from penstock.scale.encoding import METRIC
from penstock.scale.journal import Alone
from penstock.scale.proto import externalscaler_pb2 as pb
from penstock.scale.proto.externalscaler_pb2_grpc import ExternalScalerStub
from penstock.scale.records import Sampled, decoded
from penstock.scale.values import GroupState
from tests.scale.pretend import (
    HASTY,
    INTERVAL,
    PretendCluster,
    PretendTopic,
    asked,
    reference,
    scaler,
    served,
    until,
    value_when,
)


async def refusal(call: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]  # a call of grpc.aio, which has no types
    return caught.value.code(), caught.value.details() or ""


async def test_the_spec_is_one_per_replica_and_needs_no_broker() -> None:
    async with scaler(PretendCluster(reachable=False), Alone()) as (_, stub):
        answer = await stub.GetMetricSpec(reference())

    assert [(each.metricName, each.targetSizeFloat) for each in answer.metricSpecs] == [(METRIC, 1.0)]


async def test_the_first_answer_holds_the_replicas_that_are_there() -> None:
    async with scaler(PretendCluster(members=2), Alone()) as (_, stub):
        assert await value_when(stub, reference(), lambda value: value > 0) == 2.0


async def test_a_new_watch_is_sampled_at_once_and_not_an_interval_later() -> None:
    async with scaler(PretendCluster(), Alone(), interval=3600) as (_, stub):
        assert await value_when(stub, reference(), lambda value: value > 0) == 2.0


async def test_bad_metadata_is_refused_with_the_way_out() -> None:
    async with scaler(PretendCluster(), Alone()) as (_, stub):
        code, text = await refusal(stub.GetMetricSpec(reference(sustainSeconds="soon")))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "shop/billing: trigger metadata `sustainSeconds` is 'soon'" in text
    assert "Correct the value" in text


@pytest.mark.parametrize(
    ("metadata", "metric", "said"),
    [
        ({"cluster": "mars"}, METRIC, "the scaler knows no cluster `mars` (PEN-6505)"),
        ({}, "lag", "no metric `lag` here (PEN-6506)"),
    ],
)
async def test_what_is_not_there_is_not_found(metadata: dict[str, str], metric: str, said: str) -> None:
    request = pb.GetMetricsRequest(scaledObjectRef=reference(**metadata), metricName=metric)
    async with scaler(PretendCluster(), Alone()) as (_, stub):
        code, text = await refusal(stub.GetMetrics(request))

    assert code is grpc.StatusCode.NOT_FOUND
    assert said in text


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        ({"there": False}, "no group `billing` with offsets in orders"),
        ({"topic_there": False}, "no topic `orders`"),
    ],
)
async def test_an_unknown_group_or_topic_is_an_error_and_heals(absent: dict[str, bool], said: str) -> None:
    cluster = PretendCluster(**absent)  # type: ignore[arg-type]  # fields of PretendCluster
    request = pb.GetMetricsRequest(scaledObjectRef=reference(), metricName=METRIC)
    async with scaler(cluster, Alone()) as (up, stub):
        await refusal(stub.GetMetrics(request))  # pending, the first time
        await until(lambda: any(watch.missing for watch in up.board.watches), "a look")
        code, text = await refused_with(stub, request, grpc.StatusCode.NOT_FOUND)
        cluster.there = cluster.topic_there = True
        healed = await _healed(stub)

    assert (code, healed) == (grpc.StatusCode.NOT_FOUND, 2.0)
    assert said in text


async def refused_with(
    stub: ExternalScalerStub, request: pb.GetMetricsRequest, wanted: grpc.StatusCode
) -> tuple[grpc.StatusCode, str]:
    """The refusal, once it is of this kind: after a pause of the machine a look is too old at first."""
    async with asyncio.timeout(60):
        while (found := await refusal(stub.GetMetrics(request)))[0] is not wanted:
            await asyncio.sleep(INTERVAL)
    return found


async def _healed(stub: ExternalScalerStub) -> float:
    async with asyncio.timeout(60):
        while True:
            try:
                return await asked(stub, reference())
            except grpc.aio.AioRpcError:
                await asyncio.sleep(INTERVAL)


async def test_brokers_that_cannot_be_seen_are_an_error_and_never_zero() -> None:
    cluster = PretendCluster()
    request = pb.GetMetricsRequest(scaledObjectRef=reference(), metricName=METRIC)
    async with scaler(cluster, Alone()) as (up, stub):
        await value_when(stub, reference(), lambda value: value > 0)
        cluster.reachable = False
        (watch,) = up.board.watches
        await until(lambda: "default" in up.board.unseen, "a look that failed")
        await until(lambda: up.board.clock() - (watch.sampled_at or 0) > 4 * INTERVAL, "stale samples")
        code, text = await refusal(stub.GetMetrics(request))
        inactive = await refusal(stub.IsActive(reference()))

    assert code is inactive[0] is grpc.StatusCode.UNAVAILABLE
    assert "no sample of group `billing`" in text
    assert "a test said so" in text


async def test_a_group_without_members_and_without_memory_is_an_error_unless_zero_is_allowed() -> None:
    cluster = PretendCluster(members=0, state=GroupState.EMPTY)
    request = pb.GetMetricsRequest(scaledObjectRef=reference(), metricName=METRIC)
    async with scaler(cluster, Alone(), interval=3600) as (up, stub):
        await refusal(stub.GetMetrics(request))
        await until(lambda: all(watch.sampled_at for watch in up.board.watches), "a look")
        code, text = await refusal(stub.GetMetrics(request))
        from_zero = await value_when(stub, reference(minReplicas="0"), lambda value: value > 0)

    assert (code, from_zero) == (grpc.StatusCode.UNAVAILABLE, 1.0)
    assert "PEN-6513" in text


async def test_pressure_that_lasts_changes_the_value() -> None:
    cluster = PretendCluster(end=[100] * 4, committed=[100] * 4)
    # Not below two: on a busy machine the low time may be over before the first answer.
    about = reference(**HASTY, lagThreshold="50", objectiveSeconds="3600", minReplicas="2")
    async with scaler(cluster, Alone()) as (_, stub):
        assert await value_when(stub, about, lambda value: value > 0) == 2.0
        cluster.arriving = 40
        raised = await value_when(stub, about, lambda value: value > 2)

    assert raised == 4.0


async def test_activity_is_answered_and_pushed() -> None:
    cluster = PretendCluster(members=0, state=GroupState.EMPTY)
    about = reference(minReplicas="0", **HASTY)
    async with scaler(cluster, Alone(), interval=1.0) as (_, stub):  # a look counts for a few seconds
        stream = stub.StreamIsActive(about)
        first = await stream.read()
        cluster.end[1] += 1
        second = await stream.read()
        answer = await stub.IsActive(about)
        stream.cancel()

    assert (first.result, second.result, answer.result) == (False, True, True)


async def test_the_spec_stream_sends_the_spec_at_once_and_stays_open() -> None:
    async with scaler(PretendCluster(), Alone()) as (_, stub):
        stream = stub.StreamMetricSpec(reference())
        first = await stream.read()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.read(), 5 * INTERVAL)
        same = await stub.GetMetricSpec(reference())

    assert first == same


async def test_a_stream_with_bad_metadata_ends_with_the_error() -> None:
    async with scaler(PretendCluster(), Alone()) as (_, stub):
        for stream in (
            stub.StreamIsActive(reference(smoothing="x")),
            stub.StreamMetricSpec(reference(smoothing="x")),
        ):
            code, _ = await refusal(stream.read())
            assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_calls_never_reach_the_brokers() -> None:
    cluster = PretendCluster()
    async with scaler(cluster, Alone(), interval=3600) as (_, stub):
        await value_when(stub, reference(), lambda value: value > 0)
        looks = cluster.looks
        for _ in range(50):
            await asked(stub, reference())

    assert cluster.looks == looks


async def test_health_and_reflection_are_served() -> None:
    asking = reflection_pb2.ServerReflectionRequest(list_services="")
    async with (
        scaler(PretendCluster(), Alone()) as (up, _),
        grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel,
    ):
        checked = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="externalscaler.ExternalScaler")
        )
        answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asking]))
        listed = [each.name async for answer in answers for each in answer.list_services_response.service]

    assert checked.status == health_pb2.HealthCheckResponse.SERVING
    assert "externalscaler.ExternalScaler" in listed


async def test_numbers_are_shown_to_prometheus_and_go_with_their_watch() -> None:
    cluster = PretendCluster()
    async with served(
        {"default": cluster}, Alone(), {"default": INTERVAL}, listen="127.0.0.1:0", metrics="127.0.0.1:0"
    ) as up:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel:
            await value_when(ExternalScalerStub(channel), reference(), lambda value: value > 0)
        shown = await _page(up.metrics_port)
        (watch,) = up.board.watches
        watch.called_at -= 10**6
        up.board.watches.expire(up.board.clock())
        after = await _page(up.metrics_port)

    series = 'penstock_scale_replicas{cluster="default",group="billing",scaled_object="shop/billing"} 2.0'
    assert series in shown
    assert series not in after


async def _page(port: int | None) -> str:
    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(read)


def remembered(topic: PretendTopic) -> int | None:
    """What the writer of the last sample had asked for before it."""
    told = decoded(topic.records[-1])
    return next((each.asked for each in told.memories.values()), None) if isinstance(told, Sampled) else None


async def test_two_instances_on_one_topic_agree_and_a_restart_keeps_the_window() -> None:
    cluster, topic = PretendCluster(end=[100] * 4, committed=[100] * 4), PretendTopic()
    # Not below two: on a busy machine the low time may be over before the first answer.
    about = reference(**HASTY, lagThreshold="50", objectiveSeconds="3600", minReplicas="2")
    async with scaler(cluster, topic, instance="one") as (first, one):
        async with scaler(cluster, topic, instance="two") as (second, two):
            assert await value_when(one, about, lambda value: value > 0) == 2.0
            cluster.arriving = 40
            assert await value_when(one, about, lambda value: value > 2) == 4.0
            assert await value_when(two, about, lambda value: value > 2) == 4.0
            await until(lambda: remembered(topic) == 4, "a sample that tells of it")
            writers = {
                first.board.watches.newest_slot("default"),
                second.board.watches.newest_slot("default"),
            }
        kept = len(next(iter(first.board.watches)).window.history)
    cluster.arriving = 0

    async with scaler(cluster, topic, instance="three") as (third, three):
        await until(lambda: len(third.board.watches) == 1, "the watch, without a call")
        (watch,) = third.board.watches
        await until(lambda: len(watch.window.history) >= min(kept, 3), "its window")
        value = await value_when(three, about, lambda value: value > 0)

    assert len(writers) <= 2
    assert value == 4.0  # two members are there: only the memory knows that four were asked for
