"""KEDA's protocol over a real socket, with a client generated from the same proto."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from penstock.scale.decision.hpa_metric import METRIC
from penstock.scale.decision.values import GroupState
from penstock.scale.proto import externalscaler_pb2 as pb
from penstock.scale.sampler.records import Sampled, decoded
from penstock.scale.sampler.samples_topic import InMemoryJournal
from tests.scale.fakes import (
    FAST,
    INTERVAL,
    FakeCluster,
    FakeJournal,
    metric_value,
    reference,
    scaler,
    served,
    stub_for,
    until,
    value_when,
)

if TYPE_CHECKING:
    from penstock.scale.grpc_service import ExternalScalerStub


async def refusal(call: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]  # grpc.aio calls have no types
    return caught.value.code(), caught.value.details() or ""


async def test_the_spec_is_one_per_replica_and_needs_no_broker() -> None:
    async with scaler(FakeCluster(reachable=False), InMemoryJournal()) as (_, stub):
        response = await stub.GetMetricSpec(reference())

    assert [(each.metricName, each.targetSizeFloat) for each in response.metricSpecs] == [(METRIC, 1.0)]


async def test_the_first_value_keeps_the_running_replicas() -> None:
    async with scaler(FakeCluster(members=2), InMemoryJournal()) as (_, stub):
        assert await value_when(stub, reference(), lambda value: value > 0) == 2.0


async def test_a_new_watch_is_sampled_at_once() -> None:
    async with scaler(FakeCluster(), InMemoryJournal(), interval=3600) as (_, stub):
        assert await value_when(stub, reference(), lambda value: value > 0) == 2.0


async def test_invalid_metadata_is_refused_with_a_hint() -> None:
    async with scaler(FakeCluster(), InMemoryJournal()) as (_, stub):
        code, text = await refusal(stub.GetMetricSpec(reference(sustainSeconds="soon")))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "shop/billing: trigger metadata `sustainSeconds` is 'soon'" in text
    assert "Correct the value" in text


@pytest.mark.parametrize(
    ("metadata", "metric", "message"),
    [
        ({"cluster": "mars"}, METRIC, "the scaler's settings have no cluster `mars` (PEN-6505)"),
        ({}, "lag", "the scaler has no metric `lag` (PEN-6506)"),
    ],
)
async def test_an_unknown_cluster_or_metric_is_not_found(
    metadata: dict[str, str], metric: str, message: str
) -> None:
    request = pb.GetMetricsRequest(scaledObjectRef=reference(**metadata), metricName=metric)
    async with scaler(FakeCluster(), InMemoryJournal()) as (_, stub):
        code, text = await refusal(stub.GetMetrics(request))

    assert code is grpc.StatusCode.NOT_FOUND
    assert message in text


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        ({"group_exists": False}, "no group `billing` with offsets in orders"),
        ({"topic_exists": False}, "no topic `orders`"),
    ],
)
async def test_an_unknown_group_or_topic_is_an_error_until_it_appears(
    absent: dict[str, bool], message: str
) -> None:
    cluster = FakeCluster(**absent)  # type: ignore[arg-type]  # fields of PretendCluster
    request = pb.GetMetricsRequest(scaledObjectRef=reference(), metricName=METRIC)
    async with scaler(cluster, InMemoryJournal()) as (up, stub):
        await refusal(stub.GetMetrics(request))  # pending, the first time
        await until(lambda: any(watch.sampled_at for watch in up.verdicts.watches), "a sample")
        code, text = await refused_with(stub, request, grpc.StatusCode.NOT_FOUND)
        cluster.group_exists = cluster.topic_exists = True
        healed = await _healed(stub)

    assert (code, healed) == (grpc.StatusCode.NOT_FOUND, 2.0)
    assert message in text


async def refused_with(
    stub: ExternalScalerStub, request: pb.GetMetricsRequest, expected: grpc.StatusCode
) -> tuple[grpc.StatusCode, str]:
    """Waits for this status: after a pause of the machine, a sample may be too old at first."""
    async with asyncio.timeout(60):
        while (refused := await refusal(stub.GetMetrics(request)))[0] is not expected:
            await asyncio.sleep(INTERVAL)
    return refused


async def _healed(stub: ExternalScalerStub) -> float:
    async with asyncio.timeout(60):
        while True:
            try:
                return await metric_value(stub, reference())
            except grpc.aio.AioRpcError:
                await asyncio.sleep(INTERVAL)


async def test_unreachable_brokers_are_an_error_and_never_zero() -> None:
    cluster = FakeCluster()
    request = pb.GetMetricsRequest(scaledObjectRef=reference(), metricName=METRIC)
    async with scaler(cluster, InMemoryJournal()) as (up, stub):
        await value_when(stub, reference(), lambda value: value > 0)
        cluster.reachable = False
        (watch,) = up.verdicts.watches
        await until(lambda: "default" in up.verdicts.unreachable, "a failed round")
        await until(lambda: up.verdicts.clock() - (watch.received_at or 0) > 4 * INTERVAL, "stale samples")
        code, text = await refusal(stub.GetMetrics(request))
        inactive = await refusal(stub.IsActive(reference()))

    assert code is inactive[0] is grpc.StatusCode.UNAVAILABLE
    assert "no sample of group `billing`" in text
    assert "made unreachable by the test" in text


async def test_a_group_without_members_and_without_memory_is_an_error_unless_zero_is_allowed() -> None:
    cluster = FakeCluster(members=0, state=GroupState.EMPTY)
    request = pb.GetMetricsRequest(scaledObjectRef=reference(), metricName=METRIC)
    async with scaler(cluster, InMemoryJournal(), interval=3600) as (up, stub):
        await refusal(stub.GetMetrics(request))
        await until(lambda: all(watch.sampled_at for watch in up.verdicts.watches), "a sample")
        code, text = await refusal(stub.GetMetrics(request))
        from_zero = await value_when(stub, reference(minReplicas="0"), lambda value: value > 0)

    assert (code, from_zero) == (grpc.StatusCode.UNAVAILABLE, 1.0)
    assert "PEN-6513" in text


async def test_pressure_that_lasts_changes_the_value() -> None:
    cluster = FakeCluster(end=[100] * 4, committed=[100] * 4)
    # minReplicas 2: on a busy machine the low time may be over before the first value.
    about = reference(**FAST, lagThreshold="50", objectiveSeconds="3600", minReplicas="2")
    async with scaler(cluster, InMemoryJournal()) as (_, stub):
        assert await value_when(stub, about, lambda value: value > 0) == 2.0
        cluster.arriving = 40
        raised = await value_when(stub, about, lambda value: value > 2)

    assert raised == 4.0


async def test_activity_is_returned_and_pushed() -> None:
    cluster = FakeCluster(members=0, state=GroupState.EMPTY)
    about = reference(minReplicas="0", **FAST)
    # A long interval, so that a sample stays valid for seconds.
    async with scaler(cluster, InMemoryJournal(), interval=1.0) as (_, stub):
        stream = stub.StreamIsActive(about)
        first = await stream.read()
        cluster.end[1] += 1
        second = await stream.read()
        response = await stub.IsActive(about)
        stream.cancel()

    assert (first.result, second.result, response.result) == (False, True, True)


async def test_the_spec_stream_sends_the_spec_at_once_and_stays_open() -> None:
    async with scaler(FakeCluster(), InMemoryJournal()) as (_, stub):
        stream = stub.StreamMetricSpec(reference())
        first = await stream.read()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.read(), 5 * INTERVAL)
        same = await stub.GetMetricSpec(reference())

    assert first == same


async def test_a_stream_with_bad_metadata_ends_with_the_error() -> None:
    async with scaler(FakeCluster(), InMemoryJournal()) as (_, stub):
        for stream in (
            stub.StreamIsActive(reference(smoothing="x")),
            stub.StreamMetricSpec(reference(smoothing="x")),
        ):
            code, _ = await refusal(stream.read())
            assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_calls_never_reach_the_brokers() -> None:
    cluster = FakeCluster()
    async with scaler(cluster, InMemoryJournal(), interval=3600) as (_, stub):
        await value_when(stub, reference(), lambda value: value > 0)
        rounds = cluster.rounds
        for _ in range(50):
            await metric_value(stub, reference())

    assert cluster.rounds == rounds


async def test_health_and_reflection_are_served() -> None:
    asking = reflection_pb2.ServerReflectionRequest(list_services="")
    async with (
        scaler(FakeCluster(), InMemoryJournal()) as (up, _),
        grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel,
    ):
        checked = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="externalscaler.ExternalScaler")
        )
        responses = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asking]))
        listed = [
            each.name async for response in responses for each in response.list_services_response.service
        ]

    assert checked.status == health_pb2.HealthCheckResponse.SERVING
    assert "externalscaler.ExternalScaler" in listed


async def test_metrics_of_a_watch_are_exported_until_it_expires() -> None:
    cluster = FakeCluster()
    async with served(
        {"default": cluster},
        InMemoryJournal(),
        {"default": INTERVAL},
        listen="127.0.0.1:0",
        metrics="127.0.0.1:0",
    ) as up:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel:
            await value_when(stub_for(channel), reference(), lambda value: value > 0)
        presented = await _page(up.metrics_port)
        (watch,) = up.verdicts.watches
        watch.called_at -= 10**6
        up.verdicts.watches.expire(up.verdicts.clock())
        after = await _page(up.metrics_port)

    series = 'penstock_scale_replicas{cluster="default",group="billing",scaled_object="shop/billing"} 2.0'
    assert series in presented
    assert series not in after


async def _page(port: int | None) -> str:
    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            return str(response.read().decode())

    return await asyncio.to_thread(read)


def remembered(topic: FakeJournal) -> int | None:
    """The replicas that the writer of the last sample had requested before it."""
    events = decoded(*topic.records[-1])
    return (
        next((each.requested for each in events.memories.values()), None)
        if isinstance(events, Sampled)
        else None
    )


async def test_two_instances_on_one_topic_agree_and_a_restart_keeps_the_window() -> None:
    cluster, topic = FakeCluster(end=[100] * 4, committed=[100] * 4), FakeJournal()
    # minReplicas 2: on a busy machine the low time may be over before the first value.
    about = reference(**FAST, lagThreshold="50", objectiveSeconds="3600", minReplicas="2")
    async with scaler(cluster, topic, instance="one") as (first, one):
        async with scaler(cluster, topic, instance="two") as (_, two):
            assert await value_when(one, about, lambda value: value > 0) == 2.0
            cluster.arriving = 40
            assert await value_when(one, about, lambda value: value > 2) == 4.0
            assert await value_when(two, about, lambda value: value > 2) == 4.0
            await until(lambda: remembered(topic) == 4, "a sample with the new request")
        kept = len(next(iter(first.verdicts.watches)).window.history)
    cluster.arriving = 0

    async with scaler(cluster, topic, instance="three") as (third, three):
        await until(lambda: len(third.verdicts.watches) == 1, "the watch, without a call")
        (watch,) = third.verdicts.watches
        await until(lambda: len(watch.window.history) >= min(kept, 3), "its window")
        value = await value_when(three, about, lambda value: value > 0)

    assert value == 4.0  # only two members run: the four come from the stored memory
