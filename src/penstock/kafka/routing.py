"""To whom a call goes, and what we know of the cluster. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Self

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
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    return tuple(Address.parse(part) for part in parts if part.strip())


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    address: Address
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the last Metadata (or, of controllers, DescribeCluster) answer said."""

    id: str | None
    controller_id: int
    nodes: Mapping[int, Node]


class CoordinatorKind(IntEnum):
    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


@dataclass(frozen=True, slots=True)
class Anyone:
    """Whichever node answers."""

    def __str__(self) -> str:
        return "any node"


@dataclass(frozen=True, slots=True)
class Controller:
    """The node that Metadata calls the controller; brokers pass on what is the quorum's to do."""

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


Route = Anyone | Controller | NodeWithId | LeaderOf | CoordinatorOf

ANYONE: Final = Anyone()
CONTROLLER: Final = Controller()


def group_coordinator(group: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorKind.GROUP, group)


def transaction_coordinator(transactional_id: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorKind.TRANSACTION, transactional_id)


def cluster_of_metadata(answer: Mapping[str, Any]) -> Cluster:
    nodes = {b["NodeId"]: _node(b["NodeId"], b) for b in answer["Brokers"]}
    return Cluster(answer.get("ClusterId"), answer["ControllerId"], nodes)


def cluster_of_description(answer: Mapping[str, Any]) -> Cluster:
    nodes = {b["BrokerId"]: _node(b["BrokerId"], b) for b in answer["Brokers"]}
    return Cluster(answer["ClusterId"], answer["ControllerId"], nodes)


def _node(node_id: int, broker: Mapping[str, Any]) -> Node:
    return Node(node_id, Address(broker["Host"], broker["Port"]), broker.get("Rack"))
