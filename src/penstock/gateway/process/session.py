"""The asyncio side of a connection: two transports, and a `Connection` between them.

A `Session` is the client's protocol; the broker's is `upstream.Upstream`. Both hand their bytes to the
connection, and `_carry_out` does what it asks for: writing, pausing a side, logging in, closing.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.gateway.connection.connection import Connection
from penstock.gateway.connection.effects import Call, Deny, LogIn, Wake
from penstock.gateway.connection.login import authenticate, claimed_key
from penstock.gateway.connection.states import BROKER_SLICE, SLICED, State
from penstock.gateway.limits.admission import Denial
from penstock.gateway.process.metered import Metered
from penstock.gateway.process.upstream import dial
from penstock.model.errors import PenstockError
from penstock.model.errors.gateway import UpstreamUnreachable

if TYPE_CHECKING:
    from penstock.gateway.config import Broker, Principal
    from penstock.gateway.connection.effects import Effect
    from penstock.gateway.limits.throttle_queue import ThrottleQueue
    from penstock.gateway.process.server import Gateway
    from penstock.gateway.process.upstream import Upstream
    from penstock.wire.frames import Request
    from penstock.wire.splice import Buffer

JOINED_BYTES_MAX: Final = 32 * 1024
REFUSED_SECONDS: Final = 0.2  # a failed login waits this long before its connection is closed
# A valid login beyond a limit waits longer and gets no response. To clients a refusal is final and a closed
# connection is not; the later and the more spread out they return, the less it costs.
TOO_MANY: Final = frozenset(
    (Denial.TENANT_RATE, Denial.TENANT_FULL, Denial.BROKER_RATE, Denial.GATEWAY_FULL, Denial.STATE_OLD)
)
TOO_MANY_SECONDS_MIN: Final = 1.0
TOO_MANY_SECONDS_MAX: Final = 3.0


class Session:
    """A client's asyncio protocol, without the base class, which mypyc cannot compile."""

    __slots__ = (
        "_broker_lost", "_now", "_reads_broker", "_reads_client", "_ready", "_tasks", "breached",
        "broker_transport", "claimed_key", "connection", "server", "sni_tenant", "transport", "upstream",
    )  # fmt: skip

    def __init__(self, server: Gateway, number: int, address: str, broker: Broker | None) -> None:
        self.server = server
        self._now = server.now
        self.connection = Connection(
            server.services, number, address, broker, server.anonymous_usage, self, self._now()
        )
        self.sni_tenant = ""  # empty unless the SNI host name selects a tenant
        self.breached = False  # a limit, and counted for it
        self.claimed_key = ""  # of a failed login, for its log line
        self.transport: asyncio.Transport | None = None
        self.upstream: Upstream | None = None
        self.broker_transport: asyncio.Transport | None = None  # the upstream's
        self._reads_client = True
        self._reads_broker = True
        self._broker_lost = False  # while what it sent waits for a slice
        self._ready = False  # in the ready queue
        self._tasks: set[asyncio.Task[None]] = set()

    # The client's side: asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports are no subclass
        if self.connection.closed:  # the handshake timed out meanwhile
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=self.server.settings.bounds.write_buffer_bytes_max)
        self.connection.accepted()
        self.server.accepted(self)
        self._carry_out()

    def data_received(self, data: bytes) -> None:
        now = self._now()
        self.connection.from_client(data, now)
        self._carry_out_since(now)

    def eof_received(self) -> None:
        """The transport closes itself."""

    def pause_writing(self) -> None:
        self.connection.client_full(True, self._now())
        self._carry_out()

    def resume_writing(self) -> None:
        self.connection.client_full(False, self._now())
        self._carry_out()

    def connection_lost(self, failure: Exception | None) -> None:
        del failure
        self.connection.ended(self._now())
        if self.upstream is not None:
            self.upstream.close()
        for task in self._tasks:
            task.cancel()
        self.server.session_closed(self)

    # The broker's side

    def from_broker(self, data: bytes) -> None:
        now = self._now()
        self.connection.from_broker(data, now)
        self._carry_out_since(now)

    def broker_backpressure(self, full: bool) -> None:
        self.connection.broker_full(full, self._now())
        self._carry_out()

    def broker_lost(self, failure: Exception | None) -> None:
        del failure
        self._broker_lost = True
        self._close_if_broker_lost()
        assert self.upstream is not None
        self.server.upstream_closed(self.upstream)

    # What the server asks for

    def next_slice(self) -> None:
        """Continue with what was read. A failure ends this connection alone."""
        self._ready = False
        now = self._now()
        try:
            self.connection.next_slice(now)
        except Exception as failure:  # noqa: BLE001 - the scheduler keeps serving others
            self.internal_error(failure)
        self._carry_out_since(now)
        if self._broker_lost:
            self._close_if_broker_lost()

    def _close_if_broker_lost(self) -> None:
        """Close as soon as what the broker sent is with the client."""
        if not self.connection.closed and not self.connection.pauses & BROKER_SLICE:
            self.close("the broker closed its connection")

    def proceed(self, queue: ThrottleQueue) -> None:
        """Continue after waiting in a queue. A failure ends this connection alone."""
        try:
            self.connection.proceed(queue, self._now())
        except Exception as failure:  # noqa: BLE001 - the queue keeps serving others
            self.internal_error(failure)
        self._carry_out()

    def timer(self, queue: ThrottleQueue, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, lambda: queue.serve(self._now()))

    def sweep(self, now: float) -> None:
        """Close what has taken too long, and renew the login to the broker in time."""
        connection = self.connection
        try:
            connection.sweep(now)
            principal = connection.life.principal
            if principal is not None and connection.wants_broker_login(now):
                connection.renew_broker_login(*self.server.login_of(principal), now)
        except Exception as failure:  # noqa: BLE001 - the sweep continues with other connections
            self.internal_error(failure)
        self._carry_out()

    def hold(self, on: bool) -> None:
        self.connection.hold(on)
        self._choose_sides()

    def response_reserved(self) -> None:
        self.connection.large_responses.reserved()
        self._choose_sides()

    def request_reserved(self) -> None:
        self.connection.large_requests.reserved()
        self._choose_sides()

    def give_up(self, held: int, limit: int) -> None:
        self.connection.give_up(held, limit)
        self._carry_out()

    def broker_limits_changed(self) -> None:
        self.connection.broker_limits_changed(self._now())

    def drain(self) -> None:
        self.connection.drain(self._now())
        self._carry_out()

    def close(self, reason: str) -> None:
        """Close after flushing what was written."""
        self.connection.close(reason)
        self._carry_out()

    def abort(self, reason: str) -> None:
        self.connection.abort(reason)
        self._carry_out()

    # Carrying out

    def _carry_out_since(self, started: float) -> None:
        """Carry out, and charge the tenant for the time since then."""
        self._carry_out()
        self._charge(started)

    def _charge(self, started: float) -> None:
        """Charge the tenant for the time since then."""
        usage = self.connection.usage
        usage.processor_seconds += self._now() - started
        if usage.processor_seconds >= usage.processor_check_at:
            self.server.scheduler.charge(usage)

    def _carry_out(self) -> None:
        connection = self.connection
        if connection.to_broker:
            out, connection.to_broker = connection.to_broker, []
            _write(self.broker_transport, out)
        if connection.to_client:
            out, connection.to_client = connection.to_client, []
            _write(self.transport, out)
        if connection.effects:
            effects, connection.effects = connection.effects, []
            for effect in effects:
                self._do(effect)
        if connection.pauses or not self._reads_client or not self._reads_broker:
            self._choose_sides()

    def _choose_sides(self) -> None:
        """Pause or resume reading either side; queue for a slice of processor time."""
        connection = self.connection
        if connection.pauses & SLICED and not self._ready and not connection.closed:
            self._ready = True
            self.server.scheduler.add(self)
        reads_client = connection.reads_client
        if reads_client != self._reads_client:
            self._reads_client = reads_client
            _read(self.transport, reads_client)
        reads_broker = connection.reads_broker
        if reads_broker != self._reads_broker:
            self._reads_broker = reads_broker
            _read(self.broker_transport, reads_broker)

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Deny):
            self.server.denied(self, effect.reason, api=effect.api, error=effect.error)
        elif isinstance(effect, LogIn):
            self._log_in(effect.request)
        elif isinstance(effect, Call):
            self._run(self._call(effect))
        elif isinstance(effect, Wake):
            asyncio.get_running_loop().call_later(effect.seconds, self._wake)
        elif self.transport is None:
            return
        elif effect.at_once:
            self.transport.abort()
        elif effect.after_seconds:
            asyncio.get_running_loop().call_later(effect.after_seconds, self.close, effect.reason)
        elif not self.transport.is_closing():
            self.transport.close()

    def _wake(self) -> None:
        self.connection.tick(self._now())
        self._carry_out()

    async def _call(self, call: Call) -> None:
        principal = self.connection.life.principal
        assert principal is not None, "platform requests come after login"
        result: Any
        try:
            async with self.server.platform_turns.of(principal.tenant):
                result = await call.work
        except PenstockError as failure:
            result = failure
        self.connection.resolved(result, self._now())
        self._carry_out()

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Any) -> None:
        """Close the connection if its work has a defect; otherwise its client would wait for ever."""
        try:
            await Metered(work, self._charge)
        except Exception as failure:  # noqa: BLE001 - it ends this connection alone
            self.internal_error(failure)

    def internal_error(self, failure: Exception) -> None:
        """Report a defect and close."""
        context = {"message": "a connection failed", "exception": failure, "protocol": self}
        asyncio.get_running_loop().call_exception_handler(context)
        self.close("internal error")

    # Login

    def _log_in(self, request: Request) -> None:
        server, connection = self.server, self.connection
        now = self._now()
        principal = authenticate(request.body["AuthBytes"], server.config, connection.life.address)
        if principal is None:
            self._failed(request, Denial.BAD_CREDENTIALS)
        elif self.sni_tenant and self.sni_tenant != principal.tenant:
            self._failed(request, Denial.WRONG_HOST)
        elif connection.life.serves:
            connection.logged_in_again(request, principal, now)
        else:
            self._admit(request, principal)
        self._carry_out()

    def _admit(self, request: Request, principal: Principal, *, waited: bool = False) -> None:
        """Admit a login that is authentic, now or when it is due."""
        server = self.server
        wait = 0.0 if waited else server.admission.login_wait(principal.address, principal.key, self._now())
        if wait:
            server.usage_of(principal.tenant).logins_delayed += 1
            asyncio.get_running_loop().call_later(wait, self._admit_late, request)
            return
        denial = server.admit_login(self, principal) if wait is not None else Denial.TENANT_RATE
        if denial is not None:
            self._reject(request, denial)
            return
        self.connection.logged_in(principal, server.usage_of(principal.tenant))
        self._run(self._link(request, principal))

    def _admit_late(self, request: Request) -> None:
        """The wait of a login is over; its key may have been revoked meanwhile."""
        connection = self.connection
        if connection.closed:
            return
        principal = authenticate(request.body["AuthBytes"], self.server.config, connection.life.address)
        if principal is None:
            self._failed(request, Denial.BAD_CREDENTIALS)
        else:
            self._admit(request, principal, waited=True)
        self._carry_out()

    def _failed(self, request: Request, reason: Denial) -> None:
        """Count a failed login, and reject it, at once or after the wait of a key that fails often."""
        server = self.server
        self.claimed_key = claimed_key(request.body["AuthBytes"])
        known = self.claimed_key if self.claimed_key in server.config.keys else ""
        wait = server.admission.failed(self.connection.life.address, known, self._now())
        if wait:
            asyncio.get_running_loop().call_later(wait, self._reject_late, request, reason)
        else:
            self._reject(request, reason)

    def _reject_late(self, request: Request, reason: Denial) -> None:
        if not self.connection.closed:
            self._reject(request, reason)
            self._carry_out()

    def _reject(self, request: Request, reason: Denial) -> None:
        too_many = reason in TOO_MANY
        patient = too_many and not self.server.admission.half_open_crowded
        seconds = random.uniform(TOO_MANY_SECONDS_MIN, TOO_MANY_SECONDS_MAX) if patient else REFUSED_SECONDS
        self.connection.login_rejected(request, reason, silent=too_many, seconds=seconds)

    async def _link(self, request: Request, principal: Principal) -> None:
        """Connect to the broker as the principal's user, and join both sides."""
        connection, server = self.connection, self.server
        broker = connection.broker or server.next_broker()
        connection.broker = broker
        try:
            async with asyncio.timeout(server.settings.bounds.handshake_seconds):
                user, password = server.login_of(principal)
                async with server.dials:
                    upstream, lifetime_ms = await dial(
                        broker, user, password, server.upstream_tls, server.upstream_name
                    )
                if connection.life.state is not State.LINKING:
                    upstream.close()
                    return
        except PenstockError as failure:
            connection.fail(failure)
        except TimeoutError:
            reason = "it did not respond in time"
            connection.fail(UpstreamUnreachable(broker=broker.id, address=broker.address, reason=reason))
        else:
            self.join(upstream)
            connection.linked(request, server.context_of(principal.tenant), broker, lifetime_ms, self._now())
        self._carry_out()

    def join(self, upstream: Upstream) -> None:
        """Let bytes flow between the client and this broker connection."""
        self.upstream = upstream
        upstream.on_backpressure = self.broker_backpressure
        upstream.on_close = self.broker_lost
        upstream.hand_over(self.from_broker)
        assert upstream.transport is not None
        self.broker_transport = upstream.transport
        upstream.transport.set_write_buffer_limits(high=self.server.settings.bounds.write_buffer_bytes_max)


def _read(transport: asyncio.Transport | None, on: bool) -> None:
    if transport is None or transport.is_closing():
        return
    if on:
        transport.resume_reading()
    else:
        transport.pause_reading()


def _write(transport: asyncio.Transport | None, out: list[Buffer]) -> None:
    """Write; a few small buffers are joined, which saves a system call or a TLS record."""
    if transport is None or transport.is_closing():
        return
    if len(out) == 1:
        transport.write(out[0])
    elif sum(map(len, out)) <= JOINED_BYTES_MAX:
        transport.write(b"".join(out))
    else:
        transport.writelines(out)
