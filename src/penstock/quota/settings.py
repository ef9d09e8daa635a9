"""The settings file of a quota coordinator that runs anywhere.

    clusters:
      - name: home
        bootstrap: kafka-1:9093,kafka-2:9093
        tls: {ca: ca.pem}
        login: {user: penstock, password_file: /run/secrets/kafka}
    interval_seconds: 5
    metrics: 127.0.0.1:28082

Variables override the file: `PENSTOCK_COORDINATOR_INTERVAL_SECONDS` sets `interval_seconds`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka import cluster_settings
from penstock.kafka.membership import SESSION_SECONDS
from penstock.model.settings_table import REQUIRED, Setting, SettingsFile, below
from penstock.quota.usage_reports import INTERVAL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.kafka.security import Security

SECONDS_MIN: Final = 0.1
SECONDS_MAX: Final = 600.0
_CLUSTER: Final = (Setting("name", "text", "Name of the cluster.", REQUIRED), *cluster_settings.SETTINGS)
SETTINGS: Final = SettingsFile(
    "coordinator",
    "penstock quota coordinate --config",
    (
        *below("clusters[]", _CLUSTER),
        Setting("interval_seconds", "number", "Time between two decisions.", INTERVAL_SECONDS, "seconds"),
        Setting(
            "session_seconds", "number", "Silence after which another takes over.", SESSION_SECONDS, "seconds"
        ),
        Setting("metrics", "host:port", "Management address: /metrics, /livez, /readyz."),
    ),
    "PENSTOCK_COORDINATOR_",
)


@dataclass(frozen=True, slots=True)
class CoordinatedCluster:
    name: str
    bootstrap: str
    security: Security = field(repr=False)


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    clusters: tuple[CoordinatedCluster, ...]
    interval_seconds: float = INTERVAL_SECONDS
    session_seconds: float = SESSION_SECONDS
    metrics: str | None = None


def read_coordinator_settings(
    path: Path, environment: Mapping[str, str], flags: Mapping[str, Any] | None = None
) -> CoordinatorSettings:
    """File < environment < flags; every error names the place."""
    root = SETTINGS.root(path, environment, flags)
    clusters = tuple(
        CoordinatedCluster(
            section.text("name"),
            cluster_settings.read_bootstrap(section),
            cluster_settings.read_security(section),
        )
        for section in root.sections("clusters", SETTINGS.keys("clusters[]"))
    )
    names = [cluster.name for cluster in clusters]
    if not names or len(set(names)) < len(names):
        raise root.invalid("clusters", "expected at least one, each with a different name", names)

    def seconds(key: str, default: float) -> float:
        return root.number(key, default, at_least=SECONDS_MIN, at_most=SECONDS_MAX, unit="seconds")

    return CoordinatorSettings(
        clusters,
        seconds("interval_seconds", INTERVAL_SECONDS),
        seconds("session_seconds", SESSION_SECONDS),
        root.optional_address("metrics"),
    )
