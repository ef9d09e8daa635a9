"""Run the scaler: a gRPC server with TLS, health, reflection and metrics, and a sampler process.

Calls are answered in this process; `sampler.supervisor` runs the sampler in another.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import _async as health_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import generate_latest

from penstock.gc_tuning import rare_collections
from penstock.metrics_server import MetricsServer
from penstock.model.errors.scale import ScalerSettingsInvalid
from penstock.scale.event_loop import GC_THRESHOLDS
from penstock.scale.external_scaler import ExternalScaler
from penstock.scale.grpc_service import SERVICE, service_handler
from penstock.scale.metrics import CallMetrics
from penstock.scale.sampler.supervisor import SamplerProcess
from penstock.scale.verdict_cache import VerdictCache
from penstock.scale.watched_groups import WatchedGroups

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from penstock.scale.settings import ScalerSettings, ServerTls

GRACE_SECONDS: Final = 2.0  # for calls in flight when the server stops
# KEDA keeps one connection for all ScaledObjects and pings it.
OPTIONS: Final = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
)
METRICS_SECONDS_MAX: Final = 25.0


@dataclass(frozen=True)
class Running:
    """A running scaler."""

    port: int
    verdicts: VerdictCache
    metrics_port: int | None
    sampler: SamplerProcess


@asynccontextmanager
async def serving(settings: ScalerSettings, *, instance: str | None = None) -> AsyncIterator[Running]:
    """Runs the scaler while the block runs."""
    name = instance or f"{os.uname().nodename}-{os.getpid()}-{os.urandom(3).hex()}"
    sampler = SamplerProcess(settings, instance=name)
    watches = WatchedGroups({cluster: each.interval for cluster, each in settings.clusters.items()})
    verdicts = VerdictCache(
        frozenset(settings.clusters), watches, CallMetrics(), on_watch=sampler.request_watch
    )
    health = health_aio.HealthServicer()
    not_ready = "the sampler does not run"

    async def set_health(up: bool) -> None:
        nonlocal not_ready
        not_ready = "" if up else "the sampler does not run"
        await health.set(SERVICE, _status(up))

    async def metrics_text() -> bytes:
        return generate_latest(verdicts.metrics.registry) + await sampler.metrics_text()

    async with AsyncExitStack() as stack:
        stack.enter_context(rare_collections(*GC_THRESHOLDS))
        await stack.enter_async_context(sampler.supervised(verdicts, set_health))
        port = await stack.enter_async_context(grpc_server(verdicts, health, settings.listen, settings.tls))
        metrics_port = None
        if settings.metrics:
            metrics_port = await stack.enter_async_context(
                serve_metrics(settings.metrics, metrics_text, lambda: not_ready)
            )
        yield Running(port, verdicts, metrics_port, sampler)


@asynccontextmanager
async def serve_metrics(
    address: str, metrics_text: Callable[[], Coroutine[object, object, bytes]], not_ready: Callable[[], str]
) -> AsyncIterator[int]:
    """Serves the metrics, read on the event loop that updates them; yields the port."""
    loop = asyncio.get_running_loop()

    def latest() -> bytes:
        return asyncio.run_coroutine_threadsafe(metrics_text(), loop).result(METRICS_SECONDS_MAX)

    host, _, port = address.rpartition(":")
    server = MetricsServer(latest, host.strip("[]"), int(port), not_ready=not_ready, loop=loop)
    try:
        yield server.port
    finally:
        await asyncio.to_thread(server.close)


@asynccontextmanager
async def grpc_server(
    verdicts: VerdictCache, health: health_aio.HealthServicer, listen: str, tls: ServerTls | None
) -> AsyncIterator[int]:
    """Serves KEDA's protocol; yields the port."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((service_handler(ExternalScaler(verdicts)),))
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection((SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
                                         reflection.SERVICE_NAME), server)  # fmt: skip
    port = _bind(server, listen, tls)
    try:
        await server.start()
        await health.set("", _status(True))
        yield port
    finally:
        await health.enter_graceful_shutdown()
        await server.stop(GRACE_SECONDS)


def _status(up: bool) -> health_pb2.HealthCheckResponse.ServingStatus:
    response = health_pb2.HealthCheckResponse
    return response.SERVING if up else response.NOT_SERVING


def _bind(server: grpc.aio.Server, listen: str, tls: ServerTls | None) -> int:
    try:
        if tls is None:
            return server.add_insecure_port(listen)
        return server.add_secure_port(listen, _credentials(tls))
    except RuntimeError as failure:  # raised by gRPC if it cannot bind the address
        raise ScalerSettingsInvalid(
            key="listen",
            value=listen,
            expected="which cannot be bound: it is in use, or not an address of this host",
        ) from failure


def _credentials(tls: ServerTls) -> grpc.ServerCredentials:
    try:
        # gRPC accepts any bytes and then fails every handshake; OpenSSL reports what is wrong.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_authority:
            context.load_verify_locations(tls.client_authority)
        authority = tls.client_authority.read_bytes() if tls.client_authority else None
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    except OSError as failure:  # SSLError is an OSError, too
        files = [str(each) for each in (tls.certificate, tls.key, tls.client_authority) if each]
        raise ScalerSettingsInvalid(
            key="tls", value=files, expected=f"expected a certificate and its key: {failure}"
        ) from failure
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
