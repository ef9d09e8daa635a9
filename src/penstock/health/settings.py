"""The settings file of a health checker that runs anywhere.

    vantage: zone-a
    clusters:
      - name: home
        id: pkc-7hq2mz
        bootstrap: kafka-1:9093,kafka-2:9093
        tls: {ca: ca.pem}
        login: {user: penstock, password_file: /run/secrets/kafka}
        gateways:
          bootstrap: kafka.example.com:9092
          tenant: lkc-3ba7x2
          tls: {ca: gateway-ca.pem}
          login: {mechanism: PLAIN, user: ABCDEFGHIJKLMNOP, password_file: /run/secrets/checker}
    metrics: 127.0.0.1:28084

Variables override the file: `PENSTOCK_CHECKER_VANTAGE` sets `vantage`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.health.checker import ProbedCluster
from penstock.kafka import cluster_settings
from penstock.model.settings_table import REQUIRED, Setting, SettingsFile, below

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.model.settings_reader import Section

VANTAGE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
VANTAGE_DEFAULT: Final = "local"
_GATEWAYS: Final = (
    Setting("tenant", "text", "Logical cluster of the checker.", REQUIRED),
    *cluster_settings.SETTINGS,
)
_CLUSTER: Final = (
    Setting("name", "text", "Name of the cluster.", REQUIRED),
    Setting("id", "text", "Id of the physical cluster.", REQUIRED),
    *cluster_settings.SETTINGS,
    *below("gateways", _GATEWAYS),
)
SETTINGS: Final = SettingsFile(
    "checker",
    "penstock health run --config",
    (
        *below("clusters[]", _CLUSTER),
        Setting("vantage", "text", "Where the checker runs, such as a zone.", VANTAGE_DEFAULT),
        Setting("metrics", "host:port", "Management address: /metrics, /livez, /readyz."),
    ),
    "PENSTOCK_CHECKER_",
)


@dataclass(frozen=True, slots=True)
class CheckerSettings:
    clusters: tuple[ProbedCluster, ...]
    vantage: str = VANTAGE_DEFAULT
    metrics: str | None = None


def read_checker_settings(
    path: Path, environment: Mapping[str, str], flags: Mapping[str, Any] | None = None
) -> CheckerSettings:
    """File < environment < flags; every error names the place."""
    root = SETTINGS.root(path, environment, flags)
    clusters = tuple(_cluster(each) for each in root.sections("clusters", SETTINGS.keys("clusters[]")))
    names = [cluster.name for cluster in clusters]
    if not names or len(set(names)) < len(names):
        raise root.invalid("clusters", "expected at least one, each with a different name", names)
    vantage = root.text("vantage", VANTAGE_DEFAULT)
    if not VANTAGE.fullmatch(vantage):
        raise root.invalid("vantage", "expected 1 to 63 of a-z, 0-9, dot, dash and underscore", vantage)
    return CheckerSettings(clusters, vantage, root.optional_address("metrics"))


def _cluster(section: Section) -> ProbedCluster:
    gateways = section.section("gateways", SETTINGS.keys("clusters[].gateways"))
    return ProbedCluster(
        section.text("id"),
        section.text("name"),
        cluster_settings.read_bootstrap(section),
        cluster_settings.read_security(section),
        tenant=gateways.text("tenant"),
        gateways=cluster_settings.read_bootstrap(gateways),
        tenant_security=cluster_settings.read_security(gateways),
    )
