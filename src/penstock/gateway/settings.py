"""The settings of a gateway process, read with its configuration from one YAML file.

`docs/gateway.md` shows every key. Unknown keys and invalid values are errors that name their place.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.fleet.passwords import PlatformKey
from penstock.gateway.config import (
    ApiKey,
    Broker,
    BrokerMetrics,
    GatewayConfig,
    NetworkRules,
    ServiceAccount,
    Tenant,
    TenantLimits,
)
from penstock.gateway.limits.shared_counters import WORKERS_MAX
from penstock.gateway.tenancy.telemetry import PUSHES_PER_SECOND
from penstock.model.api_keys import API_KEY_LENGTH
from penstock.model.entities import GRANT_OPERATIONS, GRANT_PATTERNS, GRANT_RESOURCES, Grant, Role
from penstock.model.errors.gateway import PlatformKeyMissing
from penstock.model.events import Dimension
from penstock.model.ids import BrokerId, Zone, logical_cluster_id, physical_cluster_id, service_account_id
from penstock.model.settings_reader import PORT_MAX, Section, read_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.gateway.config import Network

_PROCESS_KEYS: Final = (
    "gateway", "cluster", "listen", "advertised_host", "platform_key", "routing", "domain", "port",
    "tls", "upstream_ca", "proxy_protocol", "metrics_listen", "metrics_port", "brokers", "tenants",
    "tenants_from", "gateways", "workers", "log_sample", "bounds",
)  # fmt: skip
_BROKER_KEYS: Final = ("id", "zone", "address", "port", "limits", "metrics")
_TENANT_KEYS: Final = (
    "id", "accounts", "keys", "brokers", "network", "limits", "quota", "log_sample", "auto_create_topics",
)  # fmt: skip
_ACCOUNT_KEYS: Final = ("id", "generation", "role", "rights")
_RIGHT_KEYS: Final = ("resource", "name", "operation", "pattern")
# The keys of a tenant's quota: dimension, and its unit per second.
_QUOTA_KEYS: Final = {
    "ingress_bytes_per_second": (Dimension.INGRESS_BYTES, 1.0),
    "egress_bytes_per_second": (Dimension.EGRESS_BYTES, 1.0),
    "requests_per_second": (Dimension.REQUESTS, 1.0),
    "request_seconds_per_second": (Dimension.REQUEST_TIME_US, 1e6),
    "partition_changes_per_second": (Dimension.PARTITION_CHANGES, 1.0),
}
# The keys of a broker's limits, all tenants together.
_CAPACITY_KEYS: Final = {
    "ingress_bytes_per_second": (Dimension.INGRESS_BYTES, 1.0),
    "egress_bytes_per_second": (Dimension.EGRESS_BYTES, 1.0),
    "request_seconds_per_second": (Dimension.REQUEST_TIME_US, 1e6),
    "connection_attempts_per_second": (Dimension.CONNECTION_ATTEMPTS, 1.0),
}
LOOPBACK: Final = "127.0.0.1"
HANDLER_THREADS_DEFAULT: Final = 8  # Kafka's
HANDLER_THREADS_MAX: Final = 1_000
GATEWAYS_MAX: Final = 10_000
PARTITIONS_MAX: Final = 1_000_000
RIGHTS_MAX: Final = 200  # of one account
REQUEST_BYTES_MAX: Final = 1 << 30
BOUND_MAX: Final = 1 << 30


class TenantsFrom(StrEnum):
    FILE = "file"
    STATE = "state"  # a topic of the physical cluster, written by the control plane


class Routing(StrEnum):
    PORT = "port"  # one port for each broker
    SNI = "sni"  # one port; the host name selects the broker


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a gateway process, each on memory or time."""

    connections_max: int = 20_000
    half_open_max: int = 2_000  # not logged in yet
    half_open_per_address_max: int = 100  # once half of the places above are taken
    connections_per_address_max: int = 2_000
    attempts_per_address_per_second: float = 200.0
    failed_logins_per_key: int = 5  # from one address within `failed_logins_seconds`; further ones wait
    failed_logins_per_address: int = 1_000  # all keys; then connections are refused at accept
    failed_logins_seconds: float = 10.0
    failed_login_wait_seconds: float = 5.0  # at most, before a failed login gets its response
    handshake_seconds: float = 10.0  # from accept to login, TLS included
    idle_seconds: float = 660.0  # a little more than clients keep idle connections by default
    unauthenticated_bytes_max: int = 64 * 1024
    unauthenticated_requests_max: int = 10  # of one connection
    frame_bytes_max: int = 100 * 1024 * 1024
    held_bytes_max: int = 1024 * 1024  # of a request that is read whole: any but Produce
    response_bytes_max: int = 256 * 1024 * 1024  # of a response that is rewritten in memory: any but Fetch
    responses_held_bytes_max: int = 256 * 1024 * 1024  # of all responses above 1 MiB
    # Frames that are unfinished or wait: of one tenant, of all, and of connections before login.
    tenant_held_bytes_max: int = 32 * 1024 * 1024
    process_held_bytes_max: int = 256 * 1024 * 1024
    unauthenticated_held_bytes_max: int = 8 * 1024 * 1024
    held_seconds: float = 30.0  # for a frame to end while its tenant holds too many bytes
    write_buffer_bytes_max: int = 256 * 1024
    in_flight_max: int = 1_000  # requests of one connection
    telemetry_pushes_per_second: float = PUSHES_PER_SECOND  # of one tenant's clients (KIP-714)
    dials_at_once: int = 32
    state_age_seconds_max: float = 3600.0  # of tenants' state; beyond, new logins are refused
    drain_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    gateway: str
    listen: str
    advertised_host: str
    platform_key: Path
    routing: Routing = Routing.PORT
    domain: str = ""
    port: int = 0  # of SNI routing
    certificate: Path | None = None
    upstream_ca: Path | None = None
    proxy_protocol: NetworkRules | None = None  # load balancers that send a PROXY header
    metrics_listen: str = LOOPBACK  # metrics need no login, so not the tenants' address
    metrics_port: int | None = None
    tenants_from: TenantsFrom = TenantsFrom.FILE
    gateways: int = 1  # of this cluster, including this one
    workers: int = 1  # processes of this gateway
    log_sample: float = 0.0  # of tenants' requests and connections; see `request_sampling`
    bounds: Bounds = field(default_factory=Bounds)


