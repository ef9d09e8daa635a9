"""The scaler as a process: clusters, journal, heart-beat, gRPC with TLS, health and reflection."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import _async as health_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from penstock.kafka.client import Client
from penstock.scale.journal import Alone, Journal, TopicJournal
from penstock.scale.kafka_source import KafkaLagSource
from penstock.scale.loop import Loop
from penstock.scale.metrics import ScalerMetrics
from penstock.scale.proto import externalscaler_pb2 as pb
from penstock.scale.proto.externalscaler_pb2_grpc import add_ExternalScalerServicer_to_server
from penstock.scale.sampler import Sampler
from penstock.scale.service import ExternalScaler
from penstock.scale.turns import calm_collector
from penstock.scale.watches import Watches

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Mapping
    from wsgiref.simple_server import WSGIServer

    from penstock.scale.settings import ScalerSettings, ServerTls
    from penstock.scale.source import LagSource

GRACE_SECONDS: Final = 2.0  # that calls under way are given when the server stops
HISTORY_SECONDS: Final = 900.0  # of the samples topic that a starting instance reads back
SERVICE: Final = pb.DESCRIPTOR.services_by_name["ExternalScaler"].full_name
# KEDA keeps one connection for all ScaledObjects and pings it.
OPTIONS: Final = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
)


@dataclass(frozen=True)
class Running:
    """A scaler that answers."""

    port: int
    loop: Loop
    metrics_port: int | None


@asynccontextmanager
async def serving(settings: ScalerSettings, *, instance: str | None = None) -> AsyncIterator[Running]:
    """Everything up and running; down again when the block ends."""
    name = instance or f"{os.uname().nodename}-{os.getpid()}-{os.urandom(3).hex()}"
    async with AsyncExitStack() as stack:
        stack.enter_context(calm_collector())
        clients: dict[str, Client] = {}
        for cluster, each in settings.clusters.items():
            clients[cluster] = await stack.enter_async_context(Client(each.bootstrap, each.security()))
        sources = {cluster: KafkaLagSource(client) for cluster, client in clients.items()}
        journal: Journal = Alone()
        if settings.samples_cluster is not None:
            topic = TopicJournal(
                clients[settings.samples_cluster], settings.samples_topic, history_seconds=HISTORY_SECONDS
            )
            await topic.prepare()
            journal = topic
        intervals = {cluster: each.interval for cluster, each in settings.clusters.items()}
        running = await stack.enter_async_context(
            served(sources, journal, intervals, listen=settings.listen, tls=settings.tls,
                   metrics=settings.metrics, instance=name)
        )  # fmt: skip
        yield running


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
    """The same on any source and journal."""
    watches = Watches(intervals)
    numbers = ScalerMetrics()
    samplers = {
        cluster: Sampler(cluster, source, watches, instance=instance, interval=intervals[cluster])
        for cluster, source in sources.items()
    }
    loop = Loop(samplers, journal, watches, numbers, instance=instance)
    server = grpc.aio.server(options=OPTIONS)
    add_ExternalScalerServicer_to_server(ExternalScaler(loop), server)  # type: ignore[no-untyped-call]  # generated
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection((SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
                                         reflection.SERVICE_NAME), server)  # fmt: skip
    port = _bind(server, listen, tls)
    beating = asyncio.create_task(loop.run())
    http = _serve_metrics(metrics, numbers) if metrics else None
    try:
        await server.start()
        for each in ("", SERVICE):
            await health.set(each, health_pb2.HealthCheckResponse.SERVING)
        yield Running(port, loop, http[0].server_port if http else None)
    finally:
        await health.enter_graceful_shutdown()
        await server.stop(GRACE_SECONDS)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        if http:
            http[0].shutdown()
            http[0].server_close()
            http[1].join()


def _bind(server: grpc.aio.Server, listen: str, tls: ServerTls | None) -> int:
    if tls is None:
        return server.add_insecure_port(listen)
    authority = tls.client_authority.read_bytes() if tls.client_authority else None
    credentials = grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.certificate.read_bytes())],
        authority,
        require_client_auth=authority is not None,
    )
    return server.add_secure_port(listen, credentials)


def _serve_metrics(address: str, metrics: ScalerMetrics) -> tuple[WSGIServer, threading.Thread]:
    host, _, port = address.rpartition(":")
    return start_http_server(int(port), addr=host, registry=metrics.registry)
