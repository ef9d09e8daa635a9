"""Where a gateway's configuration comes from: a protocol, and the file that implements it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from penstock.gateway.settings import read_gateway_file
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from penstock.gateway.config import GatewayConfig

POLL_SECONDS: Final = 0.5  # a revoked key must lose its connections within two seconds

log = structlog.get_logger("penstock.gateway")


class ConfigSource(Protocol):
    def follow(self) -> AsyncIterator[GatewayConfig]:
        """Yield every new configuration, complete. Invalid ones are skipped; ends only when closed."""


class FileSource:
    """A file, checked twice a second. An invalid version is logged, and the last good one stays in force."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def follow(self) -> AsyncGenerator[GatewayConfig]:
        seen = self._stamp()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            stamp = self._stamp()
            if stamp == seen or stamp is None:
                continue
            seen = stamp
            try:
                _, config = read_gateway_file(self.path)
            except PenstockError as failure:
                log.warning("configuration rejected", error=str(failure))
                continue
            yield config

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
