"""KEDA's external scaler protocol, all five methods. Thin: it reads verdicts, it makes none.

An error of the catalogue becomes a gRPC status with its text and the way out; KEDA then leaves
the replicas as they are. `GetMetricSpec` needs no broker, so that a ScaledObject can be created
while Kafka is down.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import grpc

from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.scale import ScalerClusterUnknown, ScalerMetricUnknown
from penstock.scale.encoding import METRIC, TARGET
from penstock.scale.proto import externalscaler_pb2 as pb
from penstock.scale.proto.externalscaler_pb2_grpc import ExternalScalerServicer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.scale.board import Board
    from penstock.scale.watches import Watch

    Context = grpc.aio.ServicerContext[object, object]

STREAM_BEAT_SECONDS: Final = 60.0  # a stream looks at least this often, and keeps its watch alive

_STATUS: Final = {
    Exit.USAGE: grpc.StatusCode.INVALID_ARGUMENT,
    Exit.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Exit.UNHEALTHY: grpc.StatusCode.UNAVAILABLE,
}


class Refused(Exception):
    """Carries a refusal out of a method, to where the call can be ended."""

    def __init__(self, status: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class ExternalScaler(ExternalScalerServicer):
    def __init__(self, board: Board) -> None:
        self._board = board

    async def IsActive(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        try:
            with self._call("IsActive"):
                return pb.IsActiveResponse(result=self._board.answer(self._watch(request)).active)
        except Refused as refused:
            await context.abort(refused.status, refused.text)
            raise

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Context) -> pb.GetMetricSpecResponse:
        try:
            with self._call("GetMetricSpec"):
                self._watch(request)
                return _spec()
        except Refused as refused:
            await context.abort(refused.status, refused.text)
            raise

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        try:
            with self._call("GetMetrics"):
                watch = self._watch(request.scaledObjectRef)
                if request.metricName != METRIC:
                    raise ScalerMetricUnknown(
                        scaled_object=watch.scaled_object, metric=request.metricName, known=METRIC
                    )
                value = self._board.answer(watch).value
                found = pb.MetricValue(metricName=METRIC, metricValue=round(value), metricValueFloat=value)
                return pb.GetMetricsResponse(metricValues=[found])
        except Refused as refused:
            await context.abort(refused.status, refused.text)
            raise

    async def StreamIsActive(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.IsActiveResponse]:
        """The state when it is known, then every change of it."""
        told: bool | None = None
        while True:
            try:
                with self._call("StreamIsActive"):
                    watch = self._watch(request)
            except Refused as refused:
                await context.abort(refused.status, refused.text)
                raise
            active = self._activity(watch)
            if active is not None and active != told:
                told = active
                yield pb.IsActiveResponse(result=active)
            await self._board.changed(watch, STREAM_BEAT_SECONDS)

    async def StreamMetricSpec(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.GetMetricSpecResponse]:
        """The spec at once. It never changes: the target is one per replica, whatever the policy."""
        first = True
        while True:
            try:
                with self._call("StreamMetricSpec"):
                    watch = self._watch(request)
            except Refused as refused:
                await context.abort(refused.status, refused.text)
                raise
            if first:
                first = False
                yield _spec()
            await self._board.changed(watch, STREAM_BEAT_SECONDS)

    def _watch(self, reference: pb.ScaledObjectRef) -> Watch:
        name = f"{reference.namespace}/{reference.name}"
        metadata = dict(reference.scalerMetadata)
        cluster = metadata.get("cluster", "").strip() or "default"
        if cluster not in self._board.clusters:
            known = ", ".join(sorted(self._board.clusters))
            raise ScalerClusterUnknown(scaled_object=name, cluster=cluster, known=known)
        return self._board.admit(name, metadata)

    def _activity(self, watch: Watch) -> bool | None:
        try:
            return self._board.answer(watch).active
        except PenstockError:
            return None  # a push says what is known; who needs the error asks

    @contextmanager
    def _call(self, api: str) -> Iterator[None]:
        begun = time.perf_counter()
        code = ""
        try:
            yield
        except PenstockError as failure:
            code = failure.code
            status = _STATUS.get(failure.exit_code, grpc.StatusCode.INTERNAL)
            raise Refused(status, f"{failure}\n{failure.advice}") from failure
        finally:
            self._board.metrics.calls.labels(api, code).observe(time.perf_counter() - begun)


def _spec() -> pb.GetMetricSpecResponse:
    spec = pb.MetricSpec(metricName=METRIC, targetSize=round(TARGET), targetSizeFloat=TARGET)
    return pb.GetMetricSpecResponse(metricSpecs=[spec])
