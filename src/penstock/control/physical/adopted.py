"""Dedicated clusters on adopted brokers that run elsewhere.

`penstock fleet adopt` has probed the cluster and stored its login. It is given to one tenant. It must be
the cluster that was adopted, allow what tenants need, and carry no other platform. What others have on it
stays untouched, and the tenant does not see it. Its tenant's users get passwords from a platform key made
for this cluster. When the tenant is deleted, the brokers keep running, with what they had before.
"""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from penstock.control.capacity_units import ADOPTED_CAPACITY
from penstock.control.physical.cluster_access import ProvidedCluster
from penstock.control.physical.gateway_files import (
    GATEWAY_FILE,
    GatewayFile,
    advertised_bootstrap,
    free_ports,
    kept_ports,
    management_address,
)
from penstock.control.physical.gateway_supervisor import GatewaySupervisor
from penstock.control.physical.local import DEDICATED, cells_of
from penstock.fleet.adopted.adoption import load_adopted, load_target
from penstock.fleet.adopted.capabilities import Capability, missing_capabilities, require
from penstock.fleet.credentials.certificates import load_platform_key
from penstock.fleet.layout import Layout, make_directory
from penstock.gateway.process.tenant_source import GATEWAY_USER
from penstock.kafka.admin import acls, brokers, topics, users
from penstock.kafka.admin.acls import AclFilter
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.kafka.metrics_agents import identify
from penstock.kafka.security import Mechanism
from penstock.model.entities import BrokerEndpoint
from penstock.model.errors import PenstockError
from penstock.model.errors.balance import GrowthImpossible
from penstock.model.errors.fleet import AdoptedInUse, AdoptedTwice, CapabilityMissing
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from penstock.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.fleet.adopted.adoption import Adopted, Target
    from penstock.model.entities import PhysicalCluster

ADOPTED: Final = "adopted"
NEEDED: Final = (Capability.TOPICS, Capability.USERS, Capability.ACLS)
FEATURE: Final = "a dedicated cluster"
NO_ZONE: Final = Zone("none")  # for brokers without a rack
PLATFORM_INTERNAL: Final = "_penstock."
NAMES_MAX: Final = 3  # listed in an error

log = structlog.get_logger("penstock.control")


class AdoptedProvisioner:
    """All its state is in the adoption record and under its directory."""

    def __init__(self, layout: Layout, *, gateways: bool = True) -> None:
        self._layout = layout
        self._gateways = GatewaySupervisor() if gateways else None

    def _home(self, cluster: PhysicalCluster) -> Layout:
        return Layout(self._layout.home / DEDICATED / cluster.id)

    def _adoption(self, name: str) -> tuple[Adopted, Target]:
        return load_adopted(self._layout, name), load_target(self._layout, name)

    async def admit(self, adopted: str) -> None:
        known, target = self._adoption(adopted)
        for capability in NEEDED:
            require(known.capabilities, capability, feature=FEATURE, cluster=adopted)
        _authority(target, adopted)
        async with Client(target.bootstrap, target.security) as client:
            await _describe_adopted(client, known)
            held = [name for name in await topics.describe(client) if name.startswith(PLATFORM_INTERNAL)]
        if held:
            shown = ", ".join(sorted(held)[:NAMES_MAX]) + (" and more" if len(held) > NAMES_MAX else "")
            raise AdoptedInUse(name=adopted, shown=shown)

    async def provision(self, cluster: PhysicalCluster, units: int) -> ProvidedCluster:
        del units  # its brokers are given
        home = self._home(cluster)
        if not home.home.exists():
            # Only at the first attempt: later ones would find what the first has created.
            await self.admit(cluster.adopted)
            make_directory(home.home)
        return await self._provide(cluster)

    async def resume(self, cluster: PhysicalCluster) -> ProvidedCluster | None:
        return await self._provide(cluster) if self._home(cluster).home.exists() else None

    async def release(self, cluster: PhysicalCluster) -> None:
        """Deletes what the platform created on the brokers; the brokers keep running."""
        home = self._home(cluster)
        if self._gateways is not None:
            await self._gateways.stop(cluster.id, home.home / GATEWAY_FILE)
        if not home.home.exists():
            return
        known, target = self._adoption(cluster.adopted)
        async with Client(target.bootstrap, target.security) as client:
            await _describe_adopted(client, known)
            await _clean_up(client)
        shutil.rmtree(home.home)

    def check_growth(self, cluster: PhysicalCluster) -> None:
        raise GrowthImpossible(
            cluster=cluster.name,
            reason="its brokers run elsewhere",
            way_out="Start brokers there: they join by themselves, and `penstock fleet grow` fills them.",
        )

    async def grow(self, cluster: PhysicalCluster, brokers: Mapping[BrokerId, Zone]) -> ProvidedCluster:
        del brokers
        self.check_growth(cluster)
        raise AssertionError(cluster.id)

    async def shrink(self, cluster: PhysicalCluster, brokers: Collection[int]) -> bool:
        """They are stopped where they run."""
        del cluster, brokers
        return False

    async def forget(self, cluster: PhysicalCluster, brokers: Collection[int]) -> ProvidedCluster | None:
        del brokers
        return await self._provide(cluster) if self._home(cluster).home.exists() else None

    def fleet(self) -> tuple[ProvidedCluster, ...]:
        return ()

    def growth(self, cluster: PhysicalCluster, brokers: int) -> str:
        if cluster.provider != ADOPTED:
            return ""
        return f"add {counted(brokers, 'broker')} to {cluster.name}, evenly over its zones"

    async def close(self) -> None:
        """The gateways keep running, and a successor supervises them."""
        if self._gateways is not None:
            await self._gateways.close()

    async def _provide(self, cluster: PhysicalCluster) -> ProvidedCluster:
        known, target = self._adoption(cluster.adopted)
        home = self._home(cluster)
        async with Client(target.bootstrap, target.security) as client:
            described = await _describe_adopted(client, known)
        places = endpoints_of(described)
        key = load_platform_key(home.secrets)
        path = home.home / GATEWAY_FILE
        ca = _authority(target, cluster.adopted)
        file = GatewayFile(cluster.adopted, cluster.id, places, home.secrets / "platform.key", ca)
        address = management_address(path)
        metrics_port = int(address.rpartition(":")[2]) if address else free_ports(1)[0]
        file.write(path, kept_ports(path, places), metrics_port)
        if self._gateways is not None:
            self._gateways.supervise(cluster.id, path)
        return ProvidedCluster(
            id=PhysicalClusterId(cluster.id),
            name=cluster.name,
            provider=ADOPTED,
            bootstrap=target.bootstrap,
            key=key,
            brokers=places,
            cells=cells_of(places, 0),
            kafka_id=known.kafka_id,
            security=target.security,
            metrics=await agents_of(cluster.adopted, target.metrics, places),
            tenants_bootstrap=advertised_bootstrap(path),
            missing=missing_capabilities(known.capabilities),
            capacity=ADOPTED_CAPACITY,
        )


