"""The settings file of a control plane that runs anywhere: `penstock control run --config control.yaml`.

    home:                              # the cluster that stores the registry
      name: home
      bootstrap: kafka-1:9093,kafka-2:9093
      kafka_id: 4L6g3nShT-eMCtK--X86sw # optional: refuse any other cluster
      tls: {ca: ca.pem}
      login: {user: penstock, password_file: /run/secrets/kafka}
      gateways: gateway.example.com:9092
      metrics: [kafka-1:9404, 2=kafka-2:9404]
      brokers: [1, 2, 3]               # those that carry tenants; also by `zones`
      cell_brokers: 3
      capacity: published
    clusters: []                       # further physical clusters, with the same keys
    platform_key: platform.key         # 32 random bytes, the same for all control planes
    token_file: operator.token         # the root operator's token, the same for all control planes
    listen: 0.0.0.0:28080
    advertised: https://control-1.example.com:28080
    tls: {certificate: control.pem, key: control.key}
    session_seconds: 6
    metrics: 127.0.0.1:28081           # management address: /metrics, /livez, /readyz

`penstock.kafka.cluster_settings` describes `bootstrap`, `tls` and `login`. Variables override the file:
`PENSTOCK_CONTROL_HOME__LOGIN__PASSWORD` sets `home.login.password`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from penstock.backup.settings import read_backup_settings
from penstock.certificate_reload import ServerTls
from penstock.control.capacity_units import ADOPTED_CAPACITY, TABLES
from penstock.control.health.notification import Targets
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.fleet.spec import is_loopback
from penstock.kafka import cluster_settings
from penstock.kafka.membership import SESSION_SECONDS
from penstock.model.api_keys import hashed
from penstock.model.errors.control import PlaintextRefused
from penstock.model.settings_table import REQUIRED, Setting, SettingsFile, below

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.kafka.security import Security
    from penstock.model.settings_reader import Section

ENVIRONMENT_PREFIX: Final = "PENSTOCK_CONTROL_"
LISTEN_DEFAULT: Final = "127.0.0.1:28080"
HOME_NAME: Final = "home"
KEY_BYTES_MIN: Final = 32
SESSION_SECONDS_MIN: Final = 0.5
SESSION_SECONDS_MAX: Final = 600.0
PROBE_SECONDS: Final = 30.0  # between two probes of what clusters allow
PROBE_SECONDS_MIN: Final = 0.5
PROBE_SECONDS_MAX: Final = 86_400.0
DIGEST_CHARACTERS: Final = 12
_CLUSTER: Final = (
    Setting("name", "text", "Name of the cluster on the platform; `home` for the home."),
    *cluster_settings.SETTINGS,
    Setting("kafka_id", "text", "Its Kafka cluster id; any other cluster is refused."),
    Setting("gateways", "host:port[,…]", "Tenants' bootstrap address; unset: what its gateways advertise."),
    Setting("metrics", "list of [broker=]host:port", "Metrics agents of its brokers."),
    Setting("cell_brokers", "whole number", "Brokers of a cell; 0 puts all into one.", 0, "brokers"),
    Setting("brokers", "list of broker ids", "Brokers that carry tenants; unset: all."),
    Setting("zones", "list of zones", "Zones whose brokers carry tenants; unset: all."),
    Setting("capacity", "published or laptop", "Its table of capacity units.", ADOPTED_CAPACITY),
    Setting("backup", "file", "Settings file of its backup."),
    Setting("key_generation", "whole number", "Of the tenants' key; a higher one replaces a stolen key.", 1),
)
SETTINGS: Final = SettingsFile(
    "control",
    "penstock control run --config",
    (
        *below("home", _CLUSTER),
        *below("clusters[]", _CLUSTER),
        Setting("platform_key", "file", "32 random bytes, the same for all control planes.", REQUIRED),
        Setting("token", "secret", "The root operator's token, the same for all control planes."),
        Setting("token_file", "file", "File with the token, instead."),
        Setting("listen", "host:port", "Address of the HTTP API.", LISTEN_DEFAULT),
        Setting("advertised", "URL", "URL for clients and other control planes; unset: from `listen`."),
        Setting("tls.certificate", "file", "Certificate chain of the HTTP API, in PEM."),
        Setting("tls.key", "file", "Its key; unset: in the certificate's file."),
        Setting("allow_plaintext", "flag", "Listen off loopback without TLS.", False),
        Setting("session_seconds", "number", "Silence of the active one after which another takes over.",
                SESSION_SECONDS, "seconds"),
        Setting("relieve", "flag", "Move tenants out of full cells.", True),
        Setting("probe_seconds", "number", "Between two probes of what each cluster allows.",
                PROBE_SECONDS, "seconds"),
        Setting("metrics", "host:port", "Management address: /metrics, /livez, /readyz."),
        Setting("notify.webhook", "URL", "Gets a POST for each event of an incident."),
        Setting("notify.secret", "secret", "Signs what the webhook gets."),
        Setting("notify.secret_file", "file", "File with that secret, instead."),
        Setting("notify.command", "list of texts", "Gets each event on its standard input."),
    ),
    ENVIRONMENT_PREFIX,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConfiguredCluster:
    """A physical cluster that the settings name."""

    name: str
    bootstrap: str
    security: Security = field(repr=False)
    kafka_id: str = ""  # any, if empty
    gateways: str = ""  # the bootstrap address for tenants
    metrics: tuple[str, ...] = ()  # `host:port`, or `broker=host:port`
    cell_brokers: int = 0  # 0: all brokers are one cell
    key_generation: int = 1  # of the tenants' key; a higher one replaces a stolen key
    brokers: frozenset[int] = frozenset()  # that carry tenants; all, if empty
    zones: frozenset[str] = frozenset()  # in which brokers carry tenants; all, if empty
    capacity: str = ADOPTED_CAPACITY
    backup: Path | None = None  # settings file of its backup


@dataclass(frozen=True, slots=True)
class ControlSettings:
    home: ConfiguredCluster
    platform_key: PlatformKey
    token: str = field(repr=False)
    clusters: tuple[ConfiguredCluster, ...] = ()
    listen: str = LISTEN_DEFAULT
    advertised: str = ""  # URL for clients and other control planes; empty: from `listen`
    tls: ServerTls | None = None
    allow_plaintext: bool = False
    session_seconds: float = SESSION_SECONDS
    relieves: bool = True
    metrics: str | None = None  # host:port of its management address
    probe_seconds: float = PROBE_SECONDS
    notify: Targets = field(default_factory=Targets)

    def digests(self) -> dict[str, str]:
        """What control planes of one home must have in common, by setting; shows no secret."""
        clusters = sorted(
            (
                c.name,
                c.gateways,
                c.cell_brokers,
                c.key_generation,
                sorted(c.brokers),
                sorted(c.zones),
                c.capacity,
            )
            for c in (self.home, *self.clusters)
        )
        return {
            "platform_key": self.platform_key.password("_penstock.configuration")[:DIGEST_CHARACTERS],
            "token": hashed(hashed(self.token))[:DIGEST_CHARACTERS],
            "clusters": hashed(repr(clusters))[:DIGEST_CHARACTERS],
            "relieve": str(self.relieves).lower(),
        }


def read_control_settings(
    path: Path, environment: Mapping[str, str], flags: Mapping[str, Any] | None = None
) -> ControlSettings:
    """File < environment < flags; every error names the place."""
    section = SETTINGS.root(path, environment, flags)
    tls = _server_tls(section)
    section.address("listen", LISTEN_DEFAULT)
    settings = ControlSettings(
        home=_cluster(section.section("home", SETTINGS.keys("home")), HOME_NAME),
        platform_key=_platform_key(section),
        token=section.secret("token"),
        clusters=tuple(
            _cluster(inner, None) for inner in section.sections("clusters", SETTINGS.keys("clusters[]"))
        ),
        listen=section.text("listen", LISTEN_DEFAULT),
        advertised=_advertised(section, tls),
        tls=tls,
        allow_plaintext=section.flag("allow_plaintext"),
        session_seconds=section.number(
            "session_seconds",
            SESSION_SECONDS,
            at_least=SESSION_SECONDS_MIN,
            at_most=SESSION_SECONDS_MAX,
            unit="seconds",
        ),
        relieves=section.flag("relieve", default=True),
        metrics=section.optional_address("metrics"),
        probe_seconds=section.number(
            "probe_seconds",
            PROBE_SECONDS,
            at_least=PROBE_SECONDS_MIN,
            at_most=PROBE_SECONDS_MAX,
            unit="seconds",
        ),
        notify=_targets(section),
    )
    names = [settings.home.name, *(cluster.name for cluster in settings.clusters)]
    for name in names:
        if names.count(name) > 1:
            raise section.invalid("clusters", "expected a different name for each cluster", name)
    check_listener(settings.listen, tls is not None, allow_plaintext=settings.allow_plaintext)
    return settings


def _targets(section: Section) -> Targets:
    inner = section.section("notify", SETTINGS.keys("notify"))
    webhook = inner.optional_text("webhook") or ""
    if webhook and urlsplit(webhook).scheme not in ("http", "https"):
        raise inner.invalid("webhook", "expected a URL such as https://hooks.example.com/penstock")
    signed = bool({"secret", "secret_file"} & inner.values.keys())
    return Targets(webhook, inner.secret("secret") if signed else "", inner.texts("command"))


def check_listener(listen: str, has_tls: bool, *, allow_plaintext: bool) -> None:
    """Raises if operators' tokens would cross a network unencrypted."""
    host = listen.rpartition(":")[0].strip("[]")
    if host and not has_tls and not allow_plaintext and not is_loopback(host):
        raise PlaintextRefused(listen=listen)


