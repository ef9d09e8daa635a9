"""Dedicated clusters on adopted brokers that run elsewhere.

`penstock fleet adopt` has probed the cluster and stored its login. It is given to one tenant. It must be
the cluster that was adopted, allow what tenants need, and be empty, because existing topics would share
it with the tenant's. Its tenant's users get passwords from a platform key made for this cluster. When the
tenant is deleted, the brokers keep running, as empty as before.
"""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
import yaml

from penstock.control.physical.cluster_access import ProvidedCluster
from penstock.control.physical.gateway_files import (
    GATEWAY_FILE,
    GatewayFile,
    advertised_bootstrap,
    free_ports,
)
from penstock.control.physical.gateway_supervisor import GatewaySupervisor
from penstock.control.physical.local import DEDICATED, cells_of
from penstock.fleet.adoption import load_adopted, load_target
from penstock.fleet.capabilities import Capability, require
from penstock.fleet.certificates import load_platform_key
from penstock.fleet.layout import Layout, make_directory
from penstock.gateway.process.tenant_source import GATEWAY_USER
from penstock.kafka.admin import acls, brokers, groups, topics, users
from penstock.kafka.admin.acls import AclFilter
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.kafka.metrics_agents import identify
from penstock.kafka.security import Mechanism
from penstock.model.entities import BrokerEndpoint
from penstock.model.errors import PenstockError
from penstock.model.errors.fleet import AdoptedNotEmpty, AdoptedTwice, CapabilityMissing
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from penstock.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.fleet.adoption import Adopted, Target
    from penstock.model.entities import PhysicalCluster

ADOPTED: Final = "adopted"
NEEDED: Final = (Capability.TOPICS, Capability.USERS, Capability.ACLS)
FEATURE: Final = "a dedicated cluster"
BACKSTOP: Final = "client quotas as a backstop"  # without it, gateways alone throttle tenants
NO_ZONE: Final = Zone("none")  # for brokers without a rack
KAFKA_INTERNAL: Final = "__"  # prefix of Kafka's internal topics
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
            held = [name for name in await topics.describe(client) if not name.startswith(KAFKA_INTERNAL)]
            held += list(await groups.list_all(client))
        if held:
            shown = ", ".join(sorted(held)[:NAMES_MAX]) + (" and more" if len(held) > NAMES_MAX else "")
            raise AdoptedNotEmpty(name=adopted, count=len(held), shown=shown)

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
        file.write(path, _ports(path, places))
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
            sets_client_quotas=sets_client_quotas(known),
        )


def endpoints_of(described: brokers.Description) -> tuple[BrokerEndpoint, ...]:
    """Its brokers as gateways reach them, by id."""
    return tuple(
        BrokerEndpoint(
            BrokerId(one.id), Zone(one.rack) if one.rack else NO_ZONE, one.address.host, one.address.port
        )
        for _, one in sorted(described.brokers.items())
    )


def sets_client_quotas(known: Adopted) -> bool:
    """Whether the platform may set client quotas; logs what is missing if not."""
    try:
        require(known.capabilities, Capability.CLIENT_QUOTAS, feature=BACKSTOP, cluster=known.name)
    except CapabilityMissing as missing:
        log.warning("client quotas not set", cluster=known.name, error=str(missing))
        return False
    return True


async def _describe_adopted(client: Client, known: Adopted) -> brokers.Description:
    """Its brokers, if it is still the adopted cluster: its address may lead to another one now."""
    described = await brokers.describe(client)
    if described.cluster_id != known.kafka_id:
        raise AdoptedTwice(
            name=known.name, kafka_id=known.kafka_id, bootstrap=known.bootstrap, other=described.cluster_id
        )
    return described


async def _clean_up(client: Client) -> None:
    """Deletes what gateways needed: the cluster had nothing of the kind when it was given to the tenant."""
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


def _ports(path: Path, places: tuple[BrokerEndpoint, ...]) -> list[int]:
    """A broker keeps the port that tenants use."""
    before: dict[str, Any] = yaml.safe_load(path.read_text()) if path.exists() else {"brokers": []}
    known = {broker["id"]: broker["port"] for broker in before["brokers"]}
    new = free_ports(sum(place.id not in known for place in places))
    return [known.get(place.id) or new.pop() for place in places]


async def agents_of(
    cluster: str, metrics: Sequence[str], places: Sequence[BrokerEndpoint]
) -> tuple[tuple[int, str, int], ...]:
    """The metrics agent of each broker. If one cannot be assigned, none is used; the log has the reason."""
    try:
        return await identify(metrics, {int(place.id) for place in places})
    except PenstockError as failure:
        log.warning("metrics not used", cluster=cluster, error=str(failure), remedy=failure.advice)
        return ()
