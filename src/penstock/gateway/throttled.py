"""A session whose tenant has limits: what is too much waits for its turn, and is told so (KIP-219).

Both directions are charged for what goes by. While a limit is in debt, frames that would use more of it
are left where they are and their connections stand in line (`lines`); answers meanwhile carry the time
that their client has to wait. The broker's side is read on, so that answers never wait. While nothing
can be in debt, a request costs three comparisons more than without limits.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.gateway import rebuild
from penstock.gateway.dialogue import LOOK_UP_VERSION, Dialogue
from penstock.gateway.lines import WAIT_SECONDS_MAX
from penstock.gateway.metering import NEVER_REACHED
from penstock.gateway.partitions import CREATE_TOPICS, STRICT_FIRST, judge
from penstock.gateway.session import Session
from penstock.gateway.states import IN_LINE
from penstock.gateway.throttling import FETCH, PRODUCE, SHARE_FETCH, lowered, marked
from penstock.model.events import Dimension
from penstock.quota.buckets import throttle_ms
from penstock.wire.splice import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.gateway.admission import Denial
    from penstock.gateway.calibration import Calibration, Work
    from penstock.gateway.config import Broker, Holder
    from penstock.gateway.lines import Line
    from penstock.gateway.routes import Route
    from penstock.gateway.server import Gateway
    from penstock.gateway.session import Then
    from penstock.gateway.tenancy import Realm
    from penstock.gateway.throttling import Asked, Quotas, TenantQuota, Told
    from penstock.gateway.tuned import Part, Tuning
    from penstock.gateway.upstream import Upstream
    from penstock.wire.frames import Request
    from penstock.wire.splice import Seen

MUTED: Final = 1 << 10  # among the reasons in `states` why a client is not read: for what it has changed
FETCH_KEY: Final = FETCH.to_bytes(2)
EVERY_TOPIC: Final = None  # of a Metadata request; the broker's authorizer leaves the tenant's own
TOLD_MS_MAX: Final = int(WAIT_SECONDS_MAX * 1000)
OTHER: Final = -1
KEYS: Final = {"Produce": PRODUCE, "Fetch": FETCH, "ShareFetch": SHARE_FETCH}


class ThrottledSession(Session):
    __slots__ = (
        "_asked", "_calibration", "_came", "_expected", "_line", "_muted_until", "_paid", "_part", "_passed",
        "_quota", "_quotas", "_telling", "_tuning", "_turn", "_unmuting", "_work",
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
        self._line: Line | None = None  # in which it stands
        self._turn: Line | None = None  # in which it is its turn just now
        self._passed: list[Line] = []  # in which its turn came for the frame that is next
        self._paid: list[tuple[Line, float]] = []  # for the frame that has begun
        self._asked = 0  # what was not answered when it last asked
        self._came = self._expected = 0  # bytes from the broker since, and what a fetch is taken to get
        self._muted_until = 0.0
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
            self.limit_requests(Limits(min(largest, self.limits.frame_bytes_max), self.limits.held_bytes_max))
        self.tune()

    def tune(self) -> None:
        if self._tuning is None or self.realm is None or self._quota is None:
            return
        self._part = self._tuning.part(self.broker, self.realm.tenant.id, self.server.now())
        if self._part is not None:
            self._part.quota.throttled_seconds = self._quota.pressed_seconds

    def data_received(self, data: bytes) -> None:
        # Whoever fetches does so on a connection of its own: the first request of a chunk tells.
        if self._quota is not None and data[4:6] == FETCH_KEY:
            data = self._lowered(data, self._quota)
            self._expect()
        super().data_received(data)
        self._asked = len(self.waiting)

    def _lowered(self, data: bytes, quota: TenantQuota) -> bytes:
        bytes_max, asking = quota.fetch_bytes_max, self.requests
        if self._part is not None:
            bytes_max = min(bytes_max, self._part.quota.fetch_bytes_max)
        if bytes_max == NEVER_REACHED or not asking.between_frames or asking.held_bytes:
            return data
        return lowered(data, bytes_max)

    def _expect(self) -> None:
        """What the next fetch will get: as much as the last ones did."""
        answers = self._asked - len(self.waiting)
        if answers > 0:
            self._expected, self._came = self._came // answers, 0

    # Frames from the client, one by one

    def counted(self, size: int) -> None:
        usage = self.usage
        if self._paid or self._passed:
            self._paid, self._passed = [], []
        if usage.bytes_in > usage.bytes_in_next or usage.requests > usage.requests_next:
            assert self._quota is not None, "nobody else has anything to reach"
            self._quota.sent(self.server.now())
        if self._part is not None:
            there = self._part.usage
            there.bytes_in += size
            there.requests += 1
            if there.bytes_in > there.bytes_in_next:
                self._part.quota.sent(self.server.now())

    def gated(self) -> bool:
        return self.usage.gates != 0 or (self._part is not None and self._part.usage.gates != 0)

    def waits(self, api_key: int, size: int) -> bool:
        if self._quota is None:
            return False
        now = self.server.now()
        lines: list[Line] = []
        for quota in (self._quota,) if self._part is None else (self._quota, self._part.quota):
            for line in quota.lines(api_key, now):
                if line in self._passed:
                    lines.append(line)
                elif line.blocks(now, in_turn=line is self._turn):
                    self._line = line
                    line.join(self, self._worth(line, size), now)
                    self.pause(IN_LINE)
                    return True
                elif len(line):
                    lines.append(line)
                else:
                    quota.open(line.dimension)
        self._paid = [(line, self._worth(line, size)) for line in lines]
        for line, amount in self._paid:
            line.take(amount, now)
        self._passed = []
        return False

    def _worth(self, line: Line, size: int) -> float:
        """What a request is taken to use; of a fetch it is what the last one did."""
        match line.dimension:
            case Dimension.INGRESS_BYTES:
                return float(size)
            case Dimension.EGRESS_BYTES:
                return float(self._expected)
            case Dimension.REQUESTS:
                return 1.0
            case _:
                return 0.0

    def go_on(self, line: Line) -> None:
        self._line = None
        self._turn = line
        self._passed.append(line)
        self._expect()
        try:
            self.unpause(IN_LINE)
        except Exception as failure:  # noqa: BLE001 - whatever it is, as in a loop, this connection alone ends
            self._end(failure)
        finally:
            self._turn = None
            self._asked = len(self.waiting)

    def _end(self, failure: Exception) -> None:
        """A fault of ours, while others are being served behind it."""
        told = {"message": "a connection's turn in line failed", "exception": failure, "protocol": self}
        asyncio.get_running_loop().call_exception_handler(told)
        self.close("fault")

    def alarm(self, line: Line, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, lambda: line.serve(self.server.now()))

    # Answers from the broker

    def from_broker(self, data: bytes) -> None:
        quota, part = self._quota, self._part
        assert quota is not None, "brokers speak to those who are linked"
        size = len(data)
        self._came += size
        quota.egress_left -= size
        if quota.egress_left < 0:
            quota.answered(self.server.now())
        if part is not None:
            self._from_held(data, part)
        elif self.usage.gates or self._muted_until:
            self._tell(data)
        else:
            self._pass_on(data)
        if self.usage.service_seconds > quota.service_next:
            quota.served(self.server.now())

    def _from_held(self, data: bytes, part: Part) -> None:
        """From a broker on which tenants are held: what it does counts for the broker, too."""
        usage, there = self.usage, part.usage
        there.bytes_out += len(data)
        part.quota.egress_left -= len(data)
        if part.quota.egress_left < 0:
            part.quota.answered(self.server.now())
        service, calibration = usage.service_seconds, usage.calibration
        self._tell(data)
        there.service_seconds += usage.service_seconds - service
        there.calibration += usage.calibration - calibration
        if there.service_seconds > part.quota.service_next:
            part.quota.served(self.server.now())

    def _tell(self, data: bytes) -> None:
        """Answers to somebody who may have to wait the next time."""
        if (self.gated() or self._muted_until) and self.responses.between_frames:
            told = self._told()
            if told:
                self.mark = lambda out: [marked(b"".join(out), told)]
        try:
            self._pass_on(data)
        finally:
            self.mark = None

    def _told(self) -> dict[int, Told]:
        """By correlation id, how long whoever asked for it has to wait before it may ask for more."""
        told: dict[int, Told] = {}
        waits: dict[int, int] = {}
        for number, route, *_ in self.waiting:
            if route is None:
                continue
            key = KEYS.get(route.api, OTHER)
            if key not in waits:
                waits[key] = min(throttle_ms(self._wait_of(key)), TOLD_MS_MAX)
            if waits[key] > 0:
                told[number] = (route.api, route.version, waits[key])
        return told

    def _wait_of(self, api_key: int) -> float:
        now = self.server.now()
        longest = self._muted_until - now
        assert self._quota is not None
        for quota in (self._quota,) if self._part is None else (self._quota, self._part.quota):
            for line in quota.lines(api_key, now):
                longest = max(longest, line.wait_seconds(now))
        return max(longest, 0.0)

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
        return self._quota.charge({Dimension.PARTITION_CHANGES: count}, self.server.now())

    def change_partitions(self, count: int, wait: float) -> None:
        """So many are made or gone, and that has to be waited for."""
        self.usage.partition_changes += count
        if wait > 0:
            self._mute(min(wait, WAIT_SECONDS_MAX))

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
        if self._line is not None:
            self._line.leave(self, self.server.now())
            self._line = None
        for line, amount in self._paid:
            if line.dimension is not Dimension.EGRESS_BYTES:  # which is counted when it comes
                line.forfeit(amount)
        super().connection_lost(failure)

    def _mute(self, seconds: float) -> None:
        """Not read for so long, whatever it asks for: partitions are made and deleted one after another."""
        assert self._quota is not None
        now = self.server.now()
        until = now + seconds
        if until <= self._muted_until:
            return
        self._quota.waited(Dimension.PARTITION_CHANGES, until - max(now, self._muted_until))
        self._muted_until = until
        if self._unmuting is not None:
            self._unmuting.cancel()
        self.pause(MUTED)
        self._unmuting = asyncio.get_running_loop().call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        self._muted_until = 0.0
        self.unpause(MUTED)

    def wait_seconds(self) -> float:
        now = self.server.now()
        in_line = 0.0 if self._line is None else self._line.wait_seconds(now)
        return max(in_line, self._muted_until - now)


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
    return marked(frame, {int.from_bytes(frame[4:8], signed=True): (*asked, wait_ms)})


def throttled_by(
    quotas: Quotas, tuning: Tuning | None = None, calibration: Calibration | None = None
) -> Callable[[Gateway, int, str, Broker | None], Session]:
    """For `Gateway(session=…)`."""

    def made(server: Gateway, number: int, address: str, broker: Broker | None) -> Session:
        return ThrottledSession(server, number, address, broker, quotas, tuning, calibration)

    return made
