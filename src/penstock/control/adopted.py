"""Dedicated clusters on brokers that run elsewhere: an adopted Kafka that is empty.

`penstock fleet adopt` has probed it and keeps its login. Here it is given to one tenant: it has to be
the cluster that was adopted, to allow what tenants need, and to hold nothing yet, since whatever is
there would lie beside the tenant's own. Its tenants' users get passwords from a platform key that is
made for this cluster. When the tenant is gone the brokers go on, as empty as they came.
"""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
import yaml

from penstock.control.gateways import GATEWAY_FILE, Before, free_ports, offered_bootstrap
from penstock.control.keeping import GatewayKeeper
from penstock.control.local import DEDICATED, cells_of
from penstock.control.reach import Reach
from penstock.fleet.adopt import load_adopted, load_target
from penstock.fleet.capabilities import Capability, require
from penstock.fleet.layout import Layout, make_directory
from penstock.fleet.security import load_platform_key
from penstock.gateway.states_topic import GATEWAY_USER
from penstock.kafka import acls, brokers, groups, topics, users
from penstock.kafka.acls import AclFilter
from penstock.kafka.client import Client
from penstock.kafka.outcomes import all_done
from penstock.kafka.security import Mechanism
from penstock.model.entities import BrokerPlace
from penstock.model.errors.fleet import AdoptedNotEmpty, AdoptedTwice, CapabilityMissing
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone

if TYPE_CHECKING:
    from penstock.fleet.adopt import Adopted, Target
    from penstock.model.entities import PhysicalCluster

ADOPTED: Final = "adopted"
NEEDED: Final = (Capability.TOPICS, Capability.USERS, Capability.ACLS)
FEATURE: Final = "a dedicated cluster"
FUSE: Final = "quotas' fuse in the broker"  # tenants are held without it, by gateways alone
NO_ZONE: Final = Zone("none")  # of brokers without a rack
KAFKA_OWN: Final = "__"  # its internal topics begin so
PLATFORM_OWN: Final = "_penstock."
SHOWN_MAX: Final = 3  # names of what is there, in an error

log = structlog.get_logger("penstock.control")


class AdoptedProvisioner:
    """Everything it knows stands in the record of the adoption, and under its directory."""

    def __init__(self, layout: Layout, *, gateways: bool = True) -> None:
        self._layout = layout
        self._gateways = GatewayKeeper() if gateways else None

    def _home(self, cluster: PhysicalCluster) -> Layout:
        return Layout(self._layout.home / DEDICATED / cluster.id)

    async def admit(self, adopted: str) -> None:
        known, target = load_adopted(self._layout, adopted), load_target(self._layout, adopted)
        for capability in NEEDED:
            require(known.capabilities, capability, feature=FEATURE, cluster=adopted)
        _authority(target, adopted)
        async with Client(target.bootstrap, target.security) as client:
            await _described(client, known)
            held = [name for name in await topics.describe(client) if not name.startswith(KAFKA_OWN)]
            held += list(await groups.list_all(client))
        if held:
            shown = ", ".join(sorted(held)[:SHOWN_MAX]) + (" and more" if len(held) > SHOWN_MAX else "")
            raise AdoptedNotEmpty(name=adopted, count=len(held), shown=shown)

    async def provision(self, cluster: PhysicalCluster, units: int) -> Reach:
        del units  # its brokers are what they are
        home = self._home(cluster)
        if not home.home.exists():
            # Only at the first attempt: later ones find what the first has made.
            await self.admit(cluster.adopted)
            make_directory(home.home)
        return await self._reached(cluster)

    async def reach(self, cluster: PhysicalCluster) -> Reach | None:
        return await self._reached(cluster) if self._home(cluster).home.exists() else None

    async def release(self, cluster: PhysicalCluster) -> None:
        """The brokers are not ours to end; what the platform made on them goes."""
        home = self._home(cluster)
        if self._gateways is not None:
            await self._gateways.stop(cluster.id, home.home / GATEWAY_FILE)
        if not home.home.exists():
            return
        known, target = (
            load_adopted(self._layout, cluster.adopted),
            load_target(self._layout, cluster.adopted),
        )
        async with Client(target.bootstrap, target.security) as client:
            await _described(client, known)
            await _cleaned(client)
        shutil.rmtree(home.home)

    def growth(self, cluster: PhysicalCluster, brokers: int) -> str:
        if cluster.provider != ADOPTED:
            return ""
        return f"have {brokers} brokers more join {cluster.name}, evenly over its zones"

    async def close(self) -> None:
        """The gateways go on, and a successor keeps them up."""
        if self._gateways is not None:
            await self._gateways.close()

    async def _reached(self, cluster: PhysicalCluster) -> Reach:
        known, target = (
            load_adopted(self._layout, cluster.adopted),
            load_target(self._layout, cluster.adopted),
        )
        home = self._home(cluster)
        async with Client(target.bootstrap, target.security) as client:
            described = await _described(client, known)
        places = tuple(
            BrokerPlace(
                BrokerId(one.id), Zone(one.rack) if one.rack else NO_ZONE, one.address.host, one.address.port
            )
            for _, one in sorted(described.brokers.items())
        )
        key = load_platform_key(home.secrets)
        path = home.home / GATEWAY_FILE
        ca = _authority(target, cluster.adopted)
        before = Before(cluster.adopted, cluster.id, places, home.secrets / "platform.key", ca)
        before.write(path, _ports(path, places))
        if self._gateways is not None:
            self._gateways.keep(cluster.id, path)
        return Reach(
            id=PhysicalClusterId(cluster.id),
            name=cluster.name,
            provider=ADOPTED,
            bootstrap=target.bootstrap,
            key=key,
            brokers=places,
            cells=cells_of(places, 0),
            kafka_id=known.kafka_id,
            security=target.security,
            metrics=_metrics(places, target),
            tenants_bootstrap=offered_bootstrap(path),
            fused=fused(known),
        )


