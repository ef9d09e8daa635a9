"""Adopt a cluster that runs elsewhere: probe it and record what it allows.

Adoption only reads from the cluster. The record holds its address, the user and the capability table;
the password is stored with the platform's other secrets.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.atomic_files import write_atomically
from penstock.fleet.adopted.capabilities import Capability, CapabilityRow
from penstock.fleet.adopted.capability_probe import probe_capabilities
from penstock.fleet.adopted.restart_commands import parse_command
from penstock.fleet.adopted.rights import missing_rights, principal_of
from penstock.fleet.layout import SECRET_DIRECTORY_MODE, SECRET_FILE_MODE, make_directory
from penstock.kafka.admin import brokers
from penstock.kafka.client import Client
from penstock.kafka.cluster_settings import read_security
from penstock.kafka.oauth import MECHANISM
from penstock.kafka.security import Mechanism, Security
from penstock.model.errors.fleet import AdoptedNameInvalid, AdoptedTwice, AdoptedUnknown
from penstock.model.settings_reader import Section

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.fleet.layout import Layout

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # part of file names
REACH_SECONDS_MAX = 5.0  # to describe itself; a slower cluster is not usable


@dataclass(frozen=True, slots=True)
class Target:
    """How to reach a cluster: the arguments of `penstock fleet adopt`. Files are given by path."""

    bootstrap: str
    user: str | None = None
    password: str | None = None
    mechanism: Mechanism = Mechanism.SCRAM_SHA_512
    tls: bool = False
    ca: str | None = None
    metrics: tuple[str, ...] = ()
    certificate: str | None = None  # for mTLS, with its key
    key: str | None = None
    server_name: str | None = None
    token_url: str | None = None  # for OAUTHBEARER, with the following
    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None
    token_ca: str | None = None
    restart: str | None = None  # the command that restarts one of its brokers; none: by hand

    def __repr__(self) -> str:
        return f"Target({self.bootstrap}, user={self.user or self.client_id})"

    @property
    def security(self) -> Security:
        """Read as from a settings file: an invalid value is an error that names its key."""
        return read_security(Section("penstock fleet adopt", self._document(), ("bootstrap", "tls", "login")))

    def _document(self) -> dict[str, object]:
        document: dict[str, object] = {"bootstrap": self.bootstrap}
        if self.tls:
            tls = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
            document["tls"] = _given({**tls, "server_name": self.server_name})
        if self.token_url:
            login = {"mechanism": MECHANISM, "token_url": self.token_url, "client_id": self.client_id}
            login |= {"client_secret": self.client_secret, "scope": self.scope, "ca": self.token_ca}
            document["login"] = _given(login)
        elif self.user:
            password = self.password or ""
            document["login"] = {"mechanism": str(self.mechanism), "user": self.user, "password": password}
        return document


@dataclass(frozen=True, slots=True)
class Adopted:
    name: str
    kafka_id: str
    bootstrap: str
    user: str | None
    brokers: int
    zones: tuple[str, ...]
    metadata_version: int
    capabilities: tuple[CapabilityRow, ...]
    grants: tuple[str, ...] = ()  # commands that grant the missing rights


async def adopt(layout: Layout, name: str, target: Target) -> Adopted:
    """Probe and record a cluster. Adopting it again under the same name refreshes the table."""
    if not NAME_PATTERN.fullmatch(name):
        raise AdoptedNameInvalid(name=name)
    if target.restart:
        parse_command(target.restart)
    adopted = await probe(name, target)
    path = layout.adopted / f"{name}.json"
    if path.exists():
        before = json.loads(path.read_text())
        if before["kafka_id"] != adopted.kafka_id:
            known, other = before["kafka_id"], adopted.kafka_id
            raise AdoptedTwice(name=name, kafka_id=known, bootstrap=target.bootstrap, other=other)
    make_directory(layout.adopted)
    make_directory(layout.secrets, mode=SECRET_DIRECTORY_MODE)
    secret = {key: value for key, value in asdict(target).items() if value is not None}
    write_atomically(_secret_path(layout, name), json.dumps(secret), mode=SECRET_FILE_MODE)
    write_atomically(path, json.dumps(asdict(adopted), indent=1))
    return adopted


def abandon(layout: Layout, name: str) -> None:
    """Delete the record of an adopted cluster; the cluster itself is not touched."""
    load_adopted(layout, name)
    (layout.adopted / f"{name}.json").unlink()
    _secret_path(layout, name).unlink(missing_ok=True)


def list_adopted(layout: Layout) -> list[Adopted]:
    return [load_adopted(layout, path.stem) for path in sorted(layout.adopted.glob("*.json"))]


def load_adopted(layout: Layout, name: str) -> Adopted:
    path = layout.adopted / f"{name}.json"
    if not NAME_PATTERN.fullmatch(name) or not path.exists():
        known = ", ".join(sorted(other.stem for other in layout.adopted.glob("*.json"))) or "none"
        raise AdoptedUnknown(name=name, known=known)
    values = json.loads(path.read_text())
    listed = values["capabilities"]
    rows = tuple(CapabilityRow(**{**row, "capability": Capability(row["capability"])}) for row in listed)
    return Adopted(
        **{**values, "zones": tuple(values["zones"]), "capabilities": rows}
        | {"grants": tuple(values.get("grants", ()))}
    )


def load_target(layout: Layout, name: str) -> Target:
    if not NAME_PATTERN.fullmatch(name):
        raise AdoptedNameInvalid(name=name)
    values: dict[str, Any] = json.loads(_secret_path(layout, name).read_text())
    values |= {"mechanism": Mechanism(values["mechanism"]), "metrics": tuple(values.get("metrics", ()))}
    return Target(**values)


async def probe(name: str, target: Target) -> Adopted:
    """Read from the cluster everything that the capability table needs."""
    security = target.security
    async with Client(target.bootstrap, security) as client:
        cluster = await brokers.describe(client, timeout=REACH_SECONDS_MAX)
        features = await brokers.features(client)
        missing = await missing_rights(client)
        rows = await probe_capabilities(
            client, cluster, bootstrap=target.bootstrap, security=security, metrics=target.metrics
        )
    principal = principal_of(security)
    return Adopted(
        name=name,
        kafka_id=cluster.cluster_id,
        bootstrap=target.bootstrap,
        user=target.user,
        brokers=len(cluster.brokers),
        zones=tuple(sorted({node.rack for node in cluster.brokers.values() if node.rack})),
        metadata_version=features["metadata.version"].level if "metadata.version" in features else 0,
        capabilities=rows,
        grants=tuple(right.command(target.bootstrap, principal) for right in missing),
    )


def _given(values: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None}


def _secret_path(layout: Layout, name: str) -> Path:
    return layout.secrets / f"adopted-{name}.json"
