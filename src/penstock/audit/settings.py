"""The settings file of the durability audit, for clusters that run anywhere.

    clusters:
      - name: home
        bootstrap: kafka-1:9093,kafka-2:9093
        controllers: kafka-c1:9094
        tls: {ca: ca.pem}
        login: {user: penstock, password_file: /run/secrets/kafka}
        tier: {kind: s3, bucket: history, prefix: tier}
    sweep_seconds: 10
    metrics: 127.0.0.1:28083
    webhook: {url: "https://alerts.example.com/hook", secret_file: /run/secrets/alerts}

Variables override the file: `PENSTOCK_AUDIT_SWEEP_SECONDS` sets `sweep_seconds`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.audit.alerts import Webhook
from penstock.audit.service import SNAPSHOT_SECONDS, SWEEP_SECONDS
from penstock.audit.stores import LIST_SECONDS
from penstock.kafka import cluster_settings
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.settings_table import REQUIRED, Setting, SettingsFile, below
from penstock.tier.store import KEYS as STORE_KEYS
from penstock.tier.store import SETTINGS as STORE_SETTINGS
from penstock.tier.store import StoreSettings, read_store_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.model.settings_reader import Section

SECONDS_MIN: Final = 0.5
SECONDS_MAX: Final = 3600.0
DAY_SECONDS: Final = 86_400.0
_CLUSTER: Final = (
    Setting("name", "text", "Id or name of the cluster, in every event and finding.", REQUIRED),
    *cluster_settings.SETTINGS,
    Setting("controllers", "host:port[,…]", "Addresses of controllers, for the metadata log.", REQUIRED),
    Setting(
        "controller_mechanism", " | ".join(Mechanism), "SASL mechanism of the controller listener.",
        str(Mechanism.PLAIN),
    ),
    *below("tier", STORE_SETTINGS),
    *below("backup", STORE_SETTINGS),
)  # fmt: skip
SETTINGS: Final = SettingsFile(
    "audit",
    "penstock audit run --config",
    (
        *below("clusters[]", _CLUSTER),
        Setting(
            "sweep_seconds", "number", "Time between two sweeps of all replicas.", SWEEP_SECONDS, "seconds"
        ),
        Setting("snapshot_seconds", "number", "Time between two snapshots.", SNAPSHOT_SECONDS, "seconds"),
        Setting(
            "stores_seconds",
            "number",
            "Time between two listings of tier and backup.",
            LIST_SECONDS,
            "seconds",
        ),
        Setting("metrics", "host:port", "Management address: /metrics, /livez, /readyz."),
        Setting("webhook.url", "URL", "Where alerts are sent, in Alertmanager's format."),
        Setting("webhook.secret", "secret", "Key of the signature."),
        Setting("webhook.secret_file", "file", "File with the key, instead."),
    ),
    "PENSTOCK_AUDIT_",
)


@dataclass(frozen=True, slots=True)
class AuditedCluster:
    name: str
    bootstrap: str
    controllers: str
    security: Security = field(repr=False)
    controller_security: Security = field(repr=False)
    tier: StoreSettings | None = None  # of its tiered topics
    backup: StoreSettings | None = None


@dataclass(frozen=True, slots=True)
class AuditSettings:
    clusters: tuple[AuditedCluster, ...]
    sweep_seconds: float = SWEEP_SECONDS
    snapshot_seconds: float = SNAPSHOT_SECONDS
    stores_seconds: float = LIST_SECONDS
    metrics: str | None = None
    webhook: Webhook | None = None


def read_audit_settings(
    path: Path, environment: Mapping[str, str], flags: Mapping[str, Any] | None = None
) -> AuditSettings:
    """File < environment < flags; every error names the place."""
    root = SETTINGS.root(path, environment, flags)
    clusters = []
    for section in root.sections("clusters", SETTINGS.keys("clusters[]")):
        security = cluster_settings.read_security(section)
        mechanism = section.one_of("controller_mechanism", tuple(Mechanism), Mechanism.PLAIN)
        login = security.login
        if isinstance(login, Login):
            login = Login(login.user, login.password, Mechanism(mechanism))
        clusters.append(
            AuditedCluster(
                section.text("name"),
                cluster_settings.read_bootstrap(section),
                section.text("controllers", expected="expected host:port[,…]"),
                security,
                Security(login, security.tls, security.server_name),
                _store(section, "tier"),
                _store(section, "backup"),
            )
        )
    names = [cluster.name for cluster in clusters]
    if not names or len(set(names)) < len(names):
        raise root.invalid("clusters", "expected at least one, each with a different name", names)
    webhook = None
    if root.values.get("webhook") is not None:
        section = root.section("webhook", ("url", "secret", "secret_file"))
        webhook = Webhook(section.text("url", expected="expected a URL"), section.secret("secret").encode())

    def seconds(key: str, default: float) -> float:
        return root.number(key, default, at_least=SECONDS_MIN, at_most=SECONDS_MAX, unit="seconds")

    return AuditSettings(
        tuple(clusters),
        seconds("sweep_seconds", SWEEP_SECONDS),
        seconds("snapshot_seconds", SNAPSHOT_SECONDS),
        root.number(
            "stores_seconds", LIST_SECONDS, at_least=SECONDS_MIN, at_most=DAY_SECONDS, unit="seconds"
        ),
        root.optional_address("metrics"),
        webhook,
    )


def _store(section: Section, key: str) -> StoreSettings | None:
    if section.values.get(key) is None:
        return None
    return read_store_settings(section.section(key, STORE_KEYS))
