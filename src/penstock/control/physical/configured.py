"""Physical clusters that the control plane's settings name: they run elsewhere, and no local state is needed.

A cluster's id derives from its Kafka cluster id, so that all control planes agree on it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from penstock.control.observation import read_published_states
from penstock.control.physical.adopted import ADOPTED, agents_of, endpoints_of
from penstock.control.physical.cluster_access import BrokerSelection, ProvidedCluster
from penstock.control.physical.local import cells_of
from penstock.fleet.adopted.capabilities import missing_capabilities
from penstock.fleet.adopted.capability_probe import probe_capabilities
from penstock.fleet.adopted.rights import require_rights
from penstock.fleet.credentials.gateway_credentials import tenants_key
from penstock.kafka.admin import brokers
from penstock.kafka.client import Client
from penstock.model.entities import PhysicalCluster
from penstock.model.errors.fleet import ClusterClaimed, ClusterReplaced, ClusterTwice, NoBrokersSelected
from penstock.model.ids import ID_ALPHABET, ID_LENGTH, PhysicalClusterId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.control.registry import Registry
    from penstock.control.settings import ConfiguredCluster
    from penstock.fleet.credentials.passwords import PlatformKey
    from penstock.model.entities import BrokerEndpoint

REACH_SECONDS_MAX: Final = 5.0  # to describe itself
TENANTS_SHOWN_MAX: Final = 3  # in an error


async def provide(cluster: ConfiguredCluster, platform_key: PlatformKey) -> ProvidedCluster:
    """Connects to the cluster, checks that it is the right one and that the user has its rights."""
    async with Client(cluster.bootstrap, cluster.security) as client:
        described = await brokers.describe(client, timeout=REACH_SECONDS_MAX)
        kafka_id = described.cluster_id
        if cluster.kafka_id not in ("", kafka_id):
            raise ClusterReplaced(
                name=cluster.name, kafka_id=cluster.kafka_id, bootstrap=cluster.bootstrap, other=kafka_id
            )
        await require_rights(client, cluster.name, cluster.bootstrap, cluster.security)
        rows = await probe_capabilities(
            client,
            described,
            bootstrap=cluster.bootstrap,
            security=cluster.security,
            metrics=cluster.metrics,
        )
    selection = BrokerSelection(cluster.brokers, cluster.zones, one_cell=cluster.cell_brokers == 0)
    places = tuple(broker for broker in endpoints_of(described) if selection.includes(broker))
    if not places:
        raise NoBrokersSelected(name=cluster.name, listed=_listed(endpoints_of(described)))
    return ProvidedCluster(
        id=cluster_id(kafka_id),
        name=cluster.name,
        provider=ADOPTED,
        bootstrap=cluster.bootstrap,
        key=tenants_key(platform_key, kafka_id, cluster.key_generation),
        brokers=places,
        cells=cells_of(places, cluster.cell_brokers),
        kafka_id=kafka_id,
        security=cluster.security,
        metrics=await agents_of(cluster.name, cluster.metrics, places) if cluster.metrics else (),
        tenants_bootstrap=cluster.gateways,
        missing=missing_capabilities(rows),
        capacity=cluster.capacity,
        selection=selection,
        backup=cluster.backup,
    )


def _listed(brokers: Sequence[BrokerEndpoint]) -> str:
    return ", ".join(f"{broker.id} in {broker.zone}" for broker in brokers)


def cluster_id(kafka_id: str) -> PhysicalClusterId:
    number = int.from_bytes(hashlib.sha256(kafka_id.encode()).digest())
    tail = ""
    for _ in range(ID_LENGTH):
        number, digit = divmod(number, len(ID_ALPHABET))
        tail += ID_ALPHABET[digit]
    return PhysicalClusterId(f"pkc-{tail}")


async def require_unclaimed(registry: Registry, provided: ProvidedCluster) -> None:
    """Raises if gateways on a cluster that the registry does not know serve tenants of another one."""
    if registry.get(PhysicalCluster, provided.id) is not None:
        return
    async with provided.client() as client:
        tenants = sorted(await read_published_states(client))
    if tenants:
        raise ClusterClaimed(name=provided.name, tenants=", ".join(tenants[:TENANTS_SHOWN_MAX]))


def require_same(registry: Registry, known: Sequence[ProvidedCluster], provided: ProvidedCluster) -> None:
    """Raises if the name belongs to another Kafka cluster, where its tenants' data is, or the reverse."""
    for one in known:
        if one.kafka_id == provided.kafka_id and one.name != provided.name:
            raise ClusterTwice(name=provided.name, other=one.name, kafka_id=provided.kafka_id)
    for physical in registry.all(PhysicalCluster):
        if physical.name == provided.name and physical.kafka_id not in ("", provided.kafka_id):
            raise ClusterReplaced(
                name=provided.name,
                kafka_id=physical.kafka_id,
                bootstrap=provided.bootstrap,
                other=provided.kafka_id,
            )
