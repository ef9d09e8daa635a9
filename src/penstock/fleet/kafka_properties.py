"""Generate a node's Kafka properties from its spec.

There are three listeners. Brokers and gateways log in with SCRAM, whose users are stored in the metadata
log. The controller listener uses PLAIN with static users instead, because a broker must reach the
controllers before it can read the metadata log. Anonymous access is denied, and without an ACL a user
may do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.fleet.credentials.passwords import NODE_USER, PLATFORM_USER, SCRAM_MECHANISM
from penstock.fleet.spec import Listener, NodeSpec, Role
from penstock.fleet.tier_properties import tier_properties

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.fleet.layout import NodeLayout
    from penstock.fleet.spec import ClusterSpec
    from penstock.fleet.tier_properties import TierPlace

# Thousands of clients reconnect at once after a restart; Kafka's default is 50.
LISTEN_BACKLOG = 4096

REQUEST_BYTES_MAX = 100 * 1024 * 1024  # Kafka's default
REQUESTS_IN_HEAP = 40  # of the largest size; 4 MiB at the smallest heap, for records of 1 MiB by default

_PROCESS_ROLES = {Role.CONTROLLER: "controller", Role.BROKER: "broker", Role.COMBINED: "broker,controller"}
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Passwords of the platform's two users."""

    node: str
    platform: str

    def __repr__(self) -> str:
        return "Credentials(…)"


def node_properties(
    cluster: ClusterSpec,
    node: NodeSpec,
    layout: NodeLayout,
    credentials: Credentials,
    ca: Path,
    tier: TierPlace,
) -> dict[str, str]:
    """All of the node's server.properties; the cluster's `config` overrides the rest."""
    properties = (
        _identity(cluster, node, layout)
        | _listeners(cluster, node, credentials)
        | _controller_login(credentials)
        | _replication(cluster)
        | _small_fleet()
        | {"socket.request.max.bytes": str(request_bytes_max(node.heap_mb))}
        | tier_properties(cluster, node, tier, _scram_login(credentials), ca)
    )
    if cluster.tls:
        properties |= _tls(layout, ca)
    return properties | dict(cluster.config)


