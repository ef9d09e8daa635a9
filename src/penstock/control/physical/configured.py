"""Physical clusters that the control plane's settings name: they run elsewhere, and no local state is needed.

A cluster's id derives from its Kafka cluster id, so that all control planes agree on it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from penstock.control.physical.adopted import ADOPTED, agents_of, endpoints_of
from penstock.control.physical.cluster_access import ProvidedCluster
from penstock.control.physical.local import cells_of
from penstock.control.settings import cluster_key
from penstock.fleet.rights import require_rights
from penstock.kafka.admin import brokers
from penstock.kafka.client import Client
from penstock.model.entities import PhysicalCluster
from penstock.model.errors.fleet import ClusterReplaced, ClusterTwice
from penstock.model.ids import ID_ALPHABET, ID_LENGTH, PhysicalClusterId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.control.registry import Registry
    from penstock.control.settings import ConfiguredCluster
    from penstock.fleet.passwords import PlatformKey

REACH_SECONDS_MAX: Final = 5.0  # to describe itself


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
    places = endpoints_of(described)
    return ProvidedCluster(
        id=cluster_id(kafka_id),
        name=cluster.name,
        provider=ADOPTED,
        bootstrap=cluster.bootstrap,
        key=cluster_key(platform_key, kafka_id),
        brokers=places,
        cells=cells_of(places, cluster.cell_brokers),
        kafka_id=kafka_id,
        security=cluster.security,
        metrics=await agents_of(cluster.name, cluster.metrics, places) if cluster.metrics else (),
        tenants_bootstrap=cluster.gateways,
    )


def cluster_id(kafka_id: str) -> PhysicalClusterId:
    number = int.from_bytes(hashlib.sha256(kafka_id.encode()).digest())
    tail = ""
    for _ in range(ID_LENGTH):
        number, digit = divmod(number, len(ID_ALPHABET))
        tail += ID_ALPHABET[digit]
    return PhysicalClusterId(f"pkc-{tail}")


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
