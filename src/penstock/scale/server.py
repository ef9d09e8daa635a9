"""The scaler as a service: gRPC with TLS, health and reflection, and metrics, before a sampler.

`serving` is how it runs: calls are answered here, sampling and judging go on in a process of their
own (`supervisor`).
"""

from __future__ import annotations

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

from penstock.garbage import rare_collections
from penstock.model.errors.scale import ScalerSettingsInvalid
from penstock.scale.board import Board
from penstock.scale.metrics import CallMetrics
from penstock.scale.page import page_served
from penstock.scale.proto import externalscaler_pb2 as pb
from penstock.scale.proto.externalscaler_pb2_grpc import add_ExternalScalerServicer_to_server
from penstock.scale.service import ExternalScaler
from penstock.scale.supervisor import SamplerProcess
from penstock.scale.turns import COLLECTOR
from penstock.scale.watches import Watches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.scale.settings import ScalerSettings, ServerTls

GRACE_SECONDS: Final = 2.0  # that calls under way are given when the server stops
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
    board: Board
    metrics_port: int | None
    sampler: SamplerProcess


@asynccontextmanager
async def serving(settings: ScalerSettings, *, instance: str | None = None) -> AsyncIterator[Running]:
    """Everything up and running; down again when the block ends."""
    name = instance or f"{os.uname().nodename}-{os.getpid()}-{os.urandom(3).hex()}"
    sampler = SamplerProcess(settings, instance=name)
    watches = Watches({cluster: each.interval for cluster, each in settings.clusters.items()})
    board = Board(frozenset(settings.clusters), watches, CallMetrics(), wish=sampler.wish)
    health = health_aio.HealthServicer()

    async def shown(up: bool) -> None:
        await health.set(SERVICE, _status(up))

    async def page() -> bytes:
        return generate_latest(board.metrics.registry) + await sampler.page()

    async with AsyncExitStack() as stack:
        stack.enter_context(rare_collections(*COLLECTOR))
        await stack.enter_async_context(sampler.supervised(board, shown))
        port = await stack.enter_async_context(answering(board, health, settings.listen, settings.tls))
        metrics_port = None
        if settings.metrics:
            metrics_port = await stack.enter_async_context(page_served(settings.metrics, page))
        yield Running(port, board, metrics_port, sampler)


@asynccontextmanager
async def answering(
    board: Board, health: health_aio.HealthServicer, listen: str, tls: ServerTls | None
) -> AsyncIterator[int]:
    """KEDA's protocol on a socket; the port."""
    server = grpc.aio.server(options=OPTIONS)
    add_ExternalScalerServicer_to_server(ExternalScaler(board), server)  # type: ignore[no-untyped-call]  # generated
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
    found = health_pb2.HealthCheckResponse
    return found.SERVING if up else found.NOT_SERVING


def _bind(server: grpc.aio.Server, listen: str, tls: ServerTls | None) -> int:
    try:
        if tls is None:
            return server.add_insecure_port(listen)
        return server.add_secure_port(listen, _credentials(tls))
    except RuntimeError as failure:  # gRPC's way to say that the address cannot be had
        raise ScalerSettingsInvalid(
            key="listen", value=listen, expected="which cannot be bound: is it free, and of this machine?"
        ) from failure


def _credentials(tls: ServerTls) -> grpc.ServerCredentials:
    try:
        # gRPC takes any bytes and then serves nobody; OpenSSL says what is wrong with them.
        checked = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        checked.load_cert_chain(tls.certificate, tls.key)
        if tls.client_authority:
            checked.load_verify_locations(tls.client_authority)
        authority = tls.client_authority.read_bytes() if tls.client_authority else None
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    except OSError as failure:  # ssl's errors are of this kind, too
        files = [str(each) for each in (tls.certificate, tls.key, tls.client_authority) if each]
        raise ScalerSettingsInvalid(
            key="tls", value=files, expected=f"expected a certificate and its key: {failure}"
        ) from failure
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