def fused(known: Adopted) -> bool:
    """Whether brokers can hold tenants to their quotas, too; if not, it is said what is missing."""
    try:
        require(known.capabilities, Capability.CLIENT_QUOTAS, feature=FUSE, cluster=known.name)
    except CapabilityMissing as missing:
        log.warning("gateways alone hold its tenant", cluster=known.name, error=str(missing))
        return False
    return True


async def _described(client: Client, known: Adopted) -> brokers.Description:
    """Its brokers, if it is the cluster that was adopted: an address can come to mean another one."""
    described = await brokers.describe(client)
    if described.cluster_id != known.kafka_id:
        raise AdoptedTwice(
            name=known.name, kafka_id=known.kafka_id, bootstrap=known.bootstrap, other=described.cluster_id
        )
    return described


async def _cleaned(client: Client) -> None:
    """What gateways needed. There was nothing of the kind when the cluster was taken."""
    listed = all_done(await topics.describe(client))
    ours = [topic.id for name, topic in listed.items() if name.startswith(PLATFORM_OWN)]
    if ours:
        all_done(await topics.delete(client, ids=ours))
    all_done(await acls.delete(client, [AclFilter(principal=f"User:{GATEWAY_USER}")]))
    if GATEWAY_USER in await users.describe(client):
        all_done(await users.alter(client, delete=[(GATEWAY_USER, Mechanism.SCRAM_SHA_512)]))


def _authority(target: Target, name: str) -> Path | None:
    """What gateways trust: the CA that was given, or the machine's own."""
    if not target.tls:
        return None
    found = target.ca or ssl.get_default_verify_paths().cafile
    if found is None:
        raise CapabilityMissing(
            feature=FEATURE,
            capability="tls",
            cluster=name,
            reason="this machine has no file of authorities that it trusts",
            way_out="Adopt it with --ca <file>.",
        )
    return Path(found)


def _ports(path: Path, places: tuple[BrokerPlace, ...]) -> list[int]:
    """A broker keeps the port that tenants know it by."""
    before: dict[str, Any] = yaml.safe_load(path.read_text()) if path.exists() else {"brokers": []}
    known = {broker["id"]: broker["port"] for broker in before["brokers"]}
    new = free_ports(sum(place.id not in known for place in places))
    return [known.get(place.id) or new.pop() for place in places]


def _metrics(places: tuple[BrokerPlace, ...], target: Target) -> tuple[tuple[int, str, int], ...]:
    """All brokers are in one cell, so it does not matter which of them an agent is of."""
    found = []
    for place, address in zip(places, target.metrics):
        host, _, port = address.rpartition(":")
        found.append((int(place.id), host, int(port)))
    return tuple(found)
