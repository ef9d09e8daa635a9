"""The management address of a gateway process, served from its start until it has drained.

| the gateway | `/readyz` |
|---|---|
| has not reached its brokers and read its tenants | not ready |
| listens, and its tenants' state is current | ready |
| listens, but the state is older than `state_age_seconds_max` | not ready: it refuses new logins |
| drains | not ready |

Each worker has its own address. A successor whose port still belongs to its predecessor gets it later.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final

from penstock.metric_families import Samples
from penstock.metrics_server import MetricsServer, page_of
from penstock.model.metric_catalogue import GATEWAY

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator

    from prometheus_client import Metric

    from penstock.gateway.process.metrics import GatewayMetrics
    from penstock.gateway.settings import GatewaySettings

RETRY_SECONDS: Final = 1.0  # between two tries for a port that a predecessor still has


class Management:
    def __init__(self, settings: GatewaySettings, stop: asyncio.Event) -> None:
        self.metrics: GatewayMetrics | None = None  # once the gateway listens
        self.url = ""  # once it is served
        self._settings = settings
        self._stop = stop

    def bind(self, stack: contextlib.AsyncExitStack) -> bool:
        """Serve until the stack closes, if there is a port; False if another process has it."""
        if self._settings.metrics_port is None:
            return True
        loop = asyncio.get_running_loop()
        try:
            server = MetricsServer(
                page_of(self),
                self._settings.metrics_listen,
                self._settings.metrics_port,
                not_ready=self.not_ready,
                loop=loop,
            )
        except OSError as failure:
            if failure.errno != errno.EADDRINUSE:
                raise
            return False
        stack.callback(server.close)
        self.url = server.url
        return True

    async def wait_until_bound(self, stack: contextlib.AsyncExitStack) -> None:
        while not self.bind(stack):
            await asyncio.sleep(RETRY_SECONDS)

    def not_ready(self) -> str:
        if self._stop.is_set():
            return "it drains"
        if self.metrics is None:
            return "it does not listen yet"
        return "" if self.metrics.gateway.state_is_current() else "the state of the tenants is too old"

    def collect(self) -> Iterator[Metric]:
        return iter(Samples(GATEWAY)) if self.metrics is None else self.metrics.collect()
