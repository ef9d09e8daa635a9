"""The settings file of a link: its source, its destination and its shadow."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.kafka.cluster_settings import SETTINGS as CLUSTER_SETTINGS
from penstock.kafka.cluster_settings import read_bootstrap, read_security
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.settings_reader import Section, read_mapping
from penstock.model.settings_table import REQUIRED, Setting, SettingsFile, below
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.shadow.broker import ShadowSettings
from penstock.tier.store import KEYS as STORE_KEYS
from penstock.tier.store import SETTINGS as STORE_SETTINGS
from penstock.tier.store import StoreSettings, read_store_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LISTENER_DEFAULT: Final = "INTERNAL"
_KEYS: Final = ("source", "destination", "shadow", "tails", "metrics", "bytes_per_second")
_CLUSTER_KEYS: Final = ("bootstrap", "tls", "login")
_DESTINATION_KEYS: Final = (*_CLUSTER_KEYS, "controllers", "controller_mechanism")
SHADOW_SETTINGS: Final = (
    Setting("id", "number", "Broker id, from the reserved range; unset: the first free one."),
    Setting("directory", "directory", "For its identity.", REQUIRED),
    Setting("listener", "text", "The inter-broker listener.", LISTENER_DEFAULT),
    Setting("host", "text", "Where brokers reach it.", REQUIRED),
    Setting("port", "number", "Its port; 0: any free one.", 0),
    Setting("certificate", "file", "Certificate and key in PEM; unset: no TLS."),
    Setting("admitted", "list of users", "Users of brokers and of the platform.", REQUIRED),
)
SHADOW_KEYS: Final = tuple(one.key for one in SHADOW_SETTINGS)
SETTINGS: Final = SettingsFile(
    "link",
    "penstock link --settings",
    (
        *(replace(one, key=f"source.{one.key}") for one in CLUSTER_SETTINGS),
        *(replace(one, key=f"destination.{one.key}") for one in CLUSTER_SETTINGS),
        Setting("destination.controllers", "host:port[,…]", "Addresses of controllers.", REQUIRED),
        Setting(
            "destination.controller_mechanism", " | ".join(Mechanism),
            "SASL mechanism of the controller listener.", str(Mechanism.PLAIN),
        ),
        Setting("bytes_per_second", "number", "Most bytes a second from the source; unset: no limit."),
        Setting("metrics", "host:port", "Management address: /metrics, /livez, /readyz."),
        *below("shadow", SHADOW_SETTINGS),
        *below("tails", STORE_SETTINGS),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    bootstrap: str
    security: Security


@dataclass(frozen=True, slots=True)
class LinkSettings:
    source: ClusterAccess
    destination: ClusterAccess
    controllers: ClusterAccess
    shadow: ShadowSettings
    shadow_id: int | None = None  # None: `link create` chooses one
    metrics: str | None = None  # host:port of the management address
    bytes_per_second: int | None = None  # from the source; None: no limit
    tails: StoreSettings | None = None  # where a link back saves what only the old source has


def read_link_settings(path: Path) -> LinkSettings:
    base = path.absolute().parent
    document = Section(str(path), read_mapping(path), _KEYS, base=base)
    source = document.section("source", _CLUSTER_KEYS)
    destination = document.section("destination", _DESTINATION_KEYS)
    security = read_security(destination)
    mechanism = destination.one_of("controller_mechanism", tuple(Mechanism), Mechanism.PLAIN)
    login = security.login
    if isinstance(login, Login):
        login = Login(login.user, login.password, Mechanism(mechanism))
    controllers = destination.text("controllers", expected="expected host:port[,…]")
    shadow = document.section("shadow", SHADOW_KEYS)
    tails = None
    if document.values.get("tails") is not None:
        tails = read_store_settings(document.section("tails", STORE_KEYS))
    return LinkSettings(
        ClusterAccess(read_bootstrap(source), read_security(source)),
        ClusterAccess(read_bootstrap(destination), security),
        ClusterAccess(controllers, Security(login, security.tls, security.server_name)),
        read_shadow(shadow, with_login=security.login is not None),
        _shadow_id(shadow) if "id" in shadow.values else None,
        document.optional_address("metrics"),
        document.integer("bytes_per_second", 0, at_least=1)
        if document.values.get("bytes_per_second") is not None
        else None,
        tails,
    )


def check_file(path: Path, _environment: Mapping[str, str]) -> None:
    """Raise if a link's settings are invalid. Variables do not override them."""
    read_link_settings(path)


def _shadow_id(section: Section) -> int:
    first, last = SHADOW_IDS[0], SHADOW_IDS[-1]
    return section.integer("id", first, at_least=first, at_most=last)


def read_shadow(section: Section, *, with_login: bool) -> ShadowSettings:
    """From the keys of `SHADOW_SETTINGS`."""
    tls = None
    certificate = section.file("certificate")
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            tls.load_cert_chain(certificate)
        except (ssl.SSLError, OSError) as failure:
            expected = f"expected a certificate and its key in PEM: {failure}"
            raise section.invalid("certificate", expected) from failure
    directory = section.path("directory")
    if directory is None:
        raise section.invalid("directory", "expected a directory")
    return ShadowSettings(
        _shadow_id(section),
        directory,
        section.text("listener", LISTENER_DEFAULT),
        section.text("host"),
        section.integer("port", 0, at_least=0, at_most=65535),
        frozenset(section.texts("admitted")),
        tls,
        with_login,
    )
