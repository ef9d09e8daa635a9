"""A session whose tenant has limits: what is too much passes, is told of, and then waits (KIP-219).

Both directions are charged for what goes by. Whoever is in debt is answered with the time it has to
wait, and its connection is not read for that long; the broker's side is read on, so that answers
never wait. While nothing can be in debt, a request costs three comparisons more than without limits.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.gateway import rebuild
from penstock.gateway.dialogue import LOOK_UP_VERSION, Dialogue
from penstock.gateway.partitions import CREATE_TOPICS, STRICT_FIRST, judge
from penstock.gateway.session import Session
from penstock.gateway.throttling import FETCH, lowered, marked
from penstock.model.events import Dimension
from penstock.quota.buckets import throttle_ms
from penstock.wire.splice import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.gateway.admission import Denial
    from penstock.gateway.calibration import Calibration, Work
    from penstock.gateway.config import Broker, Holder
    from penstock.gateway.routes import Route
    from penstock.gateway.server import Gateway
    from penstock.gateway.session import Then
    from penstock.gateway.tenancy import Realm
    from penstock.gateway.throttling import Asked, Quotas, TenantQuota
    from penstock.gateway.tuned import Part, Tuning
    from penstock.gateway.upstream import Upstream
    from penstock.wire.frames import Request
    from penstock.wire.splice import Seen

MUTED: Final = 1 << 10  # among the reasons in `states` why a client is not read
# Clients give a request half a minute by default. What is still owed then is waited for the next time.
MUTE_SECONDS_MAX: Final = 15.0
FETCH_KEY: Final = FETCH.to_bytes(2)
EVERY_TOPIC: Final = None  # of a Metadata request; the broker's authorizer leaves the tenant's own
TOLD_MS_MAX: Final = int(MUTE_SECONDS_MAX * 1000)


class ThrottledSession(Session):
    __slots__ = (
        "_calibration", "_muted_until", "_own_until", "_part", "_quota", "_quotas", "_telling", "_tuning",
        "_unmuting", "_work",
    )  # fmt: skip

    def __init__(
        self,
        server: Gateway,
        number: int,
        address: str,
        broker: Broker | None,
        quotas: Quotas,
        tuning: Tuning | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        super().__init__(server, number, address, broker)
        self._quotas = quotas
        self._tuning = tuning
        self._calibration = calibration
        self._work: Work | None = None  # of a broker that tells what it does
        self._quota: TenantQuota | None = None
        self._part: Part | None = None  # of a broker on which tenants are held
        self._muted_until = 0.0
        self._own_until = 0.0  # of that, what its own quota makes it wait
        self._unmuting: asyncio.TimerHandle | None = None
        self._telling: tuple[int, Asked] | None = None
        self.dialogue = ThrottledDialogue(self)

    def held_off(self, holder: Holder) -> Denial | None:
        if self._tuning is None:
            return None
        now = self.server.now()
        part = self._tuning.part(self.broker, holder.tenant, now)
        return None if part is None else part.attempt(now)

    def link(self, upstream: Upstream, realm: Realm) -> None:
        super().link(upstream, realm)
        self._quota = self._quotas.settle(realm.tenant.id, realm.tenant.quota, self.server.now())
        self._quota.bind(self.usage)
        self.usage.throttled_seconds = self._quota.throttled_seconds
        self.usage.pressed_seconds = self._quota.pressed_seconds
        self.usage.granted = self._quota.granted
        if self._calibration is not None:
            self._work = self._calibration.of(upstream.broker)
        largest = realm.tenant.limits.request_bytes_max
        if largest is not None:
            self.requests.limits = Limits(
                min(largest, self.limits.frame_bytes_max), self.limits.held_bytes_max
            )
        self.tune()

    def tune(self) -> None:
        if self._tuning is not None and self.realm is not None:
            self._part = self._tuning.part(self.broker, self.realm.tenant.id, self.server.now())

    def data_received(self, data: bytes) -> None:
        quota = self._quota
        if quota is None:
            super().data_received(data)
            return
        # Whoever fetches does so on a connection of its own: the first request of a chunk tells.
        if data[4:6] == FETCH_KEY:
            data = self._lowered(data, quota)
        if self._part is None:
            super().data_received(data)
        else:
            with self._counted_in(self._part):
                super().data_received(data)
        usage = self.usage
        if usage.bytes_in > quota.bytes_in_next or usage.requests > quota.requests_next:
            self._mute(*quota.sent(self.server.now()))

    def _lowered(self, data: bytes, quota: TenantQuota) -> bytes:
        bytes_max, asking = quota.fetch_bytes_max, self.requests
        if self._part is not None and (held := self._part.quota.fetch_bytes_max) is not None:
            bytes_max = held if bytes_max is None else min(held, bytes_max)
        if bytes_max is None or not asking.between_frames or asking.held_bytes:
            return data
        return lowered(data, bytes_max)

    def unpause(self, reason: int) -> None:
        if self._part is None:
            super().unpause(reason)
        else:
            with self._counted_in(self._part):  # what was held is asked now
                super().unpause(reason)

    @contextlib.contextmanager
    def _counted_in(self, part: Part) -> Iterator[None]:
        """What is asked and served meanwhile counts for the broker, too; waits for it are at its end."""
        usage, there = self.usage, part.usage
        bytes_in, requests, service = usage.bytes_in, usage.requests, usage.service_seconds
        calibration = usage.calibration
        try:
            yield
        finally:
            there.bytes_in += usage.bytes_in - bytes_in
            there.requests += usage.requests - requests
            there.service_seconds += usage.service_seconds - service
            there.calibration += usage.calibration - calibration
        if there.bytes_in > part.quota.bytes_in_next:
            self._mute(*part.quota.sent(self.server.now()), part)
        if there.service_seconds > part.quota.service_next:
            self._mute(*part.quota.served(self.server.now()), part)

    def from_broker(self, data: bytes) -> None:
        quota = self._quota
        assert quota is not None, "brokers speak to those who are linked"
        quota.egress_left -= len(data)
        if self._part is not None:
            self._from_held(data, quota, self._part)
        elif quota.egress_left < 0 or self._muted_until:
            wait, reason = quota.answered(self.server.now())
            self._tell(data, wait)
            self._mute(wait, reason)
        else:
            self._pass_on(data)
        if self.usage.service_seconds > quota.service_next:
            self._mute(*quota.served(self.server.now()))

    def _from_held(self, data: bytes, quota: TenantQuota, part: Part) -> None:
        """From a broker on which tenants are held."""
        part.usage.bytes_out += len(data)
        part.quota.egress_left -= len(data)
        now = self.server.now()
        own, held = quota.answered(now), part.quota.answered(now)
        with self._counted_in(part):
            self._tell(data, max(own[0], held[0]))
        self._mute(*own)
        self._mute(*held, part)

    def _tell(self, data: bytes, wait: float) -> None:
        """Answers to somebody who may have to wait: for them, or for what it sent before."""
        told = max(wait, self._muted_until - asyncio.get_running_loop().time())
        if told > 0 and self.responses.between_frames:
            asked = {each[0]: (each[1].api, each[1].version) for each in self.waiting if each[1] is not None}
            wait_ms = min(throttle_ms(told), TOLD_MS_MAX)
            self.mark = lambda out: [marked(b"".join(out), wait_ms, asked)]
        try:
            self._pass_on(data)
        finally:
            self.mark = None

    def _pass_on(self, data: bytes) -> None:
        """To the client; of the time it took, what was work of the broker's is charged."""
        work = self._work
        if work is None:
            super().from_broker(data)
            return
        usage = self.usage
        before = usage.service_seconds
        super().from_broker(data)
        usage.calibration += work.taken_off(usage.service_seconds - before)

    def answer(self, frame: bytes) -> None:
        super().answer(self._telling_of(frame))

    def forward(self, frame: bytes, correlation_id: int, route: Route, then: Then | None = None) -> None:
        telling = self._telling
        if telling is None or then is None:
            super().forward(frame, correlation_id, route, then)
            return
        after = then

        def told(answer: bytes) -> bytes | None:
            made = after(answer)
            return None if made is None else _told(made, *telling)

        super().forward(frame, correlation_id, route, told)

    def _telling_of(self, frame: bytes) -> bytes:
        return frame if self._telling is None else _told(frame, *self._telling)

    def deleted(self, seen: Seen) -> None:
        quota = self._quota
        assert quota is not None
        deleted = sum(quota.partitions.pop(name, 1) for name, _, error in seen if not error and name)
        self.change_partitions(deleted, self.spend_changes(float(deleted)))

    def partitions_limited(self) -> bool:
        if self._quota is None or self.realm is None:
            return False
        rates = self._quota.granted()
        return Dimension.PARTITION_CHANGES in rates or self.realm.tenant.limits.partitions_max is not None

    def spend_changes(self, count: float) -> float:
        assert self._quota is not None
        return self._quota.charge({Dimension.PARTITION_CHANGES: count}, self.server.now())[0]

    def change_partitions(self, count: int, wait: float) -> None:
        """So many are made or gone, and that has to be waited for."""
        self.usage.partition_changes += count
        if wait > 0:
            self._mute(wait, Dimension.PARTITION_CHANGES)

    @contextlib.contextmanager
    def telling(self, wait: float, asked: Asked) -> Iterator[None]:
        """What is forwarded or answered meanwhile is told of this wait."""
        self._telling = (min(throttle_ms(wait), TOLD_MS_MAX), asked) if wait > 0 else None
        try:
            yield
        finally:
            self._telling = None

    def learn_partitions(self, present: Mapping[str, tuple[int, int]]) -> None:
        assert self._quota is not None
        assert self.realm is not None
        prefix = self.realm.prefix
        self._quota.partitions = {prefix + name.encode(): count for name, (count, _) in present.items()}

    def connection_lost(self, failure: Exception | None) -> None:
        if self._unmuting is not None:
            self._unmuting.cancel()
        if self._part is not None:
            self._part.muted.discard(self._relieve)
        super().connection_lost(failure)

    def _mute(self, wait: float, reason: Dimension | None, part: Part | None = None) -> None:
        """Not read for so long: for its own quota, or for what its part of a broker leaves."""
        if reason is None:
            return
        assert self._quota is not None
        now = asyncio.get_running_loop().time()
        until = now + min(wait, MUTE_SECONDS_MAX)
        if part is None:
            self._own_until = max(self._own_until, until)
        else:
            part.muted_until = max(part.muted_until, until)
            part.muted.add(self._relieve)
        if until <= self._muted_until:
            return
        self._quota.waited(reason, until - max(now, self._muted_until), pressed=part is not None)
        self._mute_until(until)

    def _mute_until(self, until: float) -> None:
        self._muted_until = until
        if self._unmuting is not None:
            self._unmuting.cancel()
        self.pause(MUTED)
        self._unmuting = asyncio.get_running_loop().call_at(until, self._unmute)

    def _relieve(self) -> None:
        """Its part of a broker has grown: perhaps it waits too long."""
        assert self._part is not None
        now = asyncio.get_running_loop().time()
        until = max(self._own_until, now + self._part.quota.debt_seconds(self.server.now()))
        if until < self._muted_until:
            self._part.muted_until = min(self._part.muted_until, until)
            self._mute_until(until)

    def wait_seconds(self) -> float:
        return self._muted_until - asyncio.get_running_loop().time() if self._muted_until else 0.0

    def _unmute(self) -> None:
        self._muted_until = self._own_until = 0.0
        if self._part is not None:
            self._part.muted.discard(self._relieve)
        self.unpause(MUTED)


