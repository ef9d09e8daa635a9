"""The embedded fleet under one home: everything that turns a spec into nodes ready to start."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.fleet.cluster import Cluster, check_ports_free, recorded, settle
from penstock.fleet.identity import read_identity
from penstock.fleet.layout import make_directory, write_atomically
from penstock.fleet.node import Access, Node
from penstock.fleet.parse import parse_fleet
from penstock.fleet.passwords import NODE_USER, PLATFORM_USER
from penstock.fleet.render import Credentials
from penstock.fleet.security import (
    Authority,
    ensure_keystore,
    load_authority,
    load_platform_key,
)
from penstock.model.errors.fleet import DiskFull, NodeUnknown, NotRunning, PlatformKeyLost
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.fleet.layout import Layout
    from penstock.fleet.node import Runtime
    from penstock.fleet.spec import FleetSpec, NodeSpec

DISK_MB_FREE_MIN = 512
FORMATS_AT_ONCE = 2  # each is a JVM of its own; more than this only makes all of them slow


@dataclass(frozen=True, slots=True)
class LocalCluster:
    cluster: Cluster
    nodes: tuple[Node, ...]

    @property
    def name(self) -> str:
        return self.cluster.spec.name


@dataclass(frozen=True, slots=True)
class LocalFleet:
    layout: Layout
    access: Access
    authority: Authority
    clusters: tuple[LocalCluster, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for cluster in self.clusters for node in cluster.nodes)

    def node(self, name: str) -> Node:
        """By its name, or `cluster/name` where two clusters have one of that name."""
        for node in self.nodes:
            if name in (node.full_name, self.shown_name(node)):
                return node
        raise NodeUnknown(node=name, known=", ".join(map(self.shown_name, self.nodes)))

    def shown_name(self, node: Node) -> str:
        """Short where that is clear, with its cluster where two clusters have a node of that name."""
        alike = [other for other in self.nodes if other.name == node.name]
        return node.name if len(alike) == 1 else node.full_name

    async def prepare(self) -> None:
        """Directories, certificates, properties and formatted storage of all that does not run."""
        check_room(self.layout.home)
        idle = [node for node in self.nodes if node.running() is None]
        for node in idle:
            check_ports_free(node.cluster.spec, node.spec)
            make_directory(node.layout.root)
            self.certify(node, now=dt.datetime.now(dt.UTC))
            node.configure()
        gate = asyncio.Semaphore(FORMATS_AT_ONCE)

        async def format_one(node: Node) -> None:
            async with gate:
                await node.format()

        try:
            async with asyncio.TaskGroup() as group:
                for node in idle:
                    group.create_task(format_one(node))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    def certify(self, node: Node, *, now: dt.datetime, force: bool = False) -> bool:
        """Give a node a certificate that fits, or in any case a new one; true when it is new."""
        if not node.cluster.spec.tls:
            return False
        hosts = [node.spec.host, "localhost", "127.0.0.1"]
        name = f"{node.cluster.id}/{node.name}"
        return ensure_keystore(
            node.layout.keystore, self.authority, name, sorted(set(hosts)), now=now, force=force
        )


def open_fleet(spec: FleetSpec, layout: Layout, runtime: Runtime) -> LocalFleet:
    """A fleet to be started: ids, ports and secrets are read where they exist, made where not."""
    if "," in str(layout.home):
        raise SettingInvalid(
            where="settings", key="home", value=str(layout.home),
            expected="expected a path without commas, which Kafka takes for several paths",
        )  # fmt: skip
    make_directory(layout.home)
    random = secrets.SystemRandom()
    clusters: list[Cluster] = []
    for cluster_spec in spec:
        alive = any(_alive(layout, cluster_spec.name, node) for node in cluster_spec.nodes)
        avoid = [port for c in clusters for node in c.spec.nodes for port in node.ports.values()]
        clusters.append(settle(cluster_spec, layout, random, running=alive, avoid=avoid))
    _check_key_kept(layout, clusters)
    return _fleet(layout, clusters, runtime)


def watched_fleet(layout: Layout) -> LocalFleet:
    """The fleet under this home as it was last started, to be looked at or stopped. Needs no Java."""
    document = remembered_document(layout)
    if document is None:
        raise NotRunning(home=layout.home)
    spec = parse_fleet(document, where=str(layout.fleet_file))
    clusters = [cluster for c in spec if (cluster := recorded(c, layout)) is not None]
    return _fleet(layout, clusters, None)


def _fleet(layout: Layout, clusters: Sequence[Cluster], runtime: Runtime | None) -> LocalFleet:
    key = load_platform_key(layout.secrets)
    authority = load_authority(layout.secrets, now=dt.datetime.now(dt.UTC))
    access = Access(
        Credentials(key.password(NODE_USER), key.password(PLATFORM_USER)), layout.secrets / "ca.pem"
    )
    return LocalFleet(
        layout,
        access,
        authority,
        tuple(
            LocalCluster(
                cluster,
                tuple(
                    Node(cluster, n, layout.node(cluster.spec.name, n.name), access, runtime)
                    for n in cluster.spec.nodes
                ),
            )
            for cluster in clusters
        ),
    )


def _check_key_kept(layout: Layout, clusters: Sequence[Cluster]) -> None:
    """A new key gives new passwords; nodes that were formatted with the old one would refuse them all."""
    if layout.platform_key.exists():
        return
    for cluster in clusters:
        for node in cluster.spec.nodes:
            if layout.node(cluster.spec.name, node.name).meta.exists():
                raise PlatformKeyLost(path=layout.platform_key, node=node.name)


def check_room(home: Path) -> None:
    free_mb = shutil.disk_usage(home).free / 1e6
    if free_mb < DISK_MB_FREE_MIN:
        raise DiskFull(directory=home, free_mb=free_mb, needed_mb=DISK_MB_FREE_MIN)


def remember_spec(layout: Layout, document: Mapping[str, Any]) -> None:
    """Keep what was asked for, so that `status`, `down` and a plain `up` speak of the same fleet."""
    write_atomically(layout.fleet_file, json.dumps(document, indent=1))


def remembered_document(layout: Layout) -> dict[str, Any] | None:
    if not layout.fleet_file.exists():
        return None
    try:
        document: dict[str, Any] = json.loads(layout.fleet_file.read_text())
    except ValueError as error:
        raise SettingsUnreadable(path=layout.fleet_file, reason=f"it is damaged: {error}") from error
    return document


def _alive(layout: Layout, cluster: str, node: NodeSpec) -> bool:
    identity = read_identity(layout.node(cluster, node.name).record)
    return identity is not None and identity.is_alive()