def read_gateway_file(path: Path) -> tuple[GatewaySettings, GatewayConfig]:
    return parse_gateway(read_mapping(path), where=str(path), beside=path.parent)


def read_platform_key(settings: GatewaySettings) -> PlatformKey:
    try:
        return PlatformKey(settings.platform_key.read_bytes())
    except OSError as failure:
        raise PlatformKeyMissing(path=settings.platform_key, reason=failure.strerror) from failure


def parse_gateway(
    document: Any, *, where: str = "gateway file", beside: Path = Path()
) -> tuple[GatewaySettings, GatewayConfig]:
    root = Section(where, document, _PROCESS_KEYS, base=beside)
    tenants_from = root.choice("tenants_from", TenantsFrom.FILE)
    if tenants_from is TenantsFrom.STATE and root.items("tenants"):
        raise root.invalid("tenants", "expected none with `tenants_from: state`")
    routing = root.choice("routing", Routing.PORT)
    listen = root.text("listen", LOOPBACK)
    settings = GatewaySettings(
        gateway=root.text("gateway", "gateway"),
        listen=listen,
        advertised_host=root.text("advertised_host", listen),
        platform_key=root.path("platform_key") or beside / "platform.key",
        routing=routing,
        domain=root.text("domain") if routing is Routing.SNI else "",
        port=root.integer("port", 0, at_least=0, at_most=PORT_MAX),
        certificate=root.section("tls", ("certificate",)).path("certificate"),
        upstream_ca=root.path("upstream_ca"),
        proxy_protocol=_trusted(root),
        metrics_listen=root.text("metrics_listen", LOOPBACK),
        metrics_port=root.optional_integer("metrics_port", at_least=0, at_most=PORT_MAX),
        tenants_from=tenants_from,
        gateways=root.integer("gateways", 1, at_least=1, at_most=GATEWAYS_MAX),
        workers=root.integer("workers", 1, at_least=1, at_most=WORKERS_MAX),
        log_sample=_log_sample(root),
        bounds=_bounds(root.section("bounds", [each.name for each in fields(Bounds)])),
    )
    if settings.routing is Routing.SNI and settings.certificate is None:
        raise root.invalid("tls", "expected a certificate: SNI routing needs TLS")
    brokers = tuple(_broker(each) for each in root.sections("brokers", _BROKER_KEYS))
    if not brokers:
        raise root.invalid("brokers", "expected at least one")
    tenants = tuple(_tenant(each) for each in root.sections("tenants", _TENANT_KEYS))
    _check_unique(root, tenants)
    return settings, GatewayConfig(physical_cluster_id(root.text("cluster")), brokers, tenants)


def _trusted(root: Section) -> NetworkRules | None:
    networks = _networks(root, "proxy_protocol")
    return NetworkRules(networks) if networks else None


def _log_sample(section: Section) -> float:
    return section.number("log_sample", 0.0, at_least=0, at_most=1)


def _bounds(section: Section) -> Bounds:
    """Bounds that the file does not name keep their default; seconds and rates may be fractions."""
    default = Bounds()
    named: dict[str, Any] = {}
    for name in section.values:
        if isinstance(getattr(default, name), float):
            named[name] = section.positive(name)
        else:
            named[name] = section.integer(name, at_least=1, at_most=BOUND_MAX)
    return replace(default, **named)