class ThrottledDialogue(Dialogue):
    """Counts partitions before it lets more of them be made."""

    session: ThrottledSession

    def build_anew(self, request: Request, route: Route) -> None:
        if request.api in STRICT_FIRST and self.session.partitions_limited():
            self.busy(self._count(request, route))
        else:
            super().build_anew(request, route)

    async def _count(self, request: Request, route: Route) -> None:
        session, server = self.session, self.session.server
        assert session.realm is not None
        tenant = session.realm.tenant
        answer = await self.ask_metadata(EVERY_TOPIC, LOOK_UP_VERSION)
        present = rebuild.partitions_present(answer, tenant.prefix.decode())
        session.learn_partitions(present)
        judged = judge(request, present, tenant.limits.partitions_max, session.spend_changes)
        brokers = server.config.brokers_for(tenant)
        if request.api == CREATE_TOPICS:
            made, key = rebuild.create_topics(judged.request, tenant, brokers, server.place), "Topics"
        else:
            made = rebuild.create_partitions(judged.request, tenant, brokers, server.place, present)
            key = "Results"
        session.to_broker = []
        with session.telling(judged.wait_seconds, (request.api, request.version)):
            both = replace(made, refused=(*judged.refused, *made.refused))
            self.forward_rebuilt(request, both.request, both.entries, route, key)
        session.send(session.to_broker)
        session.change_partitions(judged.changes, judged.wait_seconds)


def _told(frame: bytes, wait_ms: int, asked: Asked) -> bytes:
    """One whole answer."""
    return marked(frame, wait_ms, {int.from_bytes(frame[4:8], signed=True): asked})


def throttled_by(
    quotas: Quotas, tuning: Tuning | None = None, calibration: Calibration | None = None
) -> Callable[[Gateway, int, str, Broker | None], Session]:
    """For `Gateway(session=…)`."""

    def made(server: Gateway, number: int, address: str, broker: Broker | None) -> Session:
        return ThrottledSession(server, number, address, broker, quotas, tuning, calibration)

    return made
