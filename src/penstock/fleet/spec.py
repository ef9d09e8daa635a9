"""A fleet as values: clusters, nodes, listeners and ports.

`spec_file` expands a short fleet file (`brokers: 3`) into these values, with every port, zone and heap
explicit. Port 0 means that a free port is chosen at the first start and kept.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from penstock.model.ids import Zone
from penstock.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BROKER_ID_FIRST = 1
CONTROLLER_ID_FIRST = 1001
ZONES_DEFAULT = (Zone("a"), Zone("b"), Zone("c"))
PORT_FIRST_DEFAULT = 19090
HEAP_MB_DEFAULT = 384
HEAP_MB_MIN = 160
NODES_MAX = 200  # per cluster on one machine; more is a typo


class Role(StrEnum):
    CONTROLLER = "controller"
    BROKER = "broker"
    COMBINED = "combined"


class Listener(StrEnum):
    """The listeners of a node. `metrics` is plain HTTP, the others speak Kafka."""

    INTERNAL = "internal"  # between brokers, and for the platform's calls
    GATEWAY = "gateway"  # for gateways, logged in as tenants' users
    CONTROLLER = "controller"  # the KRaft quorum
    METRICS = "metrics"


class Jit(StrEnum):
    """`quick` starts fast and uses less memory; `full` reaches the JVM's peak speed."""

    QUICK = "quick"
    FULL = "full"


class TierStore(StrEnum):
    """Where tiered segments are stored; `none` turns tiering off."""

    FILE = "file"
    S3 = "s3"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TierSpec:
    store: TierStore = TierStore.FILE
    prefix: str = "tier"  # of all keys
    directory: str = ""  # of the file store; empty: below PENSTOCK_HOME
    bucket: str = ""
    region: str = ""
    endpoint: str = ""  # empty: Amazon's
    credentials_file: str = ""  # empty: the SDK's usual places


@dataclass(frozen=True, slots=True)
class BackupSpec:
    """Where the cluster's topics are backed up; `none` means no backup."""

    store: TierStore = TierStore.NONE
    prefix: str = ""  # of all keys
    directory: str = ""  # of the file store; empty: below PENSTOCK_HOME
    bucket: str = ""
    region: str = ""
    endpoint: str = ""  # empty: Amazon's
    access_key: str = ""  # empty: as the environment has it
    password_file: str = ""  # with the secret key
    keep_days: float = 7.0  # how long what is deleted can be restored


LISTENERS_OF: Mapping[Role, tuple[Listener, ...]] = MappingProxyType(
    {
        Role.CONTROLLER: (Listener.CONTROLLER, Listener.METRICS),
        Role.BROKER: (Listener.INTERNAL, Listener.GATEWAY, Listener.METRICS),
        Role.COMBINED: (Listener.INTERNAL, Listener.GATEWAY, Listener.CONTROLLER, Listener.METRICS),
    }
)


def node_name(role: Role, number: int) -> str:
    """`b1` for a broker (or a combined node), `c1001` for a controller."""
    return f"{'c' if role is Role.CONTROLLER else 'b'}{number}"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    id: int
    role: Role
    zone: Zone
    host: str
    ports: Mapping[Listener, int]
    advertised: Mapping[Listener, int] = field(default_factory=dict)  # where it differs from `ports`
    heap_mb: int = HEAP_MB_DEFAULT

    @property
    def name(self) -> str:
        return node_name(self.role, self.id)

    @property
    def is_broker(self) -> bool:
        return self.role is not Role.CONTROLLER

    @property
    def is_controller(self) -> bool:
        return self.role is not Role.BROKER

    def address(self, listener: Listener) -> str:
        """The address that others use."""
        port = self.advertised.get(listener, self.ports[listener])
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    @property
    def probe_listener(self) -> Listener:
        """The listener that the platform probes."""
        return Listener.CONTROLLER if self.role is Role.CONTROLLER else Listener.INTERNAL


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    name: str
    nodes: tuple[NodeSpec, ...]
    tls: bool
    jit: Jit = Jit.QUICK
    kafka: str = ""  # version of its nodes; empty: the pinned one
    config: Mapping[str, str] = field(default_factory=dict)  # extra Kafka properties, all nodes
    tier: TierSpec = field(default_factory=TierSpec)
    backup: BackupSpec = field(default_factory=BackupSpec)

    @property
    def brokers(self) -> tuple[NodeSpec, ...]:
        return tuple(node for node in self.nodes if node.is_broker)

    @property
    def controllers(self) -> tuple[NodeSpec, ...]:
        return tuple(node for node in self.nodes if node.is_controller)

    @property
    def zones(self) -> tuple[Zone, ...]:
        return tuple(sorted({node.zone for node in self.brokers}))

    def bootstrap(self, listener: Listener = Listener.INTERNAL) -> str:
        nodes = self.controllers if listener is Listener.CONTROLLER else self.brokers
        return ",".join(node.address(listener) for node in nodes)

    @property
    def shape(self) -> str:
        """For display: `1 controller + 3 brokers in zones a, b, c`."""
        zones = f"zone{'s' if len(self.zones) > 1 else ''} {', '.join(self.zones)}"
        if any(node.role is Role.COMBINED for node in self.nodes):
            return f"{counted(len(self.nodes), 'combined node')} in {zones}"
        controllers, brokers = len(self.controllers), len(self.brokers)
        return f"{counted(controllers, 'controller')} + {counted(brokers, 'broker')} in {zones}"


@dataclass(frozen=True, slots=True)
class FleetSpec:
    clusters: tuple[ClusterSpec, ...]

    def __iter__(self) -> Iterator[ClusterSpec]:
        return iter(self.clusters)

    @property
    def home(self) -> ClusterSpec:
        """The cluster that holds the registry: the first one."""
        return self.clusters[0]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