def _check_unique(root: Section, tenants: Sequence[Tenant]) -> None:
    seen: set[str] = set()
    for name in [str(t.id) for t in tenants] + [key.id for t in tenants for key in t.keys]:
        if name in seen:
            raise root.invalid("tenants", "expected each id once", name)
        seen.add(name)


def _broker(section: Section) -> Broker:
    host, port = section.address("address")
    return Broker(
        BrokerId(section.integer("id", at_least=0, at_most=2**31 - 1)),
        Zone(section.text("zone")),
        host,
        port,
        section.integer("port", 0, at_least=0, at_most=PORT_MAX),
        _rates(section, "limits", _CAPACITY_KEYS),
        None if section.values.get("metrics") is None else _metrics(section),
    )


def _metrics(broker: Section) -> BrokerMetrics:
    section = broker.section("metrics", ("address", "handler_threads"))
    threads = section.integer(
        "handler_threads", HANDLER_THREADS_DEFAULT, at_least=1, at_most=HANDLER_THREADS_MAX
    )
    return BrokerMetrics(*section.address("address"), threads)


def _tenant(section: Section) -> Tenant:
    accounts = [_account(each) for each in section.sections("accounts", _ACCOUNT_KEYS)]
    keys = tuple(_key(each) for each in section.sections("keys", ("id", "secret_sha256", "account")))
    by_id = {account.id: account for account in accounts}
    for key in keys:
        if key.account not in by_id:
            raise section.invalid(
                "keys", f"expected an account of the tenant for {key.id}, not {key.account}"
            )
    network = section.section("network", ("allow", "deny"))
    limits = section.section("limits", [each.name for each in fields(TenantLimits)])
    default = TenantLimits()
    return Tenant(
        logical_cluster_id(section.text("id")),
        by_id,
        keys,
        frozenset(BrokerId(number) for number in section.items("brokers")),
        NetworkRules(_networks(network, "allow"), _networks(network, "deny")),
        TenantLimits(
            limits.integer("connections_max", default.connections_max, at_least=0, at_most=1_000_000),
            limits.positive("connection_attempts_per_second", default.connection_attempts_per_second),
            limits.integer("fetch_sessions_max", default.fetch_sessions_max, at_least=0, at_most=1_000_000),
            limits.integer("share_sessions_max", default.share_sessions_max, at_least=0, at_most=1_000_000),
            limits.optional_integer("partitions_max", at_least=0, at_most=PARTITIONS_MAX),
            limits.optional_integer("request_bytes_max", at_least=1024, at_most=REQUEST_BYTES_MAX),
        ),
        log_sample=_log_sample(section) if "log_sample" in section.values else None,
        quota=_rates(section, "quota", _QUOTA_KEYS),
        auto_create_topics=section.flag("auto_create_topics"),
    )


def _rates(
    section: Section, key: str, known: Mapping[str, tuple[Dimension, float]]
) -> dict[Dimension, float]:
    rates = section.section(key, tuple(known))
    return {
        dimension: rates.positive(name) * unit
        for name, (dimension, unit) in known.items()
        if name in rates.values
    }


def _account(section: Section) -> ServiceAccount:
    generation = section.integer("generation", 1, at_least=1, at_most=2**31 - 1)
    rights = tuple(_right(each) for each in section.sections("rights", _RIGHT_KEYS))
    if len(rights) > RIGHTS_MAX:
        raise section.invalid("rights", f"expected at most {RIGHTS_MAX}")
    account = service_account_id(section.text("id"))
    return ServiceAccount(account, generation, section.choice("role", Role.LIMITED), rights)


def _right(section: Section) -> Grant:
    """A right as the control plane grants it, in the tenant's names."""
    return Grant(
        resource=section.one_of("resource", sorted(GRANT_RESOURCES)),
        name=section.text("name"),
        operation=section.one_of("operation", sorted(GRANT_OPERATIONS)),
        pattern=section.one_of("pattern", sorted(GRANT_PATTERNS), "literal"),
    )


def _key(section: Section) -> ApiKey:
    key = section.text("id")
    if len(key) != API_KEY_LENGTH or not key.isalnum():
        raise section.invalid("id", f"expected {API_KEY_LENGTH} letters and digits")
    digest = section.text("secret_sha256")
    try:
        raw = bytes.fromhex(digest)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise section.invalid("secret_sha256", "expected 64 hexadecimal digits", "…")
    return ApiKey(key, raw, service_account_id(section.text("account")))


def _networks(section: Section, key: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(value) for value in section.items(key))
    except ValueError as failure:
        raise section.invalid(key, f"expected networks like 10.0.0.0/8: {failure}") from failure
