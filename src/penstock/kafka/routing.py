"""Which node a request goes to, and the known nodes of a cluster. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_PORT: Final = 9092


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """`host:port`, `[::1]:port` or a bare host."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or not port.isdigit():
            host, port = text.strip(), str(DEFAULT_PORT)
        return cls(host.strip("[]"), int(port))


def addresses(bootstrap: str | Sequence[str]) -> tuple[Address, ...]:
    servers = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    return tuple(Address.parse(server) for server in servers if server.strip())


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    address: Address
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes in the last Metadata response (DescribeCluster, for controllers)."""

    id: str | None
    controller_id: int
    nodes: Mapping[int, Node]

    @property
    def real_nodes(self) -> list[int]:
        """Without shadow brokers of links, which would pass a request on to one of the others."""
        return sorted(node for node in self.nodes if not is_shadow(node))


class CoordinatorKind(IntEnum):
    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


@dataclass(frozen=True, slots=True)
class AnyNode:
    """Any reachable node."""

    def __str__(self) -> str:
        return "any node"


@dataclass(frozen=True, slots=True)
class Controller:
    """The controller named by Metadata: a broker, which forwards requests to the quorum."""

    def __str__(self) -> str:
        return "the controller"


@dataclass(frozen=True, slots=True)
class NodeWithId:
    id: int

    def __str__(self) -> str:
        return f"node {self.id}"


@dataclass(frozen=True, slots=True)
class LeaderOf:
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"the leader of {self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class CoordinatorOf:
    kind: CoordinatorKind
    key: str

    def __str__(self) -> str:
        return f"the coordinator of {self.kind.name.lower()} {self.key!r}"


Route = AnyNode | Controller | NodeWithId | LeaderOf | CoordinatorOf

ANY_NODE: Final = AnyNode()
CONTROLLER: Final = Controller()


def group_coordinator(group: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorKind.GROUP, group)


def transaction_coordinator(transactional_id: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorKind.TRANSACTION, transactional_id)


def cluster_of(response: Mapping[str, Any], node_id: str) -> Cluster:
    """From a Metadata or DescribeCluster response, whose brokers have their id in `node_id`."""
    nodes = {
        b[node_id]: Node(b[node_id], Address(b["Host"], b["Port"]), b.get("Rack"))
        for b in response["Brokers"]
    }
    return Cluster(response.get("ClusterId"), response["ControllerId"], nodes)
