"""The settings of a gateway process, read with its configuration from one YAML file.

`docs/gateway.md` shows every key. Unknown keys and invalid values are errors that name their place.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from penstock.fleet.credentials.gateway_credentials import GatewayCredentials
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.fleet.spec import is_loopback
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
from penstock.model.settings_reader import PORT_MAX, Section
from penstock.model.settings_table import REQUIRED, Setting, SettingsFile, below

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.gateway.config import Network

_DISCOVERED_KEYS: Final = ("id", "port", "advertised", "limits", "metrics")  # the cluster gives the others
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# The keys of a tenant's quota: dimension, and its unit per second.
_QUOTA_KEYS: Final = {
    "ingress_bytes_per_second": (Dimension.INGRESS_BYTES, 1.0),
    "egress_bytes_per_second": (Dimension.EGRESS_BYTES, 1.0),
    "requests_per_second": (Dimension.REQUESTS, 1.0),
    "request_seconds_per_second": (Dimension.REQUEST_TIME_US, 1e6),
    "gateway_seconds_per_second": (Dimension.GATEWAY_TIME_US, 1e6),
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
    breaches_per_key: int = 5  # of limits, from one address in a minute; then its logins are spread out
    breaches_per_tenant: int = 50  # by all of its keys, or by an address before login; then it is slowed down
    breach_wait_seconds: float = 5.0  # at most, before a login of a key that breaks limits
    handshake_seconds: float = 10.0  # from accept to login, TLS included
    idle_seconds: float = 660.0  # a little more than clients keep idle connections by default
    unauthenticated_bytes_max: int = 64 * 1024
    unauthenticated_requests_max: int = 10  # of one connection
    frame_bytes_max: int = 100 * 1024 * 1024
    held_bytes_max: int = 1024 * 1024  # of a request that is read whole: any but Produce
    response_bytes_max: int = 256 * 1024 * 1024  # of a response that is rewritten in memory: any but Fetch
    responses_held_bytes_max: int = 256 * 1024 * 1024  # of all responses above 1 MiB
    broker_unfinished_bytes_max: int = 64 * 1024 * 1024  # of Produce requests begun towards one broker
    # Frames that are unfinished or wait: of one tenant, of all, and of connections before login.
    tenant_held_bytes_max: int = 32 * 1024 * 1024
    process_held_bytes_max: int = 256 * 1024 * 1024
    unauthenticated_held_bytes_max: int = 8 * 1024 * 1024
    held_seconds: float = 30.0  # for a frame to end while its tenant holds too many bytes
    write_buffer_bytes_max: int = 256 * 1024
    in_flight_max: int = 1_000  # requests of one connection
    telemetry_pushes_per_second: float = PUSHES_PER_SECOND  # of one tenant's clients (KIP-714)
    refusals_per_second: float = 100.0  # of one tenant's requests; beyond, its connections are muted
    dials_at_once: int = 32
    state_age_seconds_max: float = 3600.0  # of tenants' state; beyond, new logins are refused
    drain_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """Where the brokers are; which ones there are is read from the cluster."""

    bootstrap: str
    tls: bool = False
    server_name: str | None = None  # to verify, if certificates do not name the brokers' hosts


@dataclass(frozen=True, slots=True)
class ControlPlanes:
    urls: tuple[str, ...]
    ca: Path | None = None  # none: the system's CAs


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    gateway: str
    listen: str
    advertised_host: str
    platform_key: Path  # unless it has `credentials`
    routing: Routing = Routing.PORT
    domain: str = ""
    port: int = 0  # of SNI routing
    certificate: Path | None = None
    certificate_key: Path | None = None  # none: in the certificate's file
    upstream_ca: Path | None = None
    kafka: KafkaCluster | None = None  # none: brokers are listed, and there are no credentials
    credentials: GatewayCredentials | None = None  # instead of the platform key
    control: ControlPlanes | None = None  # execute what needs rights on the whole cluster
    advertised_port: int | None = None  # as `port`, if clients use another one
    proxy_protocol: NetworkRules | None = None  # load balancers that send a PROXY header
    client_zones: tuple[tuple[Network, str], ...] = ()  # zones of clients, by network
    metrics_listen: str = LOOPBACK  # metrics need no login, so not the tenants' address
    metrics_port: int | None = None
    tenants_from: TenantsFrom = TenantsFrom.FILE
    gateways: int = 1  # of this cluster, including this one
    workers: int = 1  # processes of this gateway
    log_sample: float = 0.0  # of tenants' requests and connections; see `request_sampling`
    bounds: Bounds = field(default_factory=Bounds)


_BOUNDS_HELP: Final = {
    "connections_max": "Open connections.",
    "half_open_max": "Connections that have not logged in.",
    "half_open_per_address_max": "Of one address, once half of the places above are taken.",
    "connections_per_address_max": "Open connections of one address.",
    "attempts_per_address_per_second": "New connections of one address.",
    "failed_logins_per_key": "Failed logins of a key from one address within `failed_logins_seconds`.",
    "failed_logins_per_address": "Of all keys from one address; then its connections are refused.",
    "failed_logins_seconds": "How long a failed login counts.",
    "failed_login_wait_seconds": "Longest delay of the response to a failed login.",
    "breaches_per_key": "Breaches of limits by a key from one address in a minute; then its logins wait.",
    "breaches_per_tenant": "By all of its keys, or by an address before login; then it is slowed down.",
    "breach_wait_seconds": "Longest time between two logins of a key that breaks limits.",
    "handshake_seconds": "From accept to login, TLS included.",
    "idle_seconds": "After which an idle connection is closed.",
    "unauthenticated_bytes_max": "A request before login.",
    "unauthenticated_requests_max": "Requests of a connection before login.",
    "frame_bytes_max": "A request.",
    "held_bytes_max": "A request that is read whole: any but Produce.",
    "response_bytes_max": "A response that is rewritten in memory: any but Fetch.",
    "responses_held_bytes_max": "All responses above 1 MiB together.",
    "tenant_held_bytes_max": "Unfinished or waiting frames of one tenant.",
    "process_held_bytes_max": "Unfinished or waiting frames of all tenants.",
    "unauthenticated_held_bytes_max": "Unfinished frames of connections before login.",
    "broker_unfinished_bytes_max": "Produce requests begun towards one broker.",
    "refusals_per_second": "Refused requests of one tenant; beyond, its connections are muted.",
    "held_seconds": "For a frame to end while its tenant holds too many bytes.",
    "write_buffer_bytes_max": "Bytes that wait to be sent to a client.",
    "in_flight_max": "Requests in flight of one connection.",
    "telemetry_pushes_per_second": "Pushes of client metrics of one tenant (KIP-714).",
    "dials_at_once": "Connections to brokers that are opened at the same time.",
    "state_age_seconds_max": "Age of the tenants' state beyond which new logins are refused.",
    "drain_seconds": "For requests in flight after SIGTERM.",
}
_UNITS: Final = {"bytes": "bytes", "seconds": "seconds", "second": "per second"}


def _unit(name: str) -> str:
    return _UNITS.get(name.removesuffix("_max").rpartition("_")[2], "")


def _rate_settings(known: Mapping[str, object], text: str) -> tuple[Setting, ...]:
    return tuple(Setting(name, "number", text, unit="per second") for name in known)


_LIMITS: Final = TenantLimits()
_BROKER: Final = (
    Setting("id", "whole number", "Kafka's id of the broker.", REQUIRED),
    Setting("zone", "text", "Its zone; required without `kafka`."),
    Setting("address", "host:port", "Its listener for the gateway; required without `kafka`."),
    Setting("port", "whole number", "Port for its clients, with `routing: port`; 0 picks a free one.", 0),
    Setting("advertised", "host:port", "Its address for clients; unset: of the gateway."),
    *below("limits", _rate_settings(_CAPACITY_KEYS, "Limit of the broker, all tenants together.")),
    Setting("metrics.address", "host:port", "Its metrics agent."),
    Setting("metrics.handler_threads", "whole number", "Request handler threads.", HANDLER_THREADS_DEFAULT),
)
_TENANT: Final = (
    Setting("id", "lkc-…", "Logical cluster id.", REQUIRED),
    Setting("accounts[].id", "sa-…", "Service account.", REQUIRED),
    Setting("accounts[].generation", "whole number", "Generation of its Kafka password.", 1),
    Setting("accounts[].role", " | ".join(Role), "What it may do.", str(Role.LIMITED)),
    Setting("accounts[].rights[].resource", " | ".join(sorted(GRANT_RESOURCES)), "Resource.", REQUIRED),
    Setting("accounts[].rights[].name", "text", "Its name, as the tenant sees it.", REQUIRED),
    Setting("accounts[].rights[].operation", " | ".join(sorted(GRANT_OPERATIONS)), "Operation.", REQUIRED),
    Setting("accounts[].rights[].pattern", " | ".join(sorted(GRANT_PATTERNS)), "Pattern.", "literal"),
    Setting("keys[].id", "text", "API key.", REQUIRED),
    Setting("keys[].secret_sha256", "text", "Hash of its secret, in hexadecimal.", REQUIRED),
    Setting("keys[].account", "sa-…", "Its service account.", REQUIRED),
    Setting("brokers", "list", "Broker ids that the tenant uses; unset: all."),
    Setting("network.allow", "list of networks", "Networks that may connect; unset: all."),
    Setting("network.deny", "list of networks", "Networks that may not."),
    Setting("limits.connections_max", "whole number", "Open connections.", _LIMITS.connections_max),
    Setting("limits.connection_attempts_per_second", "number", "New connections.",
            _LIMITS.connection_attempts_per_second, "per second"),
    Setting("limits.fetch_sessions_max", "whole number", "Fetch sessions.", _LIMITS.fetch_sessions_max),
    Setting("limits.share_sessions_max", "whole number", "Share sessions.", _LIMITS.share_sessions_max),
    Setting("limits.partitions_max", "whole number", "Partitions, before replication."),
    Setting("limits.request_bytes_max", "whole number", "A request.", unit="bytes"),
    *below("quota", _rate_settings(_QUOTA_KEYS, "Quota of the tenant.")),
    Setting("log_sample", "number", "Part of requests that is logged; unset: the gateway's.", unit="0 to 1"),
    Setting("auto_create_topics", "flag", "Create topics at their first use.", False),
)  # fmt: skip
SETTINGS: Final = SettingsFile(
    "gateway",
    "penstock gateway run --config",
    (
        Setting("gateway", "text", "Name of the gateway.", "gateway"),
        Setting("cluster", "pkc-…", "Physical cluster id; required without `kafka`."),
        Setting("kafka.bootstrap", "host:port[,…]", "The cluster's brokers; instead of a list of brokers."),
        Setting("kafka.tls.ca", "file", "CA of the brokers' certificates; unset: the system's."),
        Setting("kafka.tls.server_name", "host", "The name to verify; unset: the broker's host."),
        Setting("credentials", "file", "What `penstock gateway credentials` wrote; required with `kafka`."),
        Setting("control.urls", "list of URLs", "Control planes, for calls that need cluster rights."),
        Setting("control.ca", "file", "CA of the control planes' certificates; unset: the system's."),
        Setting("advertised_port", "whole number", "Port that clients are given; unset: `port`."),
        Setting("listen", "address", "Where it listens.", LOOPBACK),
        Setting("advertised_host", "host", "Host that clients are given; unset: `listen`."),
        Setting("platform_key", "file", "Key from which Kafka passwords derive.", "platform.key"),
        Setting("routing", " | ".join(Routing), "How a connection selects its broker.", str(Routing.PORT)),
        Setting("domain", "text", "Domain of SNI host names; required with `routing: sni`."),
        Setting("port", "whole number", "Of SNI; with `kafka` and by port, broker N has this plus N.", 0),
        Setting("tls.certificate", "file", "Certificate chain in PEM; unset: plaintext."),
        Setting("tls.key", "file", "Its key; unset: in the certificate's file."),
        Setting("upstream_ca", "file", "CA of the brokers' certificates; unset: plaintext to the brokers."),
        Setting("proxy_protocol", "list of networks", "Load balancers that send a PROXY header."),
        Setting("client_zones", "mapping", "Zones of clients by network, if they name no rack."),
        Setting("metrics_listen", "address", "Host of the management address.", LOOPBACK),
        Setting("metrics_port", "whole number", "Its port: /metrics, /livez, /readyz; 0 picks a free one."),
        Setting("tenants_from", " | ".join(TenantsFrom), "Where tenants come from.", str(TenantsFrom.FILE)),
        Setting("gateways", "whole number", "Gateways of this cluster, including this one.", 1),
        Setting("workers", "whole number", "Processes that serve the same ports.", 1),
        Setting("log_sample", "number", "Part of requests that is logged.", 0.0, "0 to 1"),
        *(
            Setting(f"bounds.{each.name}", "number" if isinstance(each.default, float) else "whole number",
                    _BOUNDS_HELP[each.name], each.default, _unit(each.name))
            for each in fields(Bounds)
        ),
        *below("brokers[]", _BROKER),
        *below("tenants[]", _TENANT),
    ),
    "PENSTOCK_GATEWAY_",
)  # fmt: skip


def read_gateway_file(
    path: Path, environment: Mapping[str, str] | None = None
) -> tuple[GatewaySettings, GatewayConfig]:
    """File < environment, of this process unless given."""
    return _parse(SETTINGS.root(path, os.environ if environment is None else environment))


def read_platform_key(settings: GatewaySettings) -> PlatformKey:
    """The key from which tenants' passwords derive: the platform's, or that of this cluster's tenants."""
    if settings.credentials is not None:
        return settings.credentials.key
    try:
        return PlatformKey(settings.platform_key.read_bytes())
    except OSError as failure:
        raise PlatformKeyMissing(path=settings.platform_key, reason=failure.strerror) from failure


