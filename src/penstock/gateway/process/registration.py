"""Registers a gateway with its cluster's control plane: a heartbeat in `_penstock.gateways` while it runs.

A gateway serves once it has its name; `penstock.model.gateway_names` decides which of two with one name has
it. While Kafka cannot be reached, the gateway keeps serving, and its heartbeats continue afterwards.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from penstock import __version__
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.append import append
from penstock.kafka.compacted_topic import CompactedTopicReader
from penstock.kafka.partition_log import bounds
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.model.errors.gateway import GatewayNameTaken
from penstock.model.events import GatewayHeartbeat
from penstock.model.gateway_names import HEARTBEAT_SECONDS, LEASE_MS, GatewayNames, read_heartbeat
from penstock.process_identity import boot_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.gateway.process.server import Gateway
    from penstock.kafka.client import Client
    from penstock.model.ids import PhysicalClusterId
    from penstock.wire.records import Record

PARTITION: Final = TopicPartition(key_names.GATEWAYS_TOPIC, 0)
FAREWELL_SECONDS: Final = 3.0

log = structlog.get_logger("penstock.gateway")


class Registration:
    """`claim` the name, then `run` until cancelled, then `leave`."""

    def __init__(self, client: Client, cluster: PhysicalClusterId, gateway: str, path: Path) -> None:
        self._client = client
        now = int(time.time() * 1000)
        self._heartbeat = GatewayHeartbeat(
            cluster=cluster,
            gateway=gateway,
            instance=f"{socket.gethostname()}:{path.absolute()}",
            incarnation=os.urandom(8).hex(),
            time_ms=now,
            started_ms=now,
            version=__version__,
            boot=boot_id(),
        )
        self._names = GatewayNames()
        self._reader = CompactedTopicReader(
            client, PARTITION, apply=self._apply, reset=self._names.holders.clear
        )
        self._following: asyncio.Task[None] | None = None
        self._gateway: Gateway | None = None

    async def claim(self) -> None:
        """Returns when this gateway has its name. Raises if another one lives under it.

        One that was killed on another host keeps the name until its lease ends, so that is waited for.
        """
        self._following = asyncio.create_task(self._reader.run())
        first: GatewayHeartbeat | None = None
        while True:
            await self._write(self._heartbeat)
            _, end = await bounds(self._client, PARTITION)
            await self._reader.wait_for_offset(end - 1)
            other = self._names.contender(self._heartbeat)
            if other is None:
                return
            if first is not None and (other.incarnation, other.time_ms) != (first.incarnation, first.time_ms):
                raise self._taken(other)
            if first is None:
                first = other
                seconds = LEASE_MS / 1000
                log.warning("name of another gateway", gateway=other.gateway, instance=other.instance,
                            waiting_seconds=seconds)  # fmt: skip
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def serve(self, gateway: Gateway) -> None:
        """What the heartbeats report from now on."""
        self._gateway = gateway

    async def run(self) -> None:
        """Ends with an error if another gateway has taken the name over."""
        while True:
            try:
                await self._write(self._current())
            except PenstockError as failure:
                log.warning("heartbeat not written", error=str(failure))
            other = self._names.contender(self._heartbeat)
            if other is not None and self._reader.caught_up:
                raise self._taken(other)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def leave(self) -> None:
        """Give up the name, so that the control plane no longer counts on this gateway."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._names.contender(self._heartbeat) is not None:
            return
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._write(replace(self._current(), stopped=True))
        except (PenstockError, TimeoutError) as failure:
            log.warning("heartbeat not written", error=str(failure))

    def _current(self) -> GatewayHeartbeat:
        now, gateway = int(time.time() * 1000), self._gateway
        if gateway is None:
            return replace(self._heartbeat, time_ms=now)
        settings = gateway.settings
        by_sni = bool(settings.domain)
        return replace(
            self._heartbeat,
            time_ms=now,
            bootstrap="" if by_sni else gateway.bootstrap,
            domain=settings.domain,
            port=gateway.sni_port if by_sni else 0,
            tls=settings.certificate is not None,
            workers=settings.workers,
            connections=len(gateway.sessions),
            state_age_ms=int(gateway.state_age() * 1000),
        )

    def _taken(self, other: GatewayHeartbeat) -> GatewayNameTaken:
        bootstrap = other.bootstrap or other.domain or "no clients yet"
        return GatewayNameTaken(gateway=other.gateway, instance=other.instance, bootstrap=bootstrap)

    async def _write(self, heartbeat: GatewayHeartbeat) -> None:
        await append(self._client, PARTITION, [(heartbeat.key, heartbeat.to_bytes())])

    def _apply(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.value is None:
                continue
            try:
                heartbeat = read_heartbeat(record.value)
            except PenstockError as failure:
                log.warning("heartbeat not understood", error=str(failure))
                continue
            self._names.apply(heartbeat, record.timestamp_ms)
