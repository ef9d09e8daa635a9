"""The settings file of a backup: its cluster, its stores and, for restores, its shadow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.backup.archiver import selector
from penstock.kafka.cluster_settings import SETTINGS as CLUSTER_SETTINGS
from penstock.kafka.cluster_settings import read_bootstrap, read_security
from penstock.kafka.security import Login, Mechanism, Security
from penstock.link.settings import SHADOW_KEYS, SHADOW_SETTINGS, ClusterAccess, read_shadow
from penstock.model.errors.backup import ShadowSettingsMissing
from penstock.model.settings_reader import Section, read_mapping
from penstock.model.settings_table import Setting, SettingsFile, below
from penstock.tier.store import KEYS as STORE_KEYS
from penstock.tier.store import SETTINGS as STORE_SETTINGS
from penstock.tier.store import StoreSettings, read_store_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from penstock.shadow.broker import ShadowSettings

ARCHIVE_SECONDS: Final = 5.0
CATALOGUE_SECONDS: Final = 60.0
KEEP_DAYS: Final = 7.0
_CLUSTER_KEYS: Final = ("bootstrap", "tls", "login", "controllers", "controller_mechanism")
_ARCHIVE_KEYS: Final = ("topics", "exclude", "interval_seconds", "catalogue_seconds", "keep_days")
SETTINGS: Final = SettingsFile(
    "backup",
    "penstock backup --settings",
    (
        *below("cluster", CLUSTER_SETTINGS),
        Setting("cluster.controllers", "host:port[,…]", "Addresses of controllers; restores need them."),
        Setting(
            "cluster.controller_mechanism", " | ".join(Mechanism),
            "SASL mechanism of the controller listener.", str(Mechanism.PLAIN),
        ),
        *below("store", STORE_SETTINGS),
        *below("tier", STORE_SETTINGS),
        Setting("archive.topics", "list of patterns", "Regular expressions of topics to archive.", ".*"),
        Setting("archive.exclude", "list of patterns", "Those of topics to leave out."),
        Setting("archive.interval_seconds", "number", "Between rounds.", ARCHIVE_SECONDS, "seconds"),
        Setting("archive.catalogue_seconds", "number", "Between entries of the catalogue.",
                CATALOGUE_SECONDS, "seconds"),
        Setting("archive.keep_days", "number", "How long deleted segments are kept.", KEEP_DAYS, "days"),
        *below("shadow", SHADOW_SETTINGS),
        Setting("metrics", "host:port", "Address of metrics and health; unset: none."),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BackupSettings:
    cluster: ClusterAccess
    controllers: ClusterAccess | None
    store: StoreSettings
    tier: StoreSettings | None
    selects: Callable[[str], bool]
    interval_seconds: float
    catalogue_seconds: float
    keep_days: float
    shadow: ShadowSettings | None
    metrics: str | None

    def for_restore(self) -> tuple[ClusterAccess, ShadowSettings]:
        """Raises if a restore is not possible with these settings."""
        if self.controllers is None:
            raise ShadowSettingsMissing(section="cluster.controllers", action="a restore")
        if self.shadow is None:
            raise ShadowSettingsMissing(section="shadow", action="a restore")
        return self.controllers, self.shadow


def read_backup_settings(path: Path) -> BackupSettings:
    base = path.absolute().parent
    keys = ("cluster", "store", "tier", "archive", "shadow", "metrics")
    document = Section(str(path), read_mapping(path), keys, base=base)
    cluster = document.section("cluster", _CLUSTER_KEYS)
    security = read_security(cluster)
    archive = document.section("archive", _ARCHIVE_KEYS)
    shadow = None
    if document.values.get("shadow") is not None:
        shadow = read_shadow(document.section("shadow", SHADOW_KEYS), with_login=security.login is not None)
    tier = None
    if document.values.get("tier") is not None:
        tier = read_store_settings(document.section("tier", STORE_KEYS))
    return BackupSettings(
        ClusterAccess(read_bootstrap(cluster), security),
        _controllers(cluster, security),
        read_store_settings(document.section("store", STORE_KEYS)),
        tier,
        _selector(archive),
        archive.number("interval_seconds", ARCHIVE_SECONDS, at_least=0.1, at_most=3600),
        archive.number("catalogue_seconds", CATALOGUE_SECONDS, at_least=1, at_most=86_400),
        archive.number("keep_days", KEEP_DAYS, at_least=0, at_most=3650),
        shadow,
        document.optional_address("metrics"),
    )


def check_file(path: Path, _environment: Mapping[str, str]) -> None:
    """Raise if a backup's settings are invalid. Variables do not override them."""
    read_backup_settings(path)


def _controllers(section: Section, security: Security) -> ClusterAccess | None:
    controllers = section.optional_text("controllers")
    if controllers is None:
        return None
    mechanism = section.one_of("controller_mechanism", tuple(Mechanism), Mechanism.PLAIN)
    login = security.login
    if isinstance(login, Login):
        login = Login(login.user, login.password, Mechanism(mechanism))
    return ClusterAccess(controllers, Security(login, security.tls, security.server_name))


def _selector(section: Section) -> Callable[[str], bool]:
    include = _patterns(section, "topics") or [re.compile(".*")]
    exclude = _patterns(section, "exclude")
    return selector(
        lambda name: any(one.fullmatch(name) for one in include),
        lambda name: any(one.fullmatch(name) for one in exclude),
    )


def _patterns(section: Section, key: str) -> list[re.Pattern[str]]:
    patterns = []
    for text in section.texts(key):
        try:
            patterns.append(re.compile(text))
        except re.error as error:
            raise section.invalid(key, f"expected regular expressions: {error}", text) from error
    return patterns
