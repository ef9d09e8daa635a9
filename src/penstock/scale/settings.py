"""The scaler's settings file: where it listens, and which clusters it samples.

Secrets are read from separate files, so that the settings themselves may be a ConfigMap. Variables override
the file: `PENSTOCK_SCALER_LISTEN` sets `listen`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import yaml

from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model.errors.scale import ScalerSettingsInvalid
from penstock.model.key_names import LAG_TOPIC
from penstock.model.settings_reader import PRESENT, Section
from penstock.model.settings_table import REQUIRED, Setting, SettingsFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.model.errors import PenstockError

INTERVAL_SECONDS: Final = 10.0
LISTEN_DEFAULT: Final = "0.0.0.0:8080"
SETTINGS: Final = SettingsFile(
    "scaler",
    "penstock scale serve --settings",
    (
        Setting("clusters.*.bootstrap", "host:port[,…]", "Addresses of brokers.", REQUIRED),
        Setting("clusters.*.interval", "number", "Time between two samples.", INTERVAL_SECONDS, "seconds"),
        Setting("clusters.*.user", "text", "SASL user; with `password_file`."),
        Setting("clusters.*.password_file", "file", "File with the password."),
        Setting(
            "clusters.*.mechanism", " | ".join(Mechanism), "SASL mechanism.", str(Mechanism.SCRAM_SHA_512)
        ),
        Setting("clusters.*.authority", "file", "CA of the brokers' certificates; unset: plaintext."),
        Setting("clusters.*.certificate", "file", "Client certificate, for mTLS."),
        Setting("clusters.*.key", "file", "Its key."),
        Setting("listen", "host:port", "Address of the gRPC server.", LISTEN_DEFAULT),
        Setting("metrics", "host:port", "Management address: /metrics, /livez, /readyz."),
        Setting("tls.certificate", "file", "Certificate chain of the gRPC server."),
        Setting("tls.key", "file", "Its key."),
        Setting("tls.client_authority", "file", "If set, callers need a certificate signed by it."),
        Setting("samples.cluster", "text", "Cluster of the samples topic; unset: kept in memory."),
        Setting("samples.topic", "text", "The samples topic.", LAG_TOPIC),
    ),
    "PENSTOCK_SCALER_",
)


@dataclass(frozen=True, slots=True)
class ServerTls:
    certificate: Path
    key: Path
    client_authority: Path | None = None  # if set, callers need a certificate signed by it


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    bootstrap: str
    interval: float = INTERVAL_SECONDS  # seconds between samples
    user: str | None = None
    password_file: Path | None = None
    mechanism: Mechanism = Mechanism.SCRAM_SHA_512
    authority: Path | None = None  # if set, TLS that trusts it
    certificate: Path | None = None
    key: Path | None = None

    def security(self) -> Security:
        """Reads the secrets again at each call."""
        login = None
        if self.user is not None and self.password_file is not None:
            login = Login(self.user, self.password_file.read_text().strip(), self.mechanism)
        tls = None
        if self.authority is not None:
            tls = tls_context(self.authority, certificate=self.certificate, key=self.key)
        return Security(login, tls)


@dataclass(frozen=True, slots=True)
class ScalerSettings:
    clusters: Mapping[str, ClusterSettings]
    listen: str = LISTEN_DEFAULT
    metrics: str | None = None  # host:port; None: not served
    tls: ServerTls | None = None
    samples_cluster: str | None = None  # cluster of the samples topic; None: a restart loses the windows
    samples_topic: str = LAG_TOPIC


class _Section(Section):
    """A section whose errors carry the scaler's code."""

    __slots__ = ()

    def unknown(self, key: str) -> PenstockError:
        return self.invalid(key, "an unknown key; known: " + ", ".join(sorted(self.known or ())))

    def invalid(self, key: str, expected: str, value: object = PRESENT) -> PenstockError:
        value = self.values.get(key) if value is PRESENT else value
        return ScalerSettingsInvalid(key=self.place_of(key), value=value, expected=expected)


def read_scaler_settings(path: Path, environment: Mapping[str, str]) -> ScalerSettings:
    """File < environment."""
    root = SETTINGS.root(path, environment)
    return _settings(_Section(root.document, root.values, root.known, base=root.base))


def settings_from(text: str) -> ScalerSettings:
    """Parses and checks a file's text."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as failure:
        raise ScalerSettingsInvalid(
            key="file", value="…", expected=f"which is no YAML: {failure}"
        ) from failure
    if not isinstance(document, dict):
        raise ScalerSettingsInvalid(key="file", value=document, expected="expected a mapping")
    return _settings(_Section("scaler settings", document, SETTINGS.keys()))


def _settings(root: Section) -> ScalerSettings:
    clusters = root.section("clusters", None, "expected at least one, by name")
    if not clusters.values:
        raise root.invalid("clusters", "expected at least one, by name")
    samples = root.section("samples", SETTINGS.keys("samples"))
    settings = ScalerSettings(
        clusters={name: _cluster(clusters, name) for name in clusters.values},
        listen=_address(root, "listen", LISTEN_DEFAULT),
        metrics=_address(root, "metrics") if root.values.get("metrics") else None,
        tls=_server_tls(root) if root.values.get("tls") else None,
        samples_cluster=samples.optional_text("cluster"),
        samples_topic=samples.text("topic", LAG_TOPIC),
    )
    if settings.samples_cluster is not None and settings.samples_cluster not in settings.clusters:
        raise samples.invalid("cluster", "expected one of " + ", ".join(settings.clusters))
    return settings


def _cluster(clusters: Section, name: str) -> ClusterSettings:
    section = clusters.section(name, SETTINGS.keys("clusters.*"), "expected a mapping with `bootstrap`")
    if ("user" in section.values) != ("password_file" in section.values):
        raise section.invalid("user", "expected `user` and `password_file` together")
    return ClusterSettings(
        bootstrap=section.text("bootstrap", expected="expected host:port, several with commas"),
        interval=section.number("interval", INTERVAL_SECONDS, at_least=1, at_most=3600, unit="seconds"),
        user=section.optional_text("user"),
        password_file=section.file("password_file"),
        mechanism=section.choice("mechanism", Mechanism.SCRAM_SHA_512),
        authority=section.file("authority"),
        certificate=section.file("certificate"),
        key=section.file("key"),
    )


def _server_tls(root: Section) -> ServerTls:
    section = root.section("tls", SETTINGS.keys("tls"))
    certificate, key = section.file("certificate"), section.file("key")
    if certificate is None or key is None:
        raise root.invalid("tls", "expected `certificate` and `key`", sorted(section.values))
    return ServerTls(certificate, key, section.file("client_authority"))


def _address(section: Section, key: str, default: str | None = None) -> str:
    section.address(key, default)
    return section.text(key, default)
