"""A session whose tenant has limits: what is too much passes, is told of, and then waits (KIP-219).

Both directions are charged as they go by. Whoever is in debt is answered with the time it has to
wait, and its connection is not read for that long; the broker's side is read on, so that answers
never wait. Tenants without limits take the plain path.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.gateway.session import Session
from penstock.gateway.throttling import marked
from penstock.model.events import Dimension
from penstock.quota.buckets import throttle_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.gateway.config import Broker
    from penstock.gateway.server import Gateway
    from penstock.gateway.tenancy import Realm
    from penstock.gateway.throttling import Asked, Quotas, TenantQuota
    from penstock.gateway.upstream import Upstream
    from penstock.wire.splice import Buffer

MUTED: Final = 1 << 10  # among the reasons in `states` why a client is not read
# Clients give a request half a minute by default. What is still owed then is waited for the next time.
MUTE_SECONDS_MAX: Final = 15.0
TOLD_MS_MAX: Final = int(MUTE_SECONDS_MAX * 1000)


class ThrottledSession(Session):
    def __init__(
        self, server: Gateway, number: int, address: str, broker: Broker | None, quotas: Quotas
    ) -> None:
        super().__init__(server, number, address, broker)
        self._quotas = quotas
        self._quota: TenantQuota | None = None
        self._told: tuple[int, dict[int, Asked]] | None = None
        self._muted_until = 0.0
        self._unmuting: asyncio.TimerHandle | None = None

    def link(self, upstream: Upstream, realm: Realm) -> None:
        super().link(upstream, realm)
        self._quota = self._quotas.settle(realm.tenant.id, realm.tenant.quota, self.server.now())

    def data_received(self, data: bytes) -> None:
        quota, usage = self._quota, self.usage
        if quota is None or not quota.limited:
            super().data_received(data)
            return
        requests, bytes_in = usage.requests, usage.bytes_in
        super().data_received(data)
        use = {
            Dimension.REQUESTS: float(usage.requests - requests),
            Dimension.INGRESS_BYTES: float(usage.bytes_in - bytes_in),
        }
        self._mute(*quota.charge(use, self.server.now()))

    def from_broker(self, data: bytes) -> None:
        quota, usage = self._quota, self.usage
        if quota is None or not quota.limited:
            super().from_broker(data)
            return
        seconds = usage.service_seconds
        wait, reason = quota.charge({Dimension.EGRESS_BYTES: float(len(data))}, self.server.now())
        if wait > 0 and self.responses.between_frames:
            asked = {each[0]: (each[1].api, each[1].version) for each in self.waiting if each[1] is not None}
            self._told = (min(throttle_ms(wait), TOLD_MS_MAX), asked)
        super().from_broker(data)
        self._told = None
        used = {Dimension.REQUEST_TIME_US: (usage.service_seconds - seconds) * 1e6}
        later, because = quota.charge(used, self.server.now())
        self._mute(*((later, because) if later > wait else (wait, reason)))

    def write(self, out: list[Buffer]) -> None:
        if self._told is not None and out:
            out = [marked(b"".join(out), *self._told)]
        super().write(out)

    def connection_lost(self, failure: Exception | None) -> None:
        if self._unmuting is not None:
            self._unmuting.cancel()
        super().connection_lost(failure)

    def _mute(self, wait: float, reason: Dimension | None) -> None:
        if reason is None:
            return
        assert self._quota is not None
        loop = asyncio.get_running_loop()
        now = loop.time()
        until = now + min(wait, MUTE_SECONDS_MAX)
        if until <= self._muted_until:
            return
        self._quota.waited(reason, until - max(now, self._muted_until))
        self._muted_until = until
        if self._unmuting is not None:
            self._unmuting.cancel()
        self.pause(MUTED)
        self._unmuting = loop.call_at(until, self.unpause, MUTED)


def throttled_by(quotas: Quotas) -> Callable[[Gateway, int, str, Broker | None], Session]:
    """For `Gateway(session=…)`."""

    def made(server: Gateway, number: int, address: str, broker: Broker | None) -> Session:
        return ThrottledSession(server, number, address, broker, quotas)

    return made