def endpoints_of(described: brokers.Description) -> tuple[BrokerEndpoint, ...]:
    """Its brokers as gateways reach them, by id."""
    return tuple(
        BrokerEndpoint(
            BrokerId(one.id), Zone(one.rack) if one.rack else NO_ZONE, one.address.host, one.address.port
        )
        for _, one in sorted(described.brokers.items())
    )


async def _describe_adopted(client: Client, known: Adopted) -> brokers.Description:
    """Its brokers, if it is still the adopted cluster: its address may lead to another one now."""
    described = await brokers.describe(client)
    if described.cluster_id != known.kafka_id:
        raise AdoptedTwice(
            name=known.name, kafka_id=known.kafka_id, bootstrap=known.bootstrap, other=described.cluster_id
        )
    return described


async def _clean_up(client: Client) -> None:
    """Deletes what gateways needed: the cluster carried no platform when it was given to the tenant."""
    listed = results_or_raise(await topics.describe(client))
    internal = [topic.id for name, topic in listed.items() if name.startswith(PLATFORM_INTERNAL)]
    if internal:
        results_or_raise(await topics.delete(client, ids=internal))
    results_or_raise(await acls.delete(client, [AclFilter(principal=f"User:{GATEWAY_USER}")]))
    if GATEWAY_USER in await users.describe(client):
        results_or_raise(await users.alter(client, delete=[(GATEWAY_USER, Mechanism.SCRAM_SHA_512)]))


def _authority(target: Target, name: str) -> Path | None:
    """The CA file that gateways trust: the given one, or the machine's."""
    if not target.tls:
        return None
    ca = target.ca or ssl.get_default_verify_paths().cafile
    if ca is None:
        raise CapabilityMissing(
            feature=FEATURE,
            capability="tls",
            cluster=name,
            reason="this machine has no CA file",
            way_out="Adopt it with --ca <file>.",
        )
    return Path(ca)


async def agents_of(
    cluster: str, metrics: Sequence[str], places: Sequence[BrokerEndpoint]
) -> tuple[tuple[int, str, int], ...]:
    """The metrics agent of each broker; the log has the reasons why others are not used.

    If one belongs to no broker or to another one than declared, none is used."""
    try:
        agents, unreachable = await identify(metrics, {int(place.id) for place in places})
    except PenstockError as failure:
        log.warning("metrics not used", cluster=cluster, error=str(failure), remedy=failure.advice)
        return ()
    for each in unreachable:
        log.warning("metrics agent does not respond", cluster=cluster, error=str(each), remedy=each.advice)
    return agents
