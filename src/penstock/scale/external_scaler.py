"""KEDA's external scaler protocol: all five methods, answered from the verdict cache.

An error becomes a gRPC status with its text and hint; KEDA then leaves the replicas as they are.
`GetMetricSpec` needs no broker, so that a ScaledObject can be created while Kafka is down.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

import grpc

from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.scale import ScalerClusterUnknown, ScalerMetricUnknown
from penstock.scale.decision.hpa_metric import METRIC, TARGET
from penstock.scale.proto import externalscaler_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.scale.verdict_cache import VerdictCache
    from penstock.scale.watched_groups import Watch

    Context = grpc.aio.ServicerContext[object, object]

T = TypeVar("T")

STREAM_CHECK_SECONDS: Final = 60.0  # a stream checks at least this often, which keeps its watch from expiring

_STATUS: Final = {
    Exit.USAGE: grpc.StatusCode.INVALID_ARGUMENT,
    Exit.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Exit.UNHEALTHY: grpc.StatusCode.UNAVAILABLE,
}


class ExternalScaler:
    """Answers KEDA's calls from the verdict cache."""

    def __init__(self, verdicts: VerdictCache) -> None:
        self._verdicts = verdicts

    async def IsActive(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        def respond() -> pb.IsActiveResponse:
            return pb.IsActiveResponse(result=self._verdicts.current_verdict(self._watch(request)).active)

        return await self._run("IsActive", context, respond)

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Context) -> pb.GetMetricSpecResponse:
        await self._run("GetMetricSpec", context, lambda: self._watch(request))
        return _spec()

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        def respond() -> pb.GetMetricsResponse:
            watch = self._watch(request.scaledObjectRef)
            name = request.metricName
            if name != METRIC:
                raise ScalerMetricUnknown(scaled_object=watch.scaled_object, metric=name, known=METRIC)
            value = self._verdicts.current_verdict(watch).value
            metric = pb.MetricValue(metricName=METRIC, metricValue=round(value), metricValueFloat=value)
            return pb.GetMetricsResponse(metricValues=[metric])

        return await self._run("GetMetrics", context, respond)

    async def StreamIsActive(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.IsActiveResponse]:
        """Sends the state once it is known, then every change."""
        pushed: bool | None = None
        while True:
            watch = await self._run("StreamIsActive", context, lambda: self._watch(request))
            active = self._is_active(watch)
            if active is not None and active != pushed:
                pushed = active
                yield pb.IsActiveResponse(result=active)
            await self._verdicts.wait_for_change(watch, STREAM_CHECK_SECONDS)

    async def StreamMetricSpec(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.GetMetricSpecResponse]:
        """Sends the spec once. It never changes: the target is one per replica for every policy."""
        first = True
        while True:
            watch = await self._run("StreamMetricSpec", context, lambda: self._watch(request))
            if first:
                first = False
                yield _spec()
            await self._verdicts.wait_for_change(watch, STREAM_CHECK_SECONDS)

    def _watch(self, reference: pb.ScaledObjectRef) -> Watch:
        name = f"{reference.namespace}/{reference.name}"
        metadata = dict(reference.scalerMetadata)
        cluster = metadata.get("cluster", "").strip() or "default"
        if cluster not in self._verdicts.clusters:
            known = ", ".join(sorted(self._verdicts.clusters))
            raise ScalerClusterUnknown(scaled_object=name, cluster=cluster, known=known)
        return self._verdicts.admit(name, metadata)

    def _is_active(self, watch: Watch) -> bool | None:
        try:
            return self._verdicts.current_verdict(watch).active
        except PenstockError:
            return None  # a stream only sends states; unary calls return the error

    async def _run(self, api: str, context: Context, respond: Callable[[], T]) -> T:
        """Measures one call; ends it with a gRPC status if it raises."""
        started = time.perf_counter()
        code = ""
        try:
            return respond()
        except PenstockError as failure:
            code = failure.code
            status = _STATUS.get(failure.exit_code, grpc.StatusCode.INTERNAL)
            await context.abort(status, f"{failure}\n{failure.advice}")
            raise
        finally:
            self._verdicts.metrics.calls.labels(api, code).observe(time.perf_counter() - started)


def _spec() -> pb.GetMetricSpecResponse:
    spec = pb.MetricSpec(metricName=METRIC, targetSize=round(TARGET), targetSizeFloat=TARGET)
    return pb.GetMetricSpecResponse(metricSpecs=[spec])
