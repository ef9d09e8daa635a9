"""Follows the brokers of a running gateway: those that join its cluster are served, those that leave are not.

With listed brokers, the settings file is followed; its other keys apply at the next start. With a bootstrap
address, the cluster is asked. A broker that is only down stays: brokers leave when they are unregistered.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from penstock.gateway.process.discovery import placed
from penstock.gateway.settings import read_gateway_file
from penstock.kafka.admin import brokers
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.gateway.config import Broker, GatewayConfig
    from penstock.gateway.process.tenant_source import StateSource
    from penstock.gateway.settings import GatewaySettings
    from penstock.kafka.client import Client

FILE_SECONDS: Final = 0.5  # between two looks at the file
CLUSTER_SECONDS: Final = 5.0  # between two descriptions of the cluster
FENCED_SINCE: Final = 2  # the version of DescribeCluster that lists brokers which are down

log = structlog.get_logger("penstock.gateway")


class BrokerSource:
    """Rebases the tenants' source on the brokers that the gateway should serve now."""

    def __init__(
        self, path: Path, settings: GatewaySettings, config: GatewayConfig, source: StateSource
    ) -> None:
        self._path, self._settings, self._base, self._source = path, settings, config, source

    async def run(self, client: Client) -> None:
        """Until cancelled."""
        seconds = FILE_SECONDS if self._settings.kafka is None else CLUSTER_SECONDS
        stamp = self._stamp()
        while True:
            await asyncio.sleep(seconds)
            try:
                if self._settings.kafka is not None:
                    self._apply(await self._described(client))
                elif (now := self._stamp()) != stamp:
                    stamp = now
                    self._apply(read_gateway_file(self._path)[1].brokers)
            except PenstockError as failure:
                log.warning("brokers not followed", error=str(failure))

    def _apply(self, now: tuple[Broker, ...]) -> None:
        if now and now != self._base.brokers:
            self._base = replace(self._base, brokers=now)
            self._source.rebase(self._base)

    async def _described(self, client: Client) -> tuple[Broker, ...]:
        described = await brokers.describe(client, fenced=True)
        now = placed(self._path, self._settings, self._base, described, quiet=True)
        if (await client.connection()).versions["DescribeCluster"].last >= FENCED_SINCE:
            return now
        listed = {broker.id for broker in now}  # an older Kafka does not list brokers that are down
        return (*now, *(broker for broker in self._base.brokers if broker.id not in listed))

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
