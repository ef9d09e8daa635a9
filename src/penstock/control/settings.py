"""The settings file of a control plane that runs anywhere: `penstock control run --config control.yaml`.

    home:                              # the cluster that stores the registry
      name: home
      bootstrap: kafka-1:9093,kafka-2:9093
      kafka_id: 4L6g3nShT-eMCtK--X86sw # optional: refuse any other cluster
      tls: {ca: ca.pem}
      login: {user: penstock, password_file: /run/secrets/kafka}
      gateways: gateway.example.com:9092
      metrics: [kafka-1:9404, 2=kafka-2:9404]
      cell_brokers: 3
    clusters: []                       # further physical clusters, with the same keys
    platform_key: platform.key         # 32 random bytes, the same for all control planes
    token_file: operator.token         # the root operator's token, the same for all control planes
    listen: 0.0.0.0:28080
    advertised: https://control-1.example.com:28080
    tls: {certificate: control.pem, key: control.key}
    session_seconds: 6

`penstock.kafka.cluster_settings` describes `bootstrap`, `tls` and `login`. Variables override the file:
`PENSTOCK_CONTROL_HOME__LOGIN__PASSWORD` sets `home.login.password`.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from penstock.fleet.passwords import PlatformKey
from penstock.fleet.spec import is_loopback
from penstock.kafka import cluster_settings
from penstock.kafka.membership import SESSION_SECONDS
from penstock.model.api_keys import hashed
from penstock.model.errors.control import PlaintextRefused
from penstock.model.settings_reader import Section, read_mapping, with_environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.kafka.security import Security

ENVIRONMENT_PREFIX: Final = "PENSTOCK_CONTROL_"
LISTEN_DEFAULT: Final = "127.0.0.1:28080"
HOME_NAME: Final = "home"
KEY_BYTES_MIN: Final = 32
SESSION_SECONDS_MIN: Final = 0.5
SESSION_SECONDS_MAX: Final = 600.0
DIGEST_CHARACTERS: Final = 12
_KEYS: Final = (
    "home", "clusters", "platform_key", "token", "token_file", "listen", "advertised", "tls",
    "allow_plaintext", "session_seconds", "relieve",
)  # fmt: skip
_CLUSTER_KEYS: Final = (
    *cluster_settings.KEYS, "name", "kafka_id", "gateways", "metrics", "cell_brokers",
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


@dataclass(frozen=True, slots=True)
class ServerTls:
    certificate: Path
    key: Path | None = None  # none: in the certificate's file


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

    def digests(self) -> dict[str, str]:
        """What control planes of one home must have in common, by setting; shows no secret."""
        clusters = sorted((c.name, c.gateways, c.cell_brokers) for c in (self.home, *self.clusters))
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
    values, variables = with_environment(read_mapping(path), ENVIRONMENT_PREFIX, environment)
    values |= flags or {}
    document = f"{path} with {', '.join(variables)}" if variables else str(path)
    section = Section(document, values, _KEYS, base=path.absolute().parent)
    tls = _server_tls(section)
    section.address("listen", LISTEN_DEFAULT)
    settings = ControlSettings(
        home=_cluster(section.section("home", _CLUSTER_KEYS), HOME_NAME),
        platform_key=_platform_key(section),
        token=section.secret("token"),
        clusters=tuple(_cluster(inner, None) for inner in section.sections("clusters", _CLUSTER_KEYS)),
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
    )
    names = [settings.home.name, *(cluster.name for cluster in settings.clusters)]
    for name in names:
        if names.count(name) > 1:
            raise section.invalid("clusters", "expected a different name for each cluster", name)
    check_listener(settings.listen, tls is not None, allow_plaintext=settings.allow_plaintext)
    return settings


def check_listener(listen: str, has_tls: bool, *, allow_plaintext: bool) -> None:
    """Raises if operators' tokens would cross a network unencrypted."""
    host = listen.rpartition(":")[0].strip("[]")
    if host and not has_tls and not allow_plaintext and not is_loopback(host):
        raise PlaintextRefused(listen=listen)


def cluster_key(platform_key: PlatformKey, kafka_id: str) -> PlatformKey:
    """The key of one physical cluster: on another cluster its passwords are of no use."""
    return PlatformKey(hmac.digest(platform_key.secret, f"cluster\0{kafka_id}".encode(), hashlib.sha256))


def _cluster(section: Section, name: str | None) -> ConfiguredCluster:
    return ConfiguredCluster(
        name=section.text("name", name),
        bootstrap=cluster_settings.read_bootstrap(section),
        security=cluster_settings.read_security(section),
        kafka_id=section.optional_text("kafka_id") or "",
        gateways=section.optional_text("gateways") or "",
        metrics=section.texts("metrics"),
        cell_brokers=section.integer("cell_brokers", 0, at_least=0, at_most=1000),
    )


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
