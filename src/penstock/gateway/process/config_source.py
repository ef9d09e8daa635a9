"""Where a gateway's configuration comes from: a protocol, and the file that implements it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from penstock.gateway.settings import read_gateway_file
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from penstock.gateway.config import GatewayConfig

POLL_SECONDS: Final = 0.5  # a revoked key must lose its connections within two seconds

log = structlog.get_logger("penstock.gateway")


class ConfigSource(Protocol):
    fresh_at: float  # monotonic time at which the configuration in force was last known to be the newest
    unread: dict[str, float]  # tenants whose newest state cannot be read, and since when (monotonic)

    def follow(self) -> AsyncGenerator[GatewayConfig]:
        """Yield every new configuration, complete. Invalid ones are skipped; ends only when closed.

        One is in force once the next is requested.

        After an error it may be called again, and starts over.
        """


class FileSource:
    """A file, checked twice a second. An invalid version is logged, and the last good one stays in force."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fresh_at = time.monotonic()
        self.unread: dict[str, float] = {}  # none: a file is read as a whole, or not at all
        self._in_force = self._stamp()

    async def follow(self) -> AsyncGenerator[GatewayConfig]:
        seen = self._in_force
        while True:
            await asyncio.sleep(POLL_SECONDS)
            stamp = self._stamp()
            if stamp is not None and stamp != seen:
                seen = stamp
                try:
                    _, config = read_gateway_file(self.path)
                except PenstockError as failure:
                    log.warning("configuration rejected", error=str(failure))
                else:
                    yield config
                    self._in_force = stamp
            if stamp is not None and stamp == self._in_force:
                self.fresh_at = time.monotonic()

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