def parse_gateway(
    document: Any, *, where: str = "gateway file", beside: Path = Path()
) -> tuple[GatewaySettings, GatewayConfig]:
    return _parse(Section(where, document, SETTINGS.keys(), base=beside))


def _parse(root: Section) -> tuple[GatewaySettings, GatewayConfig]:
    anywhere = root.values.get("kafka") is not None
    tenants_from = root.choice("tenants_from", TenantsFrom.STATE if anywhere else TenantsFrom.FILE)
    if tenants_from is TenantsFrom.STATE and root.items("tenants"):
        raise root.invalid("tenants", "expected none with `tenants_from: state`")
    routing = root.choice("routing", Routing.PORT)
    listen = root.text("listen", LOOPBACK)
    tls = root.section("tls", SETTINGS.keys("tls"))
    settings = GatewaySettings(
        gateway=root.text("gateway", "gateway"),
        listen=listen,
        advertised_host=root.text("advertised_host", listen),
        platform_key=root.path("platform_key") or root.base / "platform.key",
        routing=routing,
        domain=root.text("domain").lower().strip(".") if routing is Routing.SNI else "",
        port=root.integer("port", 0, at_least=0, at_most=PORT_MAX),
        certificate=tls.path("certificate"),
        certificate_key=tls.path("key"),
        upstream_ca=root.path("upstream_ca"),
        advertised_port=root.optional_integer("advertised_port", at_least=1, at_most=PORT_MAX),
        proxy_protocol=_trusted(root),
        client_zones=_client_zones(root),
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
    if anywhere:
        settings = _anywhere(root, settings)
        assert settings.credentials is not None
        brokers = tuple(_discovered(each) for each in root.sections("brokers", _DISCOVERED_KEYS))
        return settings, GatewayConfig(settings.credentials.cluster, brokers)
    for key in ("credentials", "control"):
        if key in root.values:
            raise root.invalid(key, "expected `kafka` beside it")
    brokers = tuple(_broker(each) for each in root.sections("brokers", SETTINGS.keys("brokers[]")))
    if not brokers:
        raise root.invalid("brokers", "expected at least one")
    tenants = tuple(_tenant(each) for each in root.sections("tenants", SETTINGS.keys("tenants[]")))
    _check_unique(root, tenants)
    return settings, GatewayConfig(physical_cluster_id(root.text("cluster")), brokers, tenants)


def _anywhere(root: Section, settings: GatewaySettings) -> GatewaySettings:
    """The settings of a gateway that knows its cluster by address, and holds its credentials only."""
    for key in ("platform_key", "upstream_ca", "cluster"):
        if key in root.values:
            raise root.invalid(key, "expected none: with `kafka`, `credentials` and `kafka.tls` replace it")
    if settings.tenants_from is TenantsFrom.FILE:
        raise root.invalid("tenants_from", "expected state, because the file has `kafka`")
    if not _NAME.fullmatch(root.text("gateway")):
        raise root.invalid("gateway", "expected a name of up to 63 letters, digits, `.`, `_` and `-`")
    kafka = root.section("kafka", SETTINGS.keys("kafka"))
    tls = kafka.section("tls", SETTINGS.keys("kafka.tls"))
    bootstrap = kafka.text("bootstrap", expected="expected host:port[,…]")
    for each in bootstrap.split(","):
        replace(kafka, values={"bootstrap": each.strip()}).address("bootstrap")
    credentials = root.file("credentials")
    if credentials is None:
        raise root.invalid("credentials", "expected a file that `penstock gateway credentials` wrote")
    return replace(
        settings,
        kafka=KafkaCluster(bootstrap, "tls" in kafka.values, tls.optional_text("server_name")),
        upstream_ca=tls.file("ca"),
        credentials=GatewayCredentials.read(credentials),
        control=_control(root),
    )


def _control(root: Section) -> ControlPlanes | None:
    if root.values.get("control") is None:
        return None
    section = root.section("control", SETTINGS.keys("control"))
    urls = tuple(url.rstrip("/") for url in section.texts("urls"))
    for url in urls:
        parts = urlsplit(url)
        safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        if not safe or not parts.hostname:
            raise section.invalid("urls", "expected https URLs: the gateway's token is sent there", url)
    if not urls:
        raise section.invalid("urls", "expected at least one")
    return ControlPlanes(urls, section.file("ca"))


def _discovered(section: Section) -> Broker:
    """What the file has about a broker; zone and address come from the cluster."""
    return Broker(
        BrokerId(section.integer("id", at_least=0, at_most=2**31 - 1)),
        Zone(""),
        "",
        0,
        section.integer("port", 0, at_least=0, at_most=PORT_MAX),
        _rates(section, "limits", _CAPACITY_KEYS),
        None if section.values.get("metrics") is None else _metrics(section),
        _advertised(section),
    )


def _advertised(broker: Section) -> tuple[str, int] | None:
    return broker.address("advertised") if "advertised" in broker.values else None


def _trusted(root: Section) -> NetworkRules | None:
    networks = _networks(root, "proxy_protocol")
    return NetworkRules(networks) if networks else None


def _client_zones(root: Section) -> tuple[tuple[Network, str], ...]:
    section = root.section("client_zones", None)
    try:
        return tuple((ipaddress.ip_network(name), section.text(name)) for name in section.values)
    except ValueError as failure:
        raise root.invalid("client_zones", f"expected networks like 10.1.0.0/16: {failure}") from failure


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
        _advertised(section),
    )


def _metrics(broker: Section) -> BrokerMetrics:
    section = broker.section("metrics", SETTINGS.keys("brokers[].metrics"))
    threads = section.integer(
        "handler_threads", HANDLER_THREADS_DEFAULT, at_least=1, at_most=HANDLER_THREADS_MAX
    )
    return BrokerMetrics(*section.address("address"), threads)


def _tenant(section: Section) -> Tenant:
    accounts = [
        _account(each) for each in section.sections("accounts", SETTINGS.keys("tenants[].accounts[]"))
    ]
    keys = tuple(_key(each) for each in section.sections("keys", SETTINGS.keys("tenants[].keys[]")))
    by_id = {account.id: account for account in accounts}
    for key in keys:
        if key.account not in by_id:
            raise section.invalid(
                "keys", f"expected an account of the tenant for {key.id}, not {key.account}"
            )
    network = section.section("network", SETTINGS.keys("tenants[].network"))
    limits = section.section("limits", SETTINGS.keys("tenants[].limits"))
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
    rights = tuple(
        _right(each) for each in section.sections("rights", SETTINGS.keys("tenants[].accounts[].rights[]"))
    )
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
