"""From a fleet file, or a few flags, to a `FleetSpec` with nothing left to guess.

    clusters:
      - name: home            # a word; data lives under its name
        host: 127.0.0.1       # where the nodes listen; anything but loopback means TLS
        port: 19090           # first of a block of ports; 0 chooses free ones
        zones: [a, b, c]
        controllers: 1        # a number, or a list of {id, zone, port, heap}
        brokers: 3            # a number, or a list of {id, zone, ports, heap}
        combined: false       # true: every broker is a controller too (small and quick)
        heap: 384             # MB for each node
        jit: quick            # quick or full
        tls: false            # default: true wherever host is not loopback
        config: {}            # extra Kafka properties for every node

Unknown keys, two listeners on one port and impossible numbers are errors that name the place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from penstock.fleet.spec import (
    BROKER_ID_FIRST,
    CONTROLLER_ID_FIRST,
    HEAP_MB_DEFAULT,
    HEAP_MB_MIN,
    LISTENERS_OF,
    NODES_MAX,
    PORT_FIRST_DEFAULT,
    ZONES_DEFAULT,
    ClusterSpec,
    FleetSpec,
    Jit,
    Listener,
    NodeSpec,
    Role,
    is_loopback,
)
from penstock.model.errors.fleet import PortShared
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable, SettingUnknown
from penstock.model.ids import Zone

if TYPE_CHECKING:
    from pathlib import Path

PORTS_PER_KIND = 100  # a cluster's block: 100 ports for each of its four kinds of listener
NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,30}")
ZONE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

_FLEET_KEYS = ("clusters",)
_CLUSTER_KEYS = (
    "name", "host", "port", "zones", "controllers", "brokers", "combined", "heap", "jit", "tls", "config",
)  # fmt: skip
_NODE_KEYS = ("id", "zone", "host", "port", "ports", "advertised", "heap")
# What makes a node the node it is: said elsewhere in the file, or nobody's to change.
_NOT_IN_CONFIG = (
    "process.roles", "node.id", "broker.id", "broker.rack", "log.dir", "log.dirs", "metadata.log.dir",
    "listeners", "advertised.listeners", "listener.security.protocol.map", "controller.listener.names",
    "inter.broker.listener.name", "controller.quorum.bootstrap.servers", "controller.quorum.voters",
)  # fmt: skip

_E = TypeVar("_E", bound=StrEnum)


@dataclass(slots=True)
class _At:
    """A place in the file, so that every complaint can name it."""

    where: str
    values: Mapping[str, Any]
    known: Sequence[str] = field(default=())

    def __post_init__(self) -> None:
        for key in self.values:
            if key not in self.known:
                raise SettingUnknown(where=self.where, key=key, known=", ".join(self.known))

    def invalid(self, key: str, expected: str) -> SettingInvalid:
        return SettingInvalid(where=self.where, key=key, value=self.values.get(key), expected=expected)

    def integer(self, key: str, default: int, *, at_least: int, at_most: int) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
            raise self.invalid(key, f"expected a whole number from {at_least} to {at_most}")
        return value

    def word(self, key: str, default: str) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str) or not NAME_PATTERN.fullmatch(value):
            raise self.invalid(key, "expected a short lower-case word")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value or any(c.isspace() for c in value):
            raise self.invalid(key, "expected a text without spaces")
        return value

    def host(self, default: str) -> str:
        """Others are told this address, so one that means all of a machine's will not do."""
        value = self.text("host", default)
        if value in ("0.0.0.0", "::", "[::]"):  # noqa: S104 - refused, not bound
            raise self.invalid("host", "expected an address at which the nodes are reached")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.invalid(key, "expected true or false")
        return value

    def choice(self, key: str, default: _E) -> _E:
        value = self.values.get(key, default)
        kind = type(default)
        if value not in list(kind):
            raise self.invalid(key, f"expected one of {', '.join(kind)}")
        return kind(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.values.get(key)
        value = {} if value is None else value
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise self.invalid(key, "expected a mapping with names as keys")
        return value


def read_document(path: Path) -> dict[str, Any]:
    """The YAML mapping of a fleet file, not looked into yet."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsUnreadable(path=path, reason=str(error).replace("\n", " ")) from error
    if not isinstance(document, Mapping):
        raise SettingsUnreadable(path=path, reason="it is not a mapping")
    return dict(document)


def parse_fleet(document: Mapping[str, Any], *, where: str = "fleet") -> FleetSpec:
    at = _At(where, document, _FLEET_KEYS)
    listed = document.get("clusters")
    if not isinstance(listed, list) or not listed or not all(isinstance(c, Mapping) for c in listed):
        raise at.invalid("clusters", "expected a list with at least one cluster")
    clusters: list[ClusterSpec] = []
    for index, values in enumerate(listed):
        clusters.append(_cluster(_At(f"{where}: clusters[{index}]", values, _CLUSTER_KEYS), index))
    _check_names(where, clusters)
    _check_ports(where, clusters)
    return FleetSpec(tuple(clusters))


def _cluster(at: _At, index: int) -> ClusterSpec:
    host = at.host("127.0.0.1")
    block = PORT_FIRST_DEFAULT + index * 4 * PORTS_PER_KIND
    first = at.integer("port", block, at_least=0, at_most=65535 - 4 * PORTS_PER_KIND)
    zones = at.values.get("zones", list(ZONES_DEFAULT))
    if not isinstance(zones, list) or not zones or not all(map(_is_zone, zones)):
        raise at.invalid("zones", "expected a list of zone names")
    if len(set(zones)) < len(zones):
        raise at.invalid("zones", "expected each zone once")
    combined = at.flag("combined", default=False)
    defaults = _NodeDefaults(
        host=host,
        port_first=first,
        zones=tuple(Zone(zone) for zone in zones),
        heap_mb=at.integer("heap", HEAP_MB_DEFAULT, at_least=HEAP_MB_MIN, at_most=65536),
    )
    broker_role = Role.COMBINED if combined else Role.BROKER
    nodes = [] if combined else _nodes(at, "controllers", Role.CONTROLLER, 1, defaults)
    nodes += _nodes(at, "brokers", broker_role, len(defaults.zones), defaults)
    if combined and "controllers" in at.values:
        raise at.invalid("controllers", "expected nothing: with `combined: true` brokers are the controllers")
    ids = [node.id for node in nodes]
    if len(set(ids)) < len(ids):
        raise SettingInvalid(where=at.where, key="id", value=sorted(ids), expected="expected each id once")
    # Hosts off this machine are reached over a network: there TLS is not a matter of taste.
    off_machine = any(not is_loopback(node.host) for node in nodes)
    tls = at.flag("tls", default=off_machine)
    if off_machine and not tls:
        raise at.invalid("tls", "expected true: only loopback listeners may go without TLS")
    return ClusterSpec(
        name=at.word("name", "home" if index == 0 else f"cluster-{index + 1}"),
        nodes=tuple(nodes),
        tls=tls,
        jit=at.choice("jit", Jit.QUICK),
        config=_config(at),
    )


def _is_zone(value: object) -> bool:
    return isinstance(value, str) and ZONE_PATTERN.fullmatch(value) is not None


def _config(at: _At) -> dict[str, str]:
    config = at.mapping("config")
    inner = _At(f"{at.where}.config", config, tuple(config))
    for key, value in config.items():
        if key in _NOT_IN_CONFIG:
            raise inner.invalid(key, "expected it elsewhere: it says which node this is and where it listens")
        if not isinstance(value, str | int | float):
            raise inner.invalid(key, "expected a text, a number, true or false")
    return {key: _property(value) for key, value in config.items()}


@dataclass(frozen=True, slots=True)
class _NodeDefaults:
    host: str
    port_first: int
    zones: tuple[Zone, ...]
    heap_mb: int


def _nodes(at: _At, key: str, role: Role, count_default: int, defaults: _NodeDefaults) -> list[NodeSpec]:
    listed = at.values.get(key, count_default)
    if isinstance(listed, int) and not isinstance(listed, bool):
        at.integer(key, count_default, at_least=1, at_most=NODES_MAX)
        listed = [{} for _ in range(listed)]
    if not isinstance(listed, list) or not listed or not all(isinstance(n, Mapping) for n in listed):
        raise at.invalid(key, "expected a number or a list of nodes")
    return [
        _node(_At(f"{at.where}.{key}[{index}]", values, _NODE_KEYS), role, index, defaults)
        for index, values in enumerate(listed)
    ]


def _node(at: _At, role: Role, index: int, defaults: _NodeDefaults) -> NodeSpec:
    id_first = CONTROLLER_ID_FIRST if role is Role.CONTROLLER else BROKER_ID_FIRST
    node_id = at.integer("id", id_first + index, at_least=0, at_most=2**31 - 1)
    zone = at.values.get("zone", defaults.zones[index % len(defaults.zones)])
    if zone not in defaults.zones:
        raise at.invalid("zone", f"expected one of the cluster's zones {', '.join(defaults.zones)}")
    ports = {
        listener: _default_port(defaults.port_first, listener, role, index) for listener in LISTENERS_OF[role]
    }
    given = dict(at.mapping("ports"))
    if "port" in at.values:  # the one a person means when there is one: where clients connect
        main = Listener.CONTROLLER if role is Role.CONTROLLER else Listener.INTERNAL
        given.setdefault(main.value, at.values["port"])
    ports |= _ports(at, "ports", given, role)
    return NodeSpec(
        id=node_id,
        role=role,
        zone=Zone(zone),
        host=at.host(defaults.host),
        ports=ports,
        advertised=_ports(at, "advertised", at.mapping("advertised"), role, at_least=1),
        heap_mb=at.integer("heap", defaults.heap_mb, at_least=HEAP_MB_MIN, at_most=65536),
    )


def _ports(
    at: _At, key: str, given: Mapping[str, Any], role: Role, *, at_least: int = 0
) -> dict[Listener, int]:
    names = [listener.value for listener in LISTENERS_OF[role]]
    inner = _At(f"{at.where}.{key}", given, names)
    return {Listener(name): inner.integer(name, 0, at_least=at_least, at_most=65535) for name in given}


def _default_port(first: int, listener: Listener, role: Role, index: int) -> int:
    if first == 0:
        return 0
    offset = {Listener.CONTROLLER: 0, Listener.INTERNAL: 1, Listener.GATEWAY: 2, Listener.METRICS: 3}[
        listener
    ]
    # Controllers' metrics ports come from the top of the metrics block, brokers' from its bottom.
    if listener is Listener.METRICS and role is Role.CONTROLLER:
        index = PORTS_PER_KIND - 1 - index
    return first + offset * PORTS_PER_KIND + index


def _check_names(where: str, clusters: Sequence[ClusterSpec]) -> None:
    names = [cluster.name for cluster in clusters]
    if len(set(names)) < len(names):
        raise SettingInvalid(where=where, key="name", value=names, expected="expected each name once")


def _check_ports(where: str, clusters: Sequence[ClusterSpec]) -> None:
    owners: dict[tuple[str, int], str] = {}
    for cluster in clusters:
        for node in cluster.nodes:
            for listener, port in node.ports.items():
                owner = f"{cluster.name}/{node.name} ({listener})"
                # The metrics agents all listen on loopback, and so does everything called localhost.
                local = listener is Listener.METRICS or node.host == "localhost"
                taken = owners.setdefault(("127.0.0.1" if local else node.host, port), owner)
                if port and taken != owner:
                    raise PortShared(where=where, port=port, first=taken, second=owner)


def _property(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