def request_bytes_max(heap_mb: int) -> int:
    """The largest request of a node: it allocates the whole of it when it has read its size.

    Kafka's default of 100 MiB would let four clients fill the heap of a small node.
    """
    return min(REQUEST_BYTES_MAX, heap_mb * 1024 * 1024 // REQUESTS_IN_HEAP)


def broker_request_bytes_max(cluster: ClusterSpec) -> int:
    """The largest request that every broker accepts."""
    configured = dict(cluster.config).get("socket.request.max.bytes")
    if configured is not None:
        return int(configured)
    return min(request_bytes_max(broker.heap_mb) for broker in cluster.brokers)


def handler_threads(cluster: ClusterSpec) -> int:
    """The number of request handler threads per broker."""
    return int((_small_fleet() | dict(cluster.config))["num.io.threads"])


def as_text(properties: Mapping[str, str]) -> str:
    """Java's properties syntax in ASCII, one property per line, sorted by name."""
    lines = (
        f"{_escaped(key, ' :=#!')}={_escaped(value, ' ' if value.startswith(' ') else '')}"
        for key, value in sorted(properties.items())
    )
    return "\n".join(lines) + "\n"


def _escaped(text: str, special: str) -> str:
    """Escape: Java reads the file as Latin-1, with \\uXXXX (UTF-16) for other characters."""
    plain = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    for character in special:
        plain = plain.replace(character, f"\\{character}")
    if plain.isascii():
        return plain
    units = plain.encode("utf-16-be")
    codes = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(chr(code) if code < 0x80 else f"\\u{code:04x}" for code in codes)


def _identity(cluster: ClusterSpec, node: NodeSpec, layout: NodeLayout) -> dict[str, str]:
    return {
        "process.roles": _PROCESS_ROLES[node.role],
        "node.id": str(node.id),
        "controller.quorum.bootstrap.servers": cluster.bootstrap(Listener.CONTROLLER),
        "log.dirs": str(layout.data),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{NODE_USER};User:{PLATFORM_USER}",
        "allow.everyone.if.no.acl.found": "false",
        "socket.listen.backlog.size": str(LISTEN_BACKLOG),
        "auto.create.topics.enable": "false",
        "auto.leader.rebalance.enable": "false",
        "delete.topic.enable": "true",
        "unclean.leader.election.enable": "false",
        "group.share.enable": "true",
    } | ({"broker.rack": node.zone, "replica.selector.class": _RACK_AWARE} if node.is_broker else {})


_RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _listeners(cluster: ClusterSpec, node: NodeSpec, credentials: Credentials) -> dict[str, str]:
    protocol = "SASL_SSL" if cluster.tls else "SASL_PLAINTEXT"
    kafka_listeners = [listener for listener in node.ports if listener is not Listener.METRICS]
    bound = [f"{listener.upper()}://{_bind(node, listener)}" for listener in kafka_listeners]
    reachable = [listener for listener in kafka_listeners if listener is not Listener.CONTROLLER]
    advertised = [f"{listener.upper()}://{node.address(listener)}" for listener in reachable]
    every = (Listener.INTERNAL, Listener.GATEWAY, Listener.CONTROLLER)
    properties = {
        "listeners": ",".join(bound),
        "listener.security.protocol.map": ",".join(f"{name.upper()}:{protocol}" for name in every),
        "controller.listener.names": Listener.CONTROLLER.upper(),
        "inter.broker.listener.name": Listener.INTERNAL.upper(),
        "sasl.mechanism.inter.broker.protocol": SCRAM_MECHANISM,
        "sasl.enabled.mechanisms": SCRAM_MECHANISM,
    }
    if advertised:
        properties["advertised.listeners"] = ",".join(advertised)
    for listener in (Listener.INTERNAL, Listener.GATEWAY):
        prefix = f"listener.name.{listener}"
        properties[f"{prefix}.sasl.enabled.mechanisms"] = SCRAM_MECHANISM
        properties[f"{prefix}.{SCRAM_MECHANISM.lower()}.sasl.jaas.config"] = _scram_login(credentials)
    return properties


def _scram_login(credentials: Credentials) -> str:
    return f'{_SCRAM_MODULE} required username="{NODE_USER}" password="{credentials.node}";'


def _controller_login(credentials: Credentials) -> dict[str, str]:
    jaas = (
        f'{_PLAIN_MODULE} required username="{NODE_USER}" password="{credentials.node}"'
        f' user_{NODE_USER}="{credentials.node}" user_{PLATFORM_USER}="{credentials.platform}";'
    )
    return {
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": jaas,
    }


def _replication(cluster: ClusterSpec) -> dict[str, str]:
    """With two or more brokers, internal topics survive the loss of one."""
    copies = min(3, len(cluster.brokers))
    in_sync = max(1, copies - 1)
    return {
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(in_sync),
    }


def _small_fleet() -> dict[str, str]:
    """Sizes for processes that share one machine; `config` in the fleet file overrides them."""
    return {
        "num.partitions": "3",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "2",
        "share.coordinator.state.topic.num.partitions": "2",
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "6000",
    }


def _tls(layout: NodeLayout, ca: Path) -> dict[str, str]:
    store = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(layout.keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
    }
    every = (Listener.INTERNAL, Listener.GATEWAY, Listener.CONTROLLER)
    per_listener = {f"listener.name.{name}.{key}": value for name in every for key, value in store.items()}
    return store | per_listener


def _bind(node: NodeSpec, listener: Listener) -> str:
    host = f"[{node.host}]" if ":" in node.host else node.host
    return f"{host}:{node.ports[listener]}"
