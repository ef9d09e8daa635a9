"""Adopt a cluster that runs elsewhere: probe it and record what it allows.

Adoption only reads from the cluster. The record holds its address, the user and the capability table;
the password is stored with the platform's other secrets.
"""

from __future__ import annotations

import json
import re
import ssl
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.atomic_files import write_atomically
from penstock.fleet.capabilities import Capability, CapabilityRow, ClusterProbe, capability_table
from penstock.fleet.layout import SECRET_DIRECTORY_MODE, SECRET_FILE_MODE, make_directory
from penstock.fleet.passwords import PLATFORM_USER
from penstock.kafka.admin import acls, brokers, configs, quotas, users
from penstock.kafka.client import Client
from penstock.kafka.metrics_agents import identify
from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model.errors import PenstockError
from penstock.model.errors.fleet import AdoptedNameInvalid, AdoptedTwice, AdoptedUnknown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Mapping, Sequence

    from penstock.fleet.layout import Layout

_CONFIGS = ("replica.selector.class", "remote.log.storage.system.enable", "broker.rack")
_OPERATION_BITS = 32
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # part of file names
REACH_SECONDS_MAX = 5.0  # to describe itself; a slower cluster is not usable


@dataclass(frozen=True, slots=True)
class Target:
    """How to reach a cluster: the arguments of `penstock fleet adopt`."""

    bootstrap: str
    user: str | None = None
    password: str | None = None
    mechanism: Mechanism = Mechanism.SCRAM_SHA_512
    tls: bool = False
    ca: str | None = None
    metrics: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Target({self.bootstrap}, user={self.user})"

    @property
    def security(self) -> Security:
        login = Login(self.user, self.password or "", self.mechanism) if self.user else None
        if not self.tls:
            return Security(login)
        return Security(login, tls_context(Path(self.ca)) if self.ca else ssl.create_default_context())


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


async def adopt(layout: Layout, name: str, target: Target) -> Adopted:
    """Probe and record a cluster. Adopting it again under the same name refreshes the table."""
    if not NAME_PATTERN.fullmatch(name):
        raise AdoptedNameInvalid(name=name)
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
    return Adopted(**{**values, "zones": tuple(values["zones"]), "capabilities": rows})


def load_target(layout: Layout, name: str) -> Target:
    if not NAME_PATTERN.fullmatch(name):
        raise AdoptedNameInvalid(name=name)
    values: dict[str, Any] = json.loads(_secret_path(layout, name).read_text())
    values |= {"mechanism": Mechanism(values["mechanism"]), "metrics": tuple(values.get("metrics", ()))}
    return Target(**values)


async def probe(name: str, target: Target) -> Adopted:
    """Read from the cluster everything that the capability table needs."""
    async with Client(target.bootstrap, target.security) as client:
        cluster = await brokers.describe(client, timeout=REACH_SECONDS_MAX)
        features = {key: feature.level for key, feature in (await brokers.features(client)).items()}
        observed = ClusterProbe(
            operations=await _allowed_operations(client),
            features=features,
            racks={node.id: node.rack for node in cluster.brokers.values()},
            configs=await _broker_configs(client, min(cluster.brokers)),
            # With a name: Kafka 4.3 never responds to a user without rights who asks for all users.
            users_error=await _error(users.describe(client, [PLATFORM_USER])),
            acls_error=await _error(acls.describe(client)),
            quotas_error=await _error(quotas.describe(client)),
            metrics_error=await _metrics_error(target.metrics, cluster.brokers.keys()),
        )
    return Adopted(
        name=name,
        kafka_id=cluster.cluster_id,
        bootstrap=target.bootstrap,
        user=target.user,
        brokers=len(cluster.brokers),
        zones=tuple(sorted({rack for rack in observed.racks.values() if rack})),
        metadata_version=features.get("metadata.version", 0),
        capabilities=capability_table(observed),
    )


async def _allowed_operations(client: Client) -> frozenset[int]:
    response = await client.call("DescribeCluster", {"IncludeClusterAuthorizedOperations": True})
    bits = response["ClusterAuthorizedOperations"]
    return frozenset(code for code in range(_OPERATION_BITS) if bits >= 0 and bits >> code & 1)


async def _broker_configs(client: Client, broker: int) -> Mapping[str, str | None]:
    resource = configs.broker(broker)
    entries = (await configs.describe(client, [resource], names=_CONFIGS))[resource]
    return {} if isinstance(entries, PenstockError) else {key: entry.value for key, entry in entries.items()}


async def _error(call: Awaitable[object]) -> str | None:
    try:
        await call
    except PenstockError as error:
        return error.message
    return None


async def _metrics_error(addresses: Sequence[str], ids: Collection[int]) -> str | None:
    if not addresses:
        return "no metrics address was given"
    if error := await _error(identify(addresses, ids)):
        return error
    if len(addresses) < len(ids):
        return f"metrics addresses were given for {len(addresses)} of {len(ids)} brokers"
    return None


def _secret_path(layout: Layout, name: str) -> Path:
    return layout.secrets / f"adopted-{name}.json"
