"""The embedded clusters below one home: turns a fleet spec into nodes that can be started."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.atomic_files import write_atomically
from penstock.fleet.cluster_record import Cluster, check_ports_free, load_cluster, load_or_create_cluster
from penstock.fleet.credentials.certificates import (
    Authority,
    ensure_keystore,
    load_authority,
    load_platform_key,
)
from penstock.fleet.credentials.passwords import NODE_USER, PLATFORM_USER
from penstock.fleet.jars import cache_directory
from penstock.fleet.kafka_properties import Credentials
from penstock.fleet.layout import make_directory
from penstock.fleet.node import Access, Node
from penstock.fleet.spec import TierStore
from penstock.fleet.spec_file import parse_fleet
from penstock.model.errors.fleet import DiskFull, NodeUnknown, NotRunning, PlatformKeyLost
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable
from penstock.model.errors.tier import PluginMissing, S3JarsMissing
from penstock.process_identity import read_alive
from penstock.tier.s3_jars import s3_class_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.fleet.layout import Layout
    from penstock.fleet.node import Runtime
    from penstock.fleet.spec import FleetSpec

DISK_MB_FREE_MIN = 512
FORMATS_AT_ONCE = 2  # each starts a JVM; more at once only slow each other down


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
        """A node by its name, or by `cluster/name` if the name is in two clusters."""
        for node in self.nodes:
            if name in (node.full_name, self.shown_name(node)):
                return node
        raise NodeUnknown(node=name, known=", ".join(map(self.shown_name, self.nodes)))

    def shown_name(self, node: Node) -> str:
        """The node's name, with its cluster if two clusters have a node of that name."""
        namesakes = [other for other in self.nodes if other.name == node.name]
        return node.name if len(namesakes) == 1 else node.full_name

    async def prepare(self, nodes: Sequence[Node] | None = None) -> None:
        """Create directories, certificates, properties and storage of stopped nodes: of these, or of all."""
        check_disk_space(self.layout.home)
        stopped = [node for node in (self.nodes if nodes is None else nodes) if node.running() is None]
        for node in stopped:
            check_ports_free(node.cluster.spec, node.spec)
            make_directory(node.layout.root)
            self.ensure_certificate(node, now=dt.datetime.now(dt.UTC))
            node.configure()
        slots = asyncio.Semaphore(FORMATS_AT_ONCE)

        async def format_one(node: Node) -> None:
            async with slots:
                await node.format()

        try:
            async with asyncio.TaskGroup() as group:
                for node in stopped:
                    group.create_task(format_one(node))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    def ensure_certificate(self, node: Node, *, now: dt.datetime, force: bool = False) -> bool:
        """Issue a certificate if the node needs one, or always with `force`; true if one was issued."""
        if not node.cluster.spec.tls:
            return False
        hosts = sorted({node.spec.host, "localhost", "127.0.0.1"})
        name, path = f"{node.cluster.id}/{node.name}", node.layout.keystore
        return ensure_keystore(path, self.authority, name, hosts, now=now, force=force)


def open_fleet(spec: FleetSpec, layout: Layout, runtime: Runtime) -> LocalFleet:
    """Open a fleet to start it; ids, ports and secrets are created where they do not exist yet."""
    if "," in str(layout.home):
        raise SettingInvalid(
            where="settings", key="home", value=str(layout.home),
            expected="expected a path without commas, because Kafka splits paths at commas",
        )  # fmt: skip
    _check_tier(spec, runtime)
    make_directory(layout.home)
    random = secrets.SystemRandom()
    clusters: list[Cluster] = []
    for cluster_spec in spec:
        records = [layout.node(cluster_spec.name, node.name).record for node in cluster_spec.nodes]
        alive = any(read_alive(record) is not None for record in records)
        avoid = [port for c in clusters for node in c.spec.nodes for port in node.ports.values()]
        clusters.append(load_or_create_cluster(cluster_spec, layout, random, running=alive, avoid=avoid))
    _check_key_exists(layout, clusters)
    return _fleet(layout, clusters, runtime)


def load_fleet(layout: Layout, runtime: Runtime | None = None) -> LocalFleet:
    """The fleet as its file declares it now; without a runtime, to inspect or stop it."""
    document = load_fleet_document(layout)
    if document is None:
        raise NotRunning(home=layout.home)
    spec = parse_fleet(document, where=str(layout.fleet_file))
    clusters = [cluster for c in spec if (cluster := load_cluster(c, layout)) is not None]
    return _fleet(layout, clusters, runtime)


def _fleet(layout: Layout, clusters: Sequence[Cluster], runtime: Runtime | None) -> LocalFleet:
    key = load_platform_key(layout.secrets)
    authority = load_authority(layout.secrets, now=dt.datetime.now(dt.UTC))
    credentials = Credentials(key.password(NODE_USER), key.password(PLATFORM_USER))
    access = Access(credentials, layout.secrets / "ca.pem")

    def local(cluster: Cluster) -> LocalCluster:
        name, nodes = cluster.spec.name, cluster.spec.nodes
        return LocalCluster(
            cluster, tuple(Node(cluster, n, layout.node(name, n.name), access, runtime) for n in nodes)
        )

    return LocalFleet(layout, access, authority, tuple(map(local, clusters)))


def _check_key_exists(layout: Layout, clusters: Sequence[Cluster]) -> None:
    """Refuse to create a new key: nodes formatted with the old one would reject its passwords."""
    if layout.platform_key.exists():
        return
    for cluster in clusters:
        for node in cluster.spec.nodes:
            if layout.node(cluster.spec.name, node.name).meta.exists():
                raise PlatformKeyLost(path=layout.platform_key, node=node.name)


def _check_tier(spec: FleetSpec, runtime: Runtime) -> None:
    """Refuse to start brokers that could not load their plugin."""
    for cluster in spec:
        if cluster.tier.store is not TierStore.NONE and runtime.jars.plugin is None:
            raise PluginMissing(cluster=cluster.name)
        if cluster.tier.store is TierStore.S3 and not s3_class_path(cache_directory()):
            raise S3JarsMissing(cluster=cluster.name)


def check_disk_space(home: Path) -> None:
    free_mb = shutil.disk_usage(home).free / 1e6
    if free_mb < DISK_MB_FREE_MIN:
        raise DiskFull(directory=home, free_mb=free_mb, needed_mb=DISK_MB_FREE_MIN)


def save_fleet_document(layout: Layout, document: Mapping[str, Any]) -> None:
    """Save the fleet document, so that `status`, `down` and a plain `up` use the same fleet."""
    write_atomically(layout.fleet_file, json.dumps(document, indent=1))


def load_fleet_document(layout: Layout) -> dict[str, Any] | None:
    if not layout.fleet_file.exists():
        return None
    try:
        document: dict[str, Any] = json.loads(layout.fleet_file.read_text())
    except ValueError as error:
        raise SettingsUnreadable(path=layout.fleet_file, reason=f"it is damaged: {error}") from error
    return document