def _cluster(section: Section, name: str | None) -> ConfiguredCluster:
    return ConfiguredCluster(
        name=section.text("name", name),
        bootstrap=cluster_settings.read_bootstrap(section),
        security=cluster_settings.read_security(section),
        kafka_id=section.optional_text("kafka_id") or "",
        gateways=section.optional_text("gateways") or "",
        metrics=section.texts("metrics"),
        cell_brokers=section.integer("cell_brokers", 0, at_least=0, at_most=1000),
        key_generation=section.integer("key_generation", 1, at_least=1, at_most=2**31 - 1),
        brokers=_broker_ids(section),
        zones=frozenset(section.texts("zones")),
        capacity=section.one_of("capacity", tuple(TABLES), ADOPTED_CAPACITY),
        backup=_backup(section),
    )


def _backup(section: Section) -> Path | None:
    """Its settings are checked at the start, and read again at every use."""
    path = section.file("backup")
    if path is not None:
        read_backup_settings(path)
    return path


def _broker_ids(section: Section) -> frozenset[int]:
    ids = section.items("brokers")
    for broker in ids:
        if isinstance(broker, bool) or not isinstance(broker, int) or broker < 0:
            raise section.invalid("brokers", "expected a list of broker ids", broker)
    return frozenset(ids)


def _server_tls(section: Section) -> ServerTls | None:
    if section.values.get("tls") is None:
        return None
    inner = section.section("tls", ("certificate", "key"))
    certificate = inner.file("certificate")
    if certificate is None:
        raise inner.invalid("certificate", "expected a file in PEM")
    return ServerTls(certificate, inner.file("key"))


def _advertised(section: Section, tls: ServerTls | None) -> str:
    url = section.optional_text("advertised")
    if url is None:
        return ""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise section.invalid("advertised", "expected a URL such as https://control-1.example.com:28080")
    if tls is not None and parts.scheme != "https":
        raise section.invalid("advertised", "expected an https URL, because `tls` is set")
    return url.rstrip("/")


def _platform_key(section: Section) -> PlatformKey:
    path = section.file("platform_key")
    if path is None:
        raise section.invalid("platform_key", "expected a file: `head -c 32 /dev/urandom > platform.key`")
    try:
        key = path.read_bytes()
    except OSError as failure:
        raise section.invalid("platform_key", f"expected a file that can be read: {failure}") from failure
    if len(key) < KEY_BYTES_MIN:
        raise section.invalid("platform_key", f"expected a file of {KEY_BYTES_MIN} bytes or more")
    return PlatformKey(key)
