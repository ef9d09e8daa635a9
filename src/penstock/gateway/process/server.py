"""The server: listeners, the connections behind them, and their housekeeping.

One process on one event loop; several may serve the same ports (`worker_supervisor`). Clients are accepted in
`acceptor`. Once a second a sweep closes connections that have been half-open, idle or closing for too long,
and usage and acknowledged ranges are published.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import structlog

from penstock.balance.replica_placement import spread
from penstock.cancellation import run_separately
from penstock.certificate_reload import ServerCertificate, ServerTls
from penstock.gateway.config import revoked_connections
from penstock.gateway.connection.local_requests import api_versions_response
from penstock.gateway.connection.request_sampling import RequestSampling
from penstock.gateway.connection.routes import routes
from penstock.gateway.connection.scram_login import KEYS_KEPT_MAX
from penstock.gateway.connection.services import Services
from penstock.gateway.limits.ack_ranges import Acks
from penstock.gateway.limits.admission import BREACHES, Admission, Denial
from penstock.gateway.limits.client_zones import ClientZones
from penstock.gateway.limits.denial_log import DenialLog
from penstock.gateway.limits.metering import Source, Usage
from penstock.gateway.limits.platform_turns import PlatformTurns
from penstock.gateway.limits.share_sessions import ShareSessions
from penstock.gateway.limits.shared_counters import SharedCounters
from penstock.gateway.limits.tenant_quota import Quotas
from penstock.gateway.process.acceptor import Acceptor
from penstock.gateway.process.control_plane_calls import ControlPlaneCalls
from penstock.gateway.process.scheduler import Scheduler
from penstock.gateway.process.session import Session
from penstock.gateway.process.sni_hosts import Host, host_name, parse_host
from penstock.gateway.process.tenant_source import upstream_tls
from penstock.gateway.settings import Routing, read_platform_key
from penstock.gateway.tenancy.apis import offered
from penstock.gateway.tenancy.platform_client import platform_client
from penstock.gateway.tenancy.telemetry import Telemetry
from penstock.gateway.tenancy.tenant_names import TenantContext
from penstock.kafka.connection import Connection
from penstock.kafka.security import Security
from penstock.model import key_names
from penstock.model.backoff import Backoff
from penstock.model.errors import PenstockError
from penstock.model.errors.gateway import CertificateUnusable, ListenFailed, UpstreamUnreachable
from penstock.wire.definitions import load

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from penstock.balance.replica_placement import Placement
    from penstock.fleet.credentials.passwords import PlatformKey
    from penstock.gateway.config import Broker, GatewayConfig, Principal, Tenant
    from penstock.gateway.limits.broker_pressure import AutoTuner
    from penstock.gateway.limits.calibration import Calibration
    from penstock.gateway.limits.held_bytes import Holder
    from penstock.gateway.process.config_source import ConfigSource
    from penstock.gateway.process.upstream import Upstream
    from penstock.gateway.settings import GatewaySettings
    from penstock.gateway.tenancy.platform_client import PlatformCalls
    from penstock.model.ids import LogicalClusterId
    from penstock.model.schema import Event as PublishedEvent

SWEEP_SECONDS: Final = 1.0
DRAIN_POLL_SECONDS: Final = 0.02
VERSIONS_SECONDS: Final = 60.0  # between two requests for a broker's API versions
VERSIONS_RETRY_SECONDS: Final = 0.5
AGAIN: Final = Backoff(0.5, 30.0)  # pauses before a background task that failed runs again
CLOSING_SECONDS: Final = 5.0  # for brokers to read what was written before their connections are aborted

log = structlog.get_logger("penstock.gateway")


class Gateway:
    """One gateway process: create, `start`, and in the end `drain` or `close` it."""

    def __init__(
        self,
        settings: GatewaySettings,
        config: GatewayConfig,
        *,
        source: ConfigSource | None = None,
        place: Placement = spread,
        publish: Callable[[Sequence[PublishedEvent]], None] | None = None,
        quotas: Quotas | None = None,
        tuner: AutoTuner | None = None,
        calibration: Calibration | None = None,
        counters: SharedCounters | None = None,
    ) -> None:
        self.settings = settings
        self.config = config
        self.source = source
        self.publish = publish
        self.counters = counters or SharedCounters()
        self.admission = Admission(settings.bounds, self.counters)
        self.report_source = Source(config.cluster, settings.gateway, os.urandom(8).hex())
        self.services = Services(
            settings.bounds,
            self._api_versions_response,
            self._brokers_for,
            place=place,
            share_partitions=self.admission.share_partitions,
            quotas=quotas or Quotas(),
            tuner=tuner,
            calibration=calibration,
            acks=Acks(_epoch_ms()),
            sampling=RequestSampling(settings.log_sample),
            share_sessions=ShareSessions(self.counters),
            telemetry=Telemetry(settings.bounds.telemetry_pushes_per_second),
            client_zones=ClientZones(settings.client_zones),
        )
        self.services.held.connections_of = self._sessions_of
        self.scheduler = Scheduler()
        self.platform_turns = PlatformTurns()
        self.anonymous_usage = Usage()  # connections before login share one slice of processor time
        self.usage: dict[LogicalClusterId, Usage] = {}
        self.denials: dict[Denial, int] = dict.fromkeys(Denial, 0)
        self.sessions: dict[int, Session] = {}
        self.contexts: dict[LogicalClusterId, TenantContext] = {}
        self.ports: dict[int, int] = {}  # by broker; all the same with SNI
        self.versions: dict[int, tuple[dict[str, object], dict[str, object]]] = {}
        self._versions_responses: dict[tuple[int, int], bytes] = {}  # by broker and version of the request
        self.dials = asyncio.Semaphore(settings.bounds.dials_at_once)
        self.upstream_tls: ssl.SSLContext | None = None
        self.acceptor = Acceptor(self)
        self._sni_hosts: WeakKeyDictionary[ssl.SSLObject, Host] = WeakKeyDictionary()
        self._numbers = itertools.count(1)
        self._round_robin = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._watches: dict[int, asyncio.Task[None]] = {}  # of brokers' API versions
        self._reports = itertools.count()
        self._denial_log = DenialLog()
        self._closing_upstreams: set[Upstream] = set()  # still flushing after their clients have left
        self._empty = asyncio.Event()
        self._empty.set()

    # Starting and stopping

    async def start(self) -> None:
        """Listen, once the API versions of at least one broker are known."""
        key = read_platform_key(self.settings)
        self._password = lru_cache(maxsize=KEYS_KEPT_MAX)(key.password)
        self.upstream_tls = upstream_tls(self.settings)
        self.services.platform = self._platform_calls(key)
        if self.settings.certificate is not None:
            self._serve_tls(self.settings.certificate)
        routes(restricted=False)  # compiled now, so that no connection waits for it
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for broker in self.config.brokers:
            self._watch_broker(broker, first)
        await first
        try:
            self._listen()
        except ListenFailed:
            await self.close()
            raise
        self._tasks.append(asyncio.create_task(_kept("sweep", self._sweep)))
        if self.source is not None:
            self.follow(self.source)

    async def drain(self) -> None:
        """Free the ports for a successor, complete what is in flight, close.

        Connections of one broker are drained after those of another, pending logins last: a client that loses
        all brokers at once reports an error.
        """
        self.acceptor.stop()
        seconds = self.settings.bounds.drain_seconds / (len(self.config.brokers) + 1)
        for broker in (*self.config.brokers, None):
            draining = [
                session
                for session in self.sessions.values()
                if broker is None or (session.connection.life.serves and session.connection.broker == broker)
            ]
            for session in draining:
                session.drain()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while any(session.connection.number in self.sessions for session in draining):
                        await asyncio.sleep(DRAIN_POLL_SECONDS)
        await self.close()

    async def close(self) -> None:
        """Stop everything now."""
        await self.acceptor.close()
        tasks = [*self._tasks, *self._watches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._watches.clear()
        for session in list(self.sessions.values()):
            session.abort("the gateway stops")
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                await self._empty.wait()
        except TimeoutError:
            for upstream in [*self._closing_upstreams]:
                upstream.abort()
            await self._empty.wait()
        if self.services.platform is not None:
            await self.services.platform.close()
        self._publish_reports(last=True)

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers for clients, with routing by port."""
        addresses = [self._advertised(broker) for broker in self.config.brokers if broker.id in self.ports]
        return ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in addresses)

    def _advertised(self, broker: Broker) -> tuple[str, int]:
        """A broker's address for clients, with routing by port."""
        if broker.advertised is not None:
            return broker.advertised
        settings, port = self.settings, self.ports[broker.id]
        if settings.advertised_port is not None:
            port = settings.advertised_port + broker.id
        return settings.advertised_host, port

    @property
    def sni_port(self) -> int:
        """The port for clients, with routing by SNI."""
        return self.settings.advertised_port or next(iter(self.ports.values()))

    @property
    def upstream_name(self) -> str | None:
        """The name that brokers' certificates must have, if it is not their host."""
        return None if self.settings.kafka is None else self.settings.kafka.server_name

    def _platform_calls(self, key: PlatformKey) -> PlatformCalls:
        if self.settings.credentials is None:
            return platform_client(self.config.brokers, key, self.upstream_tls)
        return ControlPlaneCalls(self.settings)

    # Listening

    def _listen(self) -> None:
        by_sni = self.settings.routing is Routing.SNI
        for broker in (None,) if by_sni else self.config.brokers:
            port = self.settings.port if broker is None else broker.listen_port
            listening = self.acceptor.listen(self.settings.listen, port, broker)
            for served in self.config.brokers if broker is None else (broker,):
                self.ports[served.id] = listening
        self.acceptor.accept()  # only now: clients must never receive an address list with a port missing

    def new_session(self, address: str, broker: Broker | None) -> Session:
        """A session for an admitted client."""
        number = next(self._numbers)
        session = self.sessions[number] = Session(self, number, address, broker)
        self._empty.clear()
        return session

    def _serve_tls(self, path: Path) -> None:
        certificate = ServerCertificate(ServerTls(path, self.settings.certificate_key), CertificateUnusable)
        if self.settings.routing is Routing.SNI:
            certificate.context.sni_callback = self._choose_host
        self.acceptor.tls = certificate.context
        self._tasks.append(asyncio.create_task(_kept("certificate", certificate.follow)))

    def _choose_host(self, tls: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> int | None:
        """Note the tenant and broker of an SNI host name; an unknown one fails the handshake."""
        del context
        host = parse_host(name, self.settings.domain)
        if host is None or host.tenant not in self.config.tenant_of:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        if host.broker is not None and host.broker not in self.config.broker_of:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        self._sni_hosts[tls] = host
        return None

    # Called by sessions

    now = staticmethod(time.monotonic)

    def accepted(self, session: Session) -> None:
        """The TLS handshake, if any, is complete: select tenant and broker by SNI."""
        assert session.transport is not None
        if self.settings.routing is not Routing.SNI:
            return
        host = self._sni_hosts.get(session.transport.get_extra_info("ssl_object"))
        if host is None:
            self.denied(session, Denial.WRONG_HOST)
            session.close("no host name")
            return
        session.sni_tenant = host.tenant
        session.connection.broker = None if host.broker is None else self.config.broker_of.get(host.broker)
        tenant = self.config.tenant_of.get(host.tenant)
        if tenant is None or not tenant.network.admit(session.connection.life.address):
            self.denied(session, Denial.NETWORK_RULE)
            session.close("network rule")

    def admit_login(self, session: Session, principal: Principal) -> Denial | None:
        """Count a successful login, or return why it is denied."""
        tenant = self.config.tenant_of[principal.tenant]
        usage = self.usage_of(principal.tenant)
        usage.attempts += 1
        now, denial = self.now(), None
        if not self.state_is_current(tenant.id):
            denial = Denial.STATE_OLD
        elif self.services.tuner is not None:
            share = self.services.tuner.share(session.connection.broker, principal.tenant, now)
            denial = None if share is None else share.attempt(now)
        denial = denial or self.admission.admit_login(tenant, principal.address, now)
        if denial is None:
            usage.connections += 1
        else:
            usage.refused[denial] += 1
        return denial

    def usage_of(self, tenant: LogicalClusterId) -> Usage:
        return self.usage.setdefault(tenant, Usage())

    def session_closed(self, session: Session) -> None:
        connection = session.connection
        if self.sessions.pop(connection.number, None) is None:
            return
        principal = connection.life.principal
        self.admission.release(connection.life.address, None if principal is None else principal.tenant)
        if principal is not None:
            connection.usage.connections -= 1
        if session.upstream is not None and not session.upstream.ended:
            self._closing_upstreams.add(session.upstream)
        self._check_empty()

    def upstream_closed(self, upstream: Upstream) -> None:
        """A broker connection has ended."""
        self._closing_upstreams.discard(upstream)
        self._check_empty()

    def _check_empty(self) -> None:
        if not self.sessions and not self._closing_upstreams:
            self._empty.set()

    def login_of(self, principal: Principal) -> tuple[str, str]:
        """The Kafka user and password of a principal."""
        user = self.config.tenant_of[principal.tenant].user_of(principal.account)
        return user, self._password(user, principal.generation)

    def next_broker(self) -> Broker:
        """A broker for a connection that selected none: round robin."""
        return self.config.brokers[next(self._round_robin) % len(self.config.brokers)]

    def context_of(self, tenant: LogicalClusterId) -> TenantContext:
        context = self.contexts.get(tenant)
        if context is None:
            context = self.contexts[tenant] = TenantContext(
                self._worker_tenant(tenant), self._addresses(tenant)
            )
        return context

    def _worker_tenant(self, tenant: LogicalClusterId) -> Tenant:
        """The tenant as this worker serves it: its fetch sessions are split among the workers. Exceeding them
        only costs bandwidth, so workers need not coordinate.
        """
        whole, workers = self.config.tenant_of[tenant], self.counters.workers
        if workers == 1:
            return whole
        sessions_max = -(-whole.limits.fetch_sessions_max // workers)
        return replace(whole, limits=replace(whole.limits, fetch_sessions_max=sessions_max))

    def _sessions_of(self, usage: Usage) -> list[Holder]:
        return [session for session in self.sessions.values() if session.connection.usage is usage]

    def _brokers_for(self, tenant: Tenant) -> tuple[Broker, ...]:
        return self.config.brokers_for(tenant)

    def _api_versions_response(self, broker: Broker | None, version: int, correlation_id: int) -> bytes:
        """The versions that this broker, or another one reached first, and the gateway know."""
        known = broker.id if broker is not None and broker.id in self.versions else next(iter(self.versions))
        if version not in load().request("ApiVersions").valid_versions:
            version = -1  # any unknown one
        response = self._versions_responses.get((known, version))
        if response is None:
            response = api_versions_response(version, 0, *self.versions[known])
            self._versions_responses[known, version] = response
        return b"".join((response[:4], correlation_id.to_bytes(4, signed=True), response[8:]))

    def denied(self, session: Session, reason: Denial, *, api: object = None, error: object = None) -> None:
        life = session.connection.life
        if reason in BREACHES and session.connection.closed and not session.breached:
            session.breached = True
            tenant, key = ("", "") if life.principal is None else (life.principal.tenant, life.principal.key)
            self.admission.breached(life.address, tenant, key, self.now())
        self._denied(reason, life.address, session, api, error)

    def denied_address(self, reason: Denial, address: str, error: object = None) -> None:
        """Count and log a client denied before it has a session."""
        self._denied(reason, address, None, error=error)

    def _denied(
        self, reason: Denial, address: str, session: Session | None, api: object = None, error: object = None
    ) -> None:
        self.denials[reason] += 1
        principal = session.connection.life.principal if session is not None else None
        if not self._denial_log.admits(None if principal is None else principal.tenant, address, self.now()):
            return
        facts: dict[str, object] = {"reason": str(reason), "address": address}
        if principal is not None:
            facts |= {key_names.TENANT: principal.tenant, "key": principal.key}
        elif session is not None and session.claimed_key:
            facts["key"] = session.claimed_key
            if session.claimed_key in self.config.keys:
                facts[key_names.TENANT] = self.config.keys[session.claimed_key][0].id
        if api is not None:
            facts[key_names.API] = api
        if error is not None:
            facts[key_names.ERROR] = str(error)
        log.warning("denied", **facts)

    # Background work

    def _addresses(self, tenant: LogicalClusterId) -> dict[int, tuple[bytes, int]]:
        """Every broker's address as shown to this tenant."""
        settings = self.settings
        addresses = {}
        for broker in self.config.brokers:
            if broker.id not in self.ports:
                continue
            if settings.routing is Routing.SNI:
                host, port = host_name(Host(tenant, broker.id), settings.domain), self.sni_port
            else:
                host, port = self._advertised(broker)
            addresses[int(broker.id)] = (host.encode(), port)
        return addresses

    def apply_config(self, config: GatewayConfig) -> None:
        """Apply a new configuration; connections that it no longer admits are closed."""
        config = self._settle_brokers(config).without_expired(_epoch_ms())
        self.config = config
        principals = {
            number: session.connection.life.principal
            for number, session in self.sessions.items()
            if session.connection.life.principal is not None
        }
        for number in revoked_connections(config, principals):
            session = self.sessions[number]
            self.denied(session, Denial.KEY_REVOKED)
            session.abort("its key was revoked")
        for tenant in list(self.contexts):
            if tenant in config.tenant_of:
                self.contexts[tenant].settle(self._worker_tenant(tenant), self._addresses(tenant))
            else:
                del self.contexts[tenant]
        for session in self.sessions.values():
            session.connection.reconfigure(config)
        self.services.telemetry.forget(config.tenant_of)
        self.services.sampling.forget(config.tenant_of)

    def _settle_brokers(self, config: GatewayConfig) -> GatewayConfig:
        """Serve brokers that are new, before clients receive their addresses, and leave those that are gone.

        A broker whose port is taken is served once a later configuration finds it free.
        """
        if not self.ports:  # before the start
            return config
        before, after = self.config.broker_of, config.broker_of
        for number in before.keys() - after.keys():
            self._leave_broker(before[number])
        brokers = list(config.brokers)
        for broker in config.brokers:
            if broker.id in self.ports:
                continue
            try:
                self._serve_broker(broker)
            except ListenFailed as failure:
                log.warning("broker not served", **{key_names.BROKER: broker.id, "error": str(failure)})
                brokers.remove(broker)
        if self.services.calibration is not None:
            self.services.calibration.follow(brokers)
        return replace(config, brokers=tuple(brokers))

    def _serve_broker(self, broker: Broker) -> None:
        if self.settings.routing is Routing.SNI:
            self.ports[broker.id] = next(iter(self.ports.values()))
        else:
            self.ports[broker.id] = self.acceptor.listen(self.settings.listen, broker.listen_port, broker)
            self.acceptor.accept()
        self._watch_broker(broker, None)
        log.info("broker served", **{key_names.BROKER: broker.id}, port=self.ports[broker.id])

    def _leave_broker(self, broker: Broker) -> None:
        """Its connections drain: it holds nothing any more, so clients only lose a spare connection."""
        self.ports.pop(broker.id, None)
        self.acceptor.leave(broker.id)
        if (watch := self._watches.pop(broker.id, None)) is not None:
            watch.cancel()
        if len(self.versions) > 1:
            self.versions.pop(broker.id, None)
            self._versions_responses.clear()
        for session in list(self.sessions.values()):
            if session.connection.broker is not None and session.connection.broker.id == broker.id:
                session.drain()
        log.info("broker left", **{key_names.BROKER: broker.id})

    def _watch_broker(self, broker: Broker, first: asyncio.Future[None] | None) -> None:
        watch = partial(self._watch_versions, broker, first)
        self._watches[broker.id] = asyncio.create_task(_kept("API versions", watch))

    def follow(self, source: ConfigSource) -> None:
        """Apply every configuration of a source until the gateway closes."""
        self.source = source
        self._tasks.append(asyncio.create_task(_kept("configuration", partial(self._follow, source))))

    def state_age(self) -> float:
        """Seconds since the configuration in force was last known to be the newest."""
        return 0.0 if self.source is None else self.now() - self.source.fresh_at

    def state_is_current(self, tenant: str = "") -> bool:
        """Of all tenants, and of this one."""
        unread = {} if self.source is None else self.source.unread
        age = max(self.state_age(), self.now() - unread.get(tenant, self.now()))
        return age <= self.settings.bounds.state_age_seconds_max

    async def _follow(self, source: ConfigSource) -> None:
        async with aclosing(source.follow()) as configs:
            async for config in configs:
                self.apply_config(config)
                log.info("configuration applied", tenants=len(config.tenants))

    async def _watch_versions(self, broker: Broker, first: asyncio.Future[None] | None) -> None:
        security = Security(tls=self.upstream_tls, server_name=self.upstream_name)
        while True:
            try:
                async with await Connection.open(broker.host, broker.port, security) as connection:
                    response = connection.api_versions
                    features = {
                        k: v for k, v in response.items() if k.endswith(("Features", "FeaturesEpoch"))
                    }
                    self.versions[broker.id] = (dict(offered(connection.versions)), features)
                    self._versions_responses.clear()
            except PenstockError as failure:
                error = UpstreamUnreachable(broker=broker.id, address=broker.address, reason=failure.message)
                log.warning(
                    "broker unreachable", **{key_names.BROKER: broker.id, key_names.ERROR: str(error)}
                )
                await asyncio.sleep(VERSIONS_RETRY_SECONDS)
                continue
            if first is not None and not first.done():
                first.set_result(None)
            await asyncio.sleep(VERSIONS_SECONDS)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep(self.now())
            self._publish_reports()

    def sweep(self, now: float) -> None:
        """Close what has taken too long, and renew logins to brokers."""
        self.services.acks.now_ms = _epoch_ms()
        if _epoch_ms() >= self.config.next_expiry_ms:
            self.apply_config(self.config)
        for session in list(self.sessions.values()):
            session.sweep(now)
        self.services.sweep(now)

    def _publish_reports(self, *, last: bool = False) -> None:
        acks, source = self.services.acks, self.report_source
        ingress_bytes = sum(usage.bytes_in for usage in self.usage.values())
        acked = acks.last(source) if last else [acks.take(source, ingress_bytes)]
        if self.publish is None:
            return
        sequence, now = next(self._reports), _epoch_ms()
        reports: list[PublishedEvent] = [
            usage.report(source, tenant, sequence, now) for tenant, usage in self.usage.items()
        ]
        intents = self.services.intents.take(source, now)
        self.publish([*reports, *(record for record in acked if record is not None), *intents])


async def _kept(what: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run until cancelled; what ends with an error is logged and started again after a pause."""
    failures = 0
    while True:
        started = time.monotonic()
        try:
            await run_separately(run())
        except Exception as failure:  # noqa: BLE001 - the state would grow old unnoticed
            failures = 1 if time.monotonic() - started > AGAIN.most_seconds else failures + 1
            pause = AGAIN.seconds(failures)
            facts = {"task": what, key_names.ERROR: repr(failure), "again_in_seconds": pause}
            log.warning("background task failed", **facts)
            await asyncio.sleep(pause)


def _epoch_ms() -> int:
    return int(time.time() * 1000)
