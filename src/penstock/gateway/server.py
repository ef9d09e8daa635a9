"""The server: listeners, the connections behind them, and what keeps them in order.

One process on one event loop; several may serve the same ports (`supervisor`). Admission by address
happens on the accepted socket, before TLS and before a byte is read. Once a second a sweep ends what is
half-open for too long, idle for too long or closing for too long, and hands out evidence.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakKeyDictionary

import structlog

from penstock.fleet.passwords import PlatformKey
from penstock.gateway.admission import Denial, Doorkeeper
from penstock.gateway.apis import offered
from penstock.gateway.config import closed_by
from penstock.gateway.dialogue import versions_answer
from penstock.gateway.hosts import Host, host_name, parse_host
from penstock.gateway.metering import Acks, Source, Usage
from penstock.gateway.placement import spread
from penstock.gateway.platform import Platform
from penstock.gateway.routes import routes
from penstock.gateway.sampling import Samples
from penstock.gateway.session import Session
from penstock.gateway.settings import Routing
from penstock.gateway.states import Event, State, advance
from penstock.gateway.tally import Tally
from penstock.gateway.telemetry import Telemetry
from penstock.gateway.tenancy import Realm
from penstock.gateway.upstream import KEYS_KEPT_MAX
from penstock.kafka.connection import Connection
from penstock.kafka.security import Security, tls_trusting
from penstock.model import keys
from penstock.model.errors import PenstockError
from penstock.model.errors.gateway import (
    CertificateUnusable,
    ListenFailed,
    PlatformKeyMissing,
    UpstreamUnreachable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.gateway.config import Broker, GatewayConfig, Holder, Tenant
    from penstock.gateway.placement import Placement
    from penstock.gateway.settings import GatewaySettings
    from penstock.gateway.sources import ConfigSource
    from penstock.gateway.tenancy import Outward
    from penstock.gateway.upstream import Upstream
    from penstock.model.ids import LogicalClusterId
    from penstock.model.schema import Event as Evidence
    from penstock.wire.names import Names

BACKLOG: Final = 4096
ACCEPTS_AT_ONCE: Final = 8  # before other work gets its turn: each takes a tenth of a millisecond
SWEEP_SECONDS: Final = 1.0
DRAIN_POLL_SECONDS: Final = 0.02
VERSIONS_SECONDS: Final = 60.0  # between two looks at what a broker speaks
VERSIONS_RETRY_SECONDS: Final = 0.5
CLOSING_SECONDS: Final = 5.0  # for a client or a broker to take what was written before it is cut off
LOGGED_DENIALS_MAX: Final = 50  # a second; the rest is only counted

log = structlog.get_logger("penstock.gateway")


class Gateway:
    """Made, started, and in the end drained or closed; see the package for what it promises."""

    def __init__(
        self,
        settings: GatewaySettings,
        config: GatewayConfig,
        *,
        source: ConfigSource | None = None,
        place: Placement = spread,
        evidence: Callable[[Sequence[Evidence]], None] | None = None,
        session: Callable[[Gateway, int, str, Broker | None], Session] = Session,
        tally: Tally | None = None,
    ) -> None:
        self._session = session
        self.settings = settings
        self.config = config
        self.source = source
        self.place = place
        self.evidence = evidence
        self.tally = tally or Tally()
        self.doorkeeper = Doorkeeper(settings.bounds, self.tally)
        self.counted_by = Source(config.cluster, settings.gateway, os.urandom(8).hex())
        self.acks = Acks()
        self.telemetry = Telemetry()
        self.samples = Samples(settings.log_sample)
        self.nobody = Usage()
        self.usage: dict[LogicalClusterId, Usage] = {}
        self.denials: dict[Denial, int] = dict.fromkeys(Denial, 0)
        self.sessions: dict[int, Session] = {}
        self.realms: dict[LogicalClusterId, Realm] = {}
        self.ports: dict[int, int] = {}  # by broker; with SNI they are all the same
        self.versions: dict[int, tuple[dict[str, object], dict[str, object]]] = {}
        self.dials = asyncio.Semaphore(settings.bounds.dials_at_once)
        self.upstream_tls: ssl.SSLContext | None = None
        self.platform: Platform | None = None  # from the start on
        self._tls: ssl.SSLContext | None = None
        self._wanted: WeakKeyDictionary[ssl.SSLObject, Host] = WeakKeyDictionary()
        self._numbers = itertools.count(1)
        self._turns = itertools.count()
        self._listeners: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._reports = itertools.count()
        self._logged_second = (0, 0)
        self._leaving: set[Upstream] = set()  # their clients are gone, they still have bytes to send
        self._empty = asyncio.Event()
        self._empty.set()

    # Beginning and end

    async def start(self) -> None:
        """Listen; returns when what the brokers speak is known of at least one."""
        key = _platform_key(self.settings)
        self._password = lru_cache(maxsize=KEYS_KEPT_MAX)(key.password)
        if self.settings.upstream_ca is not None:
            self.upstream_tls = tls_trusting(self.settings.upstream_ca)
        self.platform = Platform(self.config.brokers, key, self.upstream_tls)
        if self.settings.certificate is not None:
            self._tls = self._tls_context()
        routes(restricted=False)  # they take their time, which no connection should have to wait for
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for broker in self.config.brokers:
            self._tasks.append(asyncio.create_task(self._watch_versions(broker, first)))
        await first
        try:
            self._listen()
        except ListenFailed:
            await self.close()
            raise
        self._tasks.append(asyncio.create_task(self._sweep()))
        if self.source is not None:
            self._tasks.append(asyncio.create_task(self._follow(self.source)))

    async def drain(self) -> None:
        """Let a successor have the ports, answer what is in flight, close.

        One broker's connections after the other's, and logins that are under way at the end: a client
        that lost all of its brokers at once would say so.
        """
        self._stop_listening()
        seconds = self.settings.bounds.drain_seconds / (len(self.config.brokers) + 1)
        for broker in (*self.config.brokers, None):
            chosen = [
                session
                for session in self.sessions.values()
                if broker is None or (session.life.serves and session.broker == broker)
            ]
            for session in chosen:
                session.drain()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while any(session.number in self.sessions for session in chosen):
                        await asyncio.sleep(DRAIN_POLL_SECONDS)
        await self.close()

    async def close(self) -> None:
        """End everything now."""
        self._stop_listening()
        for task in (*self._tasks, *self._accepting):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._accepting, return_exceptions=True)
        self._tasks.clear()
        for session in list(self.sessions.values()):
            session.abort("the gateway ends")
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                await self._empty.wait()
        except TimeoutError:
            for upstream in [*self._leaving]:
                upstream.abort()
            await self._empty.wait()
        if self.platform is not None:
            await self.platform.close()
        self._hand_out()

    @property
    def bootstrap(self) -> str:
        """Where clients begin, with routing by port."""
        host = self.settings.advertised_host
        return ",".join(f"{host}:{port}" for port in self.ports.values())

    # Listening

    def _listen(self) -> None:
        by_sni = self.settings.routing is Routing.SNI
        for broker in (None,) if by_sni else self.config.brokers:
            port = self.settings.port if broker is None else broker.offered_port
            listener = _bound(self.settings.listen, port)
            self._listeners.append(listener)
            taken = listener.getsockname()[1]
            for offered_broker in self.config.brokers if broker is None else (broker,):
                self.ports[offered_broker.id] = taken
        # Only now: an address list with a port missing must never reach anybody.
        loop = asyncio.get_running_loop()
        for listener, broker in zip(self._listeners, (None,) if by_sni else self.config.brokers):
            loop.add_reader(listener.fileno(), self._accept, listener, broker)

    def _stop_listening(self) -> None:
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    def _accept(self, listener: socket.socket, broker: Broker | None) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                client, peer = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as failure:  # out of descriptors: the connection stays in the backlog
                log.warning("cannot accept", **{keys.ERROR: str(failure)})
                return
            address = peer[0]
            denial = self.doorkeeper.knock(address, self.now())
            if denial is not None:
                self._denied(denial, address, None)  # first: who sees the end finds it counted
                client.close()
                continue
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = self._session(self, next(self._numbers), address, broker)
            self.sessions[session.number] = session
            self._empty.clear()
            task = asyncio.get_running_loop().create_task(self._take_over(client, session))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    async def _take_over(self, client: socket.socket, session: Session) -> None:
        """TLS, if any. A session that never gets a transport is ended here."""
        loop = asyncio.get_running_loop()
        protocol = cast("asyncio.Protocol", session)
        try:
            if self._tls is None:
                await loop.connect_accepted_socket(lambda: protocol, client)
            else:
                await loop.connect_accepted_socket(
                    lambda: protocol,
                    client,
                    ssl=self._tls,
                    ssl_handshake_timeout=self.settings.bounds.handshake_seconds,
                )
        except (OSError, ssl.SSLError) as failure:
            self.denied(session, Denial.MALFORMED, error=failure)
        finally:
            if session.transport is None:
                client.close()
                session.life = advance(session.life, Event.CLOSE)
                self.left(session)

    def _tls_context(self) -> ssl.SSLContext:
        path = self.settings.certificate
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(str(path))
        except (OSError, ssl.SSLError) as failure:
            raise CertificateUnusable(path=path, reason=failure) from failure
        if self.settings.routing is Routing.SNI:
            context.sni_callback = self._by_name
        return context

    def _by_name(self, tls: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> int | None:
        """Whose cluster the host name asks for; an unknown one gets no further."""
        del context
        host = parse_host(name, self.settings.domain)
        known = host is not None and host.tenant in self.config.tenant_of
        if (
            host is None
            or not known
            or (host.broker is not None and host.broker not in self.config.broker_of)
        ):
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        self._wanted[tls] = host
        return None

    # What sessions ask and tell

    @staticmethod
    def now() -> float:
        return time.monotonic()

    def accepted(self, session: Session) -> None:
        """TLS is done, if there is any."""
        assert session.transport is not None
        session.life = advance(session.life, Event.ACCEPTED)
        if self.settings.routing is not Routing.SNI:
            return
        host = self._wanted.get(session.transport.get_extra_info("ssl_object"))
        if host is None:
            self.denied(session, Denial.WRONG_HOST)
            session.close("no host name")
            return
        session.tenant_wanted = host.tenant
        session.broker = None if host.broker is None else self.config.broker_of.get(host.broker)
        tenant = self.config.tenant_of.get(host.tenant)
        if tenant is None or not tenant.network.admit(session.life.address):
            self.denied(session, Denial.NETWORK_RULE)
            session.close("network rule")

    def entered(self, session: Session, holder: Holder) -> Denial | None:
        """A login was right: count it, or say why it may not come in."""
        tenant = self.config.tenant_of[holder.tenant]
        usage = self.usage.setdefault(holder.tenant, Usage())
        usage.attempts += 1
        denial = session.held_off(holder) or self.doorkeeper.enter(tenant, holder.address, self.now())
        if denial is None:
            usage.connections += 1
            session.usage = usage
        else:
            usage.refused[denial] += 1
        return denial

    def left(self, session: Session) -> None:
        if self.sessions.pop(session.number, None) is None:
            return
        if session.witness is not None:
            session.witness.closed()
        holder = session.life.holder
        self.doorkeeper.left(session.life.address, None if holder is None else holder.tenant)
        if holder is not None:
            session.usage.connections -= 1
        if session.upstream is not None and not session.upstream.ended:
            self._leaving.add(session.upstream)
        self._see_whether_empty()

    def parted(self, upstream: Upstream) -> None:
        """A broker's connection has ended."""
        self._leaving.discard(upstream)
        self._see_whether_empty()

    def _see_whether_empty(self) -> None:
        if not self.sessions and not self._leaving:
            self._empty.set()

    def login_of(self, holder: Holder) -> tuple[str, str]:
        user = self.config.tenant_of[holder.tenant].user_of(holder.account)
        return user, self._password(user, holder.generation)

    def nearest(self) -> Broker:
        """The broker for somebody who asked for none in particular: in turn."""
        return self.config.brokers[next(self._turns) % len(self.config.brokers)]

    def realm_of(self, tenant: LogicalClusterId) -> Realm:
        realm = self.realms.get(tenant)
        if realm is None:
            realm = self.realms[tenant] = Realm(self._served(tenant), self._addresses(tenant))
        return realm

    def _served(self, tenant: LogicalClusterId) -> Tenant:
        """As this process serves it. Fetch sessions are split over the workers: beyond them a tenant pays
        with bytes and nothing else, so nobody need be asked."""
        found, workers = self.config.tenant_of[tenant], self.tally.workers
        if workers == 1:
            return found
        most = -(-found.limits.fetch_sessions_max // workers)
        return replace(found, limits=replace(found.limits, fetch_sessions_max=most))

    def outward_names(self, outward: Outward) -> Names:
        return outward

    def versions_answer(self, broker: Broker | None, version: int, correlation_id: int) -> bytes:
        """What this broker and the gateway both speak; the other brokers' if it was not reached yet."""
        known = self.versions.get(broker.id) if broker is not None else None
        apis, features = known or next(iter(self.versions.values()))
        return versions_answer(version, correlation_id, apis, features)

    def denied(self, session: Session, reason: Denial, *, api: object = None, error: object = None) -> None:
        self._denied(reason, session.life.address, session, api=api, error=error)

    def _denied(
        self,
        reason: Denial,
        address: str,
        session: Session | None,
        *,
        api: object = None,
        error: object = None,
    ) -> None:
        self.denials[reason] += 1
        second, count = self._logged_second
        now = int(self.now())
        count = count + 1 if second == now else 1
        self._logged_second = (now, count)
        if count > LOGGED_DENIALS_MAX:
            return
        holder = session.life.holder if session is not None else None
        facts: dict[str, object] = {"reason": str(reason), "address": address}
        if holder is not None:
            facts |= {keys.TENANT: holder.tenant, "key": holder.key}
        if api is not None:
            facts[keys.API] = api
        if error is not None:
            facts[keys.ERROR] = str(error)
        log.warning("denied", **facts)

    # In the background

    def _addresses(self, tenant: LogicalClusterId) -> dict[int, tuple[bytes, int]]:
        """Every broker as this tenant may know it."""
        settings = self.settings
        found = {}
        for broker in self.config.brokers:
            if settings.routing is Routing.SNI:
                host = host_name(Host(tenant, broker.id), settings.domain)
            else:
                host = settings.advertised_host
            if broker.id in self.ports:
                found[int(broker.id)] = (host.encode(), self.ports[broker.id])
        return found

    def take_over(self, config: GatewayConfig) -> None:
        """Go by a new configuration; connections that it would not let in are closed."""
        self.config = config
        holders = {n: s.life.holder for n, s in self.sessions.items() if s.life.holder is not None}
        for number in closed_by(config, holders):
            session = self.sessions[number]
            self.denied(session, Denial.KEY_REVOKED)
            session.abort("its key is no longer valid")
        for tenant in list(self.realms):
            if tenant in config.tenant_of:
                self.realms[tenant].settle(self._served(tenant), self._addresses(tenant))
            else:
                del self.realms[tenant]
        for session in self.sessions.values():
            if session.broker is not None:
                session.broker = config.broker_of.get(session.broker.id, session.broker)
            if session.realm is not None:
                session.asking.routes = routes(restricted=session.realm.restricted)
        self.telemetry.forget(config.tenant_of)
        self.samples.forget(config.tenant_of)

    async def _follow(self, source: ConfigSource) -> None:
        async for config in source.follow():
            self.take_over(config)
            log.info("configuration taken over", tenants=len(config.tenants))

    async def _watch_versions(self, broker: Broker, first: asyncio.Future[None]) -> None:
        security = Security(tls=self.upstream_tls)
        while True:
            try:
                async with await Connection.open(broker.host, broker.port, security) as connection:
                    answer = connection.api_versions
                    features = {k: v for k, v in answer.items() if k.endswith(("Features", "FeaturesEpoch"))}
                    self.versions[broker.id] = (dict(offered(connection.versions)), features)
            except PenstockError as failure:
                unreachable = UpstreamUnreachable(
                    broker=broker.id, address=f"{broker.host}:{broker.port}", reason=failure.message
                )
                log.warning("broker not reached", **{keys.BROKER: broker.id, keys.ERROR: str(unreachable)})
                await asyncio.sleep(VERSIONS_RETRY_SECONDS)
                continue
            if not first.done():
                first.set_result(None)
            await asyncio.sleep(VERSIONS_SECONDS)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep(self.now())
            self._hand_out()

    def sweep(self, now: float) -> None:
        """End what has taken too long. A session's `began` starts again with each sign of life."""
        bounds = self.settings.bounds
        for session in list(self.sessions.values()):
            state = session.life.state
            if state in (State.NEW, State.HANDSHAKE, State.LINKING):
                if now - session.began > bounds.handshake_seconds:
                    self.denied(session, Denial.HANDSHAKE_SLOW)
                    session.abort("the login took too long")
                continue
            if session.upstream is not None and now >= session.upstream.renew_at:
                session.dialogue.renew()
            if session.active or session.waiting:
                session.active = False
                session.began = now
            elif state is State.CLOSED:
                if now - session.began > CLOSING_SECONDS:
                    session.abort("it did not take what was written")
            elif now - session.began > bounds.idle_seconds:
                self.denied(session, Denial.IDLE)
                session.abort("idle")

    def _hand_out(self) -> None:
        if self.evidence is None:
            return
        sequence, now = next(self._reports), int(time.time() * 1000)
        reports: list[Evidence] = [
            usage.report(self.counted_by, tenant, sequence, now) for tenant, usage in self.usage.items()
        ]
        self.evidence([*reports, *self.acks.complete(self.counted_by, now // 1000)])


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # So that a successor can listen before its predecessor has drained.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setblocking(False)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as failure:
        listener.close()
        raise ListenFailed(host=host, port=port, reason=failure.strerror or failure) from failure
    return listener


def _platform_key(settings: GatewaySettings) -> PlatformKey:
    try:
        return PlatformKey(settings.platform_key.read_bytes())
    except OSError as failure:
        raise PlatformKeyMissing(path=settings.platform_key, reason=failure.strerror) from failure
