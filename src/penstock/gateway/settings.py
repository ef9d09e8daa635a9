"""A gateway's own settings, and the YAML file that carries them together with the configuration.

    gateway: gw-1
    cluster: pkc-7hq2mz
    listen: 127.0.0.1
    advertised_host: localhost
    platform_key: secrets/platform.key      # relative to this file
    routing: port                           # or sni, with `domain` and `port`
    tls: {certificate: gateway.pem}         # key and chain in one file; left out: plaintext
    upstream_ca: ca.pem                     # left out: plaintext towards the brokers
    metrics_port: 28090                     # left out: none
    tenants_from: state                     # the cluster's `_penstock.state`; left out: this file
    workers: 2                              # processes that serve the same ports; left out: 1
    gateways: 3                             # of this cluster, that share what limits say; left out: 1
    log_sample: 0.01                        # of requests and connections a line in the log; left out: none
    brokers:
      - id: 1
        zone: a
        address: "127.0.0.1:19192"
        port: 28001
        limits: {ingress_bytes_per_second: 80_000_000}   # of all tenants and gateways; left out: none
        metrics: {address: "127.0.0.1:19392", handler_threads: 8}   # calibrates request time; left out: not
    tenants:
      - id: lkc-7hq2mz
        accounts:
          - {id: sa-000001, role: owner}    # everything below its prefix; `provision` makes it so
          - {id: sa-000002, rights: [{resource: topic, name: orders, operation: read}]}
        keys: [{id: …16 characters…, secret_sha256: …64 hex digits…, account: sa-000001}]
        brokers: [1, 2, 3]
        network: {allow: [10.0.0.0/8], deny: []}
        limits: {connections_max: 1000, connection_attempts_per_second: 80, fetch_sessions_max: 200}

Unknown keys and values that cannot be are errors that name the place.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from penstock.gateway.config import (
    API_KEY_LENGTH,
    ApiKey,
    Broker,
    BrokerMetrics,
    GatewayConfig,
    NetworkRules,
    ServiceAccount,
    Tenant,
    TenantLimits,
)
from penstock.gateway.tally import WORKERS_MAX
from penstock.model.entities import GRANT_OPERATIONS, GRANT_PATTERNS, GRANT_RESOURCES, Grant, Role
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable, SettingUnknown
from penstock.model.events import Dimension
from penstock.model.ids import (
    BrokerId,
    Zone,
    logical_cluster_id,
    physical_cluster_id,
    service_account_id,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.gateway.config import Network

_PROCESS_KEYS: Final = (
    "gateway", "cluster", "listen", "advertised_host", "platform_key", "routing", "domain", "port",
    "tls", "upstream_ca", "metrics_port", "brokers", "tenants", "tenants_from",
    "gateways", "workers", "log_sample", "bounds",
)  # fmt: skip
_BROKER_KEYS: Final = ("id", "zone", "address", "port", "limits", "metrics")
_TENANT_KEYS: Final = (
    "id", "accounts", "keys", "brokers", "network", "limits", "quota", "log_sample",
)  # fmt: skip
_LIMIT_KEYS: Final = (
    "connections_max", "connection_attempts_per_second", "fetch_sessions_max", "partitions_max",
    "request_bytes_max",
)  # fmt: skip
# A tenant's quota, as it is written; each is that much of a dimension a second.
_QUOTA_KEYS: Final = {
    "ingress_bytes_per_second": (Dimension.INGRESS_BYTES, 1.0),
    "egress_bytes_per_second": (Dimension.EGRESS_BYTES, 1.0),
    "requests_per_second": (Dimension.REQUESTS, 1.0),
    "request_seconds_per_second": (Dimension.REQUEST_TIME_US, 1e6),
    "partition_changes_per_second": (Dimension.PARTITION_CHANGES, 1.0),
}
# What a broker can do for all tenants together.
_CAPACITY_KEYS: Final = {
    "ingress_bytes_per_second": (Dimension.INGRESS_BYTES, 1.0),
    "egress_bytes_per_second": (Dimension.EGRESS_BYTES, 1.0),
    "request_seconds_per_second": (Dimension.REQUEST_TIME_US, 1e6),
    "connection_attempts_per_second": (Dimension.CONNECTION_ATTEMPTS, 1.0),
}
_PORT_MAX: Final = 65535
HANDLER_THREADS_DEFAULT: Final = 8  # Kafka's
HANDLER_THREADS_MAX: Final = 1_000
GATEWAYS_MAX: Final = 10_000
PARTITIONS_MAX: Final = 1_000_000
RIGHTS_MAX: Final = 200  # of one account
REQUEST_BYTES_MAX: Final = 1 << 30
BOUND_MAX: Final = 1 << 30


class TenantsFrom(StrEnum):
    FILE = "file"
    STATE = "state"  # a topic of the physical cluster, which the control plane feeds


class Routing(StrEnum):
    PORT = "port"  # one port for each broker
    SNI = "sni"  # one port, the broker stands in the host name


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a gateway takes before it says no; each a bound on memory or on patience."""

    connections_max: int = 20_000
    half_open_max: int = 2_000  # not logged in yet
    connections_per_address_max: int = 2_000
    attempts_per_address_per_second: float = 200.0
    failed_logins_per_address: int = 20  # within `failed_logins_seconds`, then refused unheard
    failed_logins_seconds: float = 10.0
    handshake_seconds: float = 10.0  # from accept to login, TLS included
    idle_seconds: float = 660.0  # a little more than clients keep connections by default
    unauthenticated_bytes_max: int = 64 * 1024
    frame_bytes_max: int = 100 * 1024 * 1024
    held_bytes_max: int = 8 * 1024 * 1024
    write_buffer_bytes_max: int = 256 * 1024
    in_flight_max: int = 1_000  # requests of one connection
    dials_at_once: int = 32
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
    metrics_port: int | None = None
    tenants_from: TenantsFrom = TenantsFrom.FILE
    gateways: int = 1  # of this cluster, this one with them
    workers: int = 1  # processes of this one
    log_sample: float = 0.0  # of tenants' requests and connections; see `sampling`
    bounds: Bounds = field(default_factory=Bounds)


class _At:
    """A mapping of the file and where it stands, so that every complaint can name it."""

    def __init__(self, where: str, values: Any, known: Sequence[str]) -> None:
        if not isinstance(values, Mapping):
            raise SettingInvalid(where=where, key="", value=values, expected="expected a mapping")
        self.where, self.values = where, values
        for key in values:
            if key not in known:
                raise SettingUnknown(where=where, key=key, known=", ".join(known))

    def invalid(self, key: str, expected: str) -> SettingInvalid:
        return SettingInvalid(where=self.where, key=key, value=self.values.get(key), expected=expected)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.invalid(key, "expected a text")
        return value

    def integer(self, key: str, *, at_least: int, at_most: int, default: int | None = None) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
            raise self.invalid(key, f"expected a whole number from {at_least} to {at_most}")
        return value

    def optional(self, key: str, *, at_least: int, at_most: int) -> int | None:
        return self.integer(key, at_least=at_least, at_most=at_most) if key in self.values else None

    def rate(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise self.invalid(key, "expected a number above zero")
        return float(value)

    def share(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
            raise self.invalid(key, "expected a number from 0 to 1")
        return float(value)

    def one_of(self, key: str, known: Collection[str], default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str) or value not in known:
            raise self.invalid(key, f"expected one of {', '.join(sorted(known))}")
        return value

    def items(self, key: str) -> list[Any]:
        value = self.values.get(key) or []
        if not isinstance(value, list):
            raise self.invalid(key, "expected a list")
        return value

    def path(self, key: str, beside: Path) -> Path | None:
        return None if self.values.get(key) is None else beside / self.text(key)


def read_gateway_file(path: Path) -> tuple[GatewaySettings, GatewayConfig]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as failure:
        raise SettingsUnreadable(path=path, reason=failure) from failure
    return parse_gateway(document, where=str(path), beside=path.parent)


def parse_gateway(
    document: Any, *, where: str = "gateway file", beside: Path = Path()
) -> tuple[GatewaySettings, GatewayConfig]:
    at = _At(where, document, _PROCESS_KEYS)
    routing = at.one_of("routing", tuple(Routing), Routing.PORT)
    tenants_from = at.one_of("tenants_from", tuple(TenantsFrom), TenantsFrom.FILE)
    if tenants_from == TenantsFrom.STATE and at.items("tenants"):
        raise at.invalid("tenants", "expected none beside `tenants_from: state`")
    tls = _At(f"{where}: tls", at.values.get("tls") or {}, ("certificate",))
    metrics = at.values.get("metrics_port")
    listen = at.text("listen", "127.0.0.1")
    settings = GatewaySettings(
        gateway=at.text("gateway", "gateway"),
        listen=listen,
        advertised_host=at.text("advertised_host", listen),
        platform_key=at.path("platform_key", beside) or beside / "platform.key",
        routing=Routing(routing),
        domain=at.text("domain") if routing == Routing.SNI else "",
        port=at.integer("port", at_least=0, at_most=_PORT_MAX, default=0),
        certificate=tls.path("certificate", beside),
        upstream_ca=at.path("upstream_ca", beside),
        metrics_port=None if metrics is None else at.integer("metrics_port", at_least=0, at_most=_PORT_MAX),
        tenants_from=TenantsFrom(tenants_from),
        gateways=at.integer("gateways", at_least=1, at_most=GATEWAYS_MAX, default=1),
        workers=at.integer("workers", at_least=1, at_most=WORKERS_MAX, default=1),
        log_sample=at.share("log_sample", 0.0),
        bounds=_bounds(f"{where}: bounds", at.values.get("bounds")),
    )
    if settings.routing is Routing.SNI and settings.certificate is None:
        raise at.invalid("tls", "expected a certificate, since SNI is part of TLS")
    brokers = tuple(_broker(f"{where}: brokers[{n}]", v) for n, v in enumerate(at.items("brokers")))
    if not brokers:
        raise at.invalid("brokers", "expected at least one")
    tenants = tuple(
        replace(
            _tenant(f"{where}: tenants[{n}]", v),
            quota=_rates(f"{where}: tenants[{n}]: quota", v.get("quota"), _QUOTA_KEYS),
        )
        for n, v in enumerate(at.items("tenants"))
    )
    _check_unique(at, tenants)
    return settings, GatewayConfig(physical_cluster_id(at.text("cluster")), brokers, tenants)


def _bounds(where: str, values: Any) -> Bounds:
    """What is not named is as it is by default; seconds and rates may be broken numbers."""
    default = Bounds()
    at = _At(where, values or {}, [each.name for each in fields(Bounds)])
    named: dict[str, Any] = {}
    for name in at.values:
        if isinstance(getattr(default, name), float):
            named[name] = at.rate(name, 1.0)
        else:
            named[name] = at.integer(name, at_least=1, at_most=BOUND_MAX)
    return replace(default, **named)


def _check_unique(at: _At, tenants: Sequence[Tenant]) -> None:
    seen: set[str] = set()
    for name in [str(t.id) for t in tenants] + [key.id for t in tenants for key in t.keys]:
        if name in seen:
            raise SettingInvalid(
                where=at.where, key="tenants", value=name, expected="which stands there twice"
            )
        seen.add(name)


def _broker(where: str, values: Any) -> Broker:
    at = _At(where, values, _BROKER_KEYS)
    host, port = _address(at)
    return Broker(
        BrokerId(at.integer("id", at_least=0, at_most=2**31 - 1)),
        Zone(at.text("zone")),
        host,
        port,
        at.integer("port", at_least=0, at_most=_PORT_MAX, default=0),
        _rates(f"{where}: limits", at.values.get("limits"), _CAPACITY_KEYS),
        None if at.values.get("metrics") is None else _metrics(f"{where}: metrics", at.values["metrics"]),
    )


def _metrics(where: str, values: Any) -> BrokerMetrics:
    at = _At(where, values, ("address", "handler_threads"))
    host, port = _address(at)
    threads = at.integer(
        "handler_threads", at_least=1, at_most=HANDLER_THREADS_MAX, default=HANDLER_THREADS_DEFAULT
    )
    return BrokerMetrics(host, port, threads)


def _address(at: _At) -> tuple[str, int]:
    host, colon, port = at.text("address").rpartition(":")
    if not colon or not port.isdigit() or not host:
        raise at.invalid("address", "expected host:port")
    return host.strip("[]"), int(port)


def _tenant(where: str, values: Any) -> Tenant:
    at = _At(where, values, _TENANT_KEYS)
    accounts = [_account(f"{where}: accounts[{n}]", v) for n, v in enumerate(at.items("accounts"))]
    keys = tuple(_key(f"{where}: keys[{n}]", v) for n, v in enumerate(at.items("keys")))
    by_id = {account.id: account for account in accounts}
    for key in keys:
        if key.account not in by_id:
            raise at.invalid("keys", f"but {key.id} belongs to {key.account}, which is no account here")
    network = _At(f"{where}: network", at.values.get("network") or {}, ("allow", "deny"))
    limits = _At(
        f"{where}: limits",
        at.values.get("limits") or {},
        _LIMIT_KEYS,
    )
    default = TenantLimits()
    return Tenant(
        logical_cluster_id(at.text("id")),
        by_id,
        keys,
        frozenset(BrokerId(number) for number in at.items("brokers")),
        NetworkRules(_networks(network, "allow"), _networks(network, "deny")),
        TenantLimits(
            limits.integer("connections_max", at_least=0, at_most=1_000_000, default=default.connections_max),
            limits.rate("connection_attempts_per_second", default.connection_attempts_per_second),
            limits.integer(
                "fetch_sessions_max", at_least=0, at_most=1_000_000, default=default.fetch_sessions_max
            ),
            limits.optional("partitions_max", at_least=0, at_most=PARTITIONS_MAX),
            limits.optional("request_bytes_max", at_least=1024, at_most=REQUEST_BYTES_MAX),
        ),
        log_sample=at.share("log_sample", 0.0) if "log_sample" in at.values else None,
    )


def _rates(where: str, values: Any, known: Mapping[str, tuple[Dimension, float]]) -> dict[Dimension, float]:
    at = _At(where, values or {}, tuple(known))
    return {
        dimension: at.rate(key, 1.0) * unit for key, (dimension, unit) in known.items() if key in at.values
    }


def _account(where: str, values: Any) -> ServiceAccount:
    at = _At(where, values, ("id", "generation", "role", "rights"))
    generation = at.integer("generation", at_least=1, at_most=2**31 - 1, default=1)
    role = Role(at.one_of("role", tuple(Role), Role.LIMITED))
    rights = tuple(_right(f"{where}: rights[{n}]", v) for n, v in enumerate(at.items("rights")))
    if len(rights) > RIGHTS_MAX:
        raise at.invalid("rights", f"expected at most {RIGHTS_MAX}")
    return ServiceAccount(service_account_id(at.text("id")), generation, role, rights)


def _right(where: str, values: Any) -> Grant:
    """As the control plane grants them; names are the tenant's own."""
    at = _At(where, values, ("resource", "name", "operation", "pattern"))
    return Grant(
        resource=at.one_of("resource", GRANT_RESOURCES),
        name=at.text("name"),
        operation=at.one_of("operation", GRANT_OPERATIONS),
        pattern=at.one_of("pattern", GRANT_PATTERNS, "literal"),
    )


def _key(where: str, values: Any) -> ApiKey:
    at = _At(where, values, ("id", "secret_sha256", "account"))
    key = at.text("id")
    if len(key) != API_KEY_LENGTH or not key.isalnum():
        raise at.invalid("id", f"expected {API_KEY_LENGTH} letters and digits")
    digest = at.text("secret_sha256")
    try:
        raw = bytes.fromhex(digest)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise SettingInvalid(
            where=where, key="secret_sha256", value="…", expected="expected 64 hexadecimal digits"
        )
    return ApiKey(key, raw, service_account_id(at.text("account")))


def _networks(at: _At, key: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(value) for value in at.items(key))
    except ValueError as failure:
        raise at.invalid(key, f"expected networks like 10.0.0.0/8: {failure}") from failure
