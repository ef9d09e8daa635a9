"""Parse a fleet file, or the flags of `penstock up`, into a `FleetSpec`.

    clusters:
      - name: home            # a word; names the data directory
        host: 127.0.0.1       # where the nodes listen; anything but loopback means TLS
        port: 19090           # first of a block of ports; 0 chooses free ones
        zones: [a, b, c]
        controllers: 1        # a number, or a list of {id, zone, port, heap}
        brokers: 3            # a number, or a list of {id, zone, ports, heap}
        combined: false       # true: every broker is also a controller
        heap: 384             # MB for each node
        jit: quick            # quick or full
        kafka: 4.3.1          # version; another than the pinned one is fetched first
        tls: false            # default: true if any host is not loopback
        tier: {store: file}   # file, s3 or none; `docs/tier.md`
        backup: {store: none} # file, s3 or none; `docs/backup.md`
        config: {}            # extra Kafka properties for every node

Unknown keys, two listeners on one port and invalid values are errors that name their place in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.fleet.spec import (
    BROKER_ID_FIRST,
    CONTROLLER_ID_FIRST,
    HEAP_MB_DEFAULT,
    HEAP_MB_MIN,
    LISTENERS_OF,
    NODES_MAX,
    PORT_FIRST_DEFAULT,
    ZONES_DEFAULT,
    BackupSpec,
    ClusterSpec,
    FleetSpec,
    Jit,
    Listener,
    NodeSpec,
    Role,
    TierSpec,
    TierStore,
    is_loopback,
)
from penstock.model.errors.fleet import PortShared
from penstock.model.errors.settings import SettingInvalid
from penstock.model.ids import Zone
from penstock.model.settings_reader import PORT_MAX, Section
from penstock.model.settings_table import Setting, SettingsFile, below

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PORTS_PER_KIND = 100  # a cluster's block: 100 ports for each of its four kinds of listener
VERSION_PATTERN = re.compile(r"[0-9]{1,2}\.[0-9]{1,3}\.[0-9]{1,3}")
NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,30}")
PREFIX_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
ZONE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

_NODE = (
    Setting("id", "whole number", "Kafka's node id; unset: counted."),
    Setting("zone", "text", "Its zone; unset: the cluster's in turn."),
    Setting("host", "address", "Where it listens; unset: the cluster's."),
    Setting("port", "whole number", "Port of its listener for clients, or for nodes if it is a controller."),
    Setting("ports", "mapping", "Port of each listener."),
    Setting("advertised", "mapping", "Advertised port of each listener, if another."),
    Setting("heap", "whole number", "Heap; unset: the cluster's.", unit="MB"),
)
_TIER = (
    Setting("store", " | ".join(TierStore), "Where old segments go; none: no tiering.", str(TierStore.FILE)),
    Setting("prefix", "text", "What all keys in the store start with.", TierSpec().prefix),
    Setting(
        "directory",
        "path",
        "Of the file store, on a disk that all brokers share; unset: `tier` in PENSTOCK_HOME.",
    ),
    Setting("bucket", "text", "S3 bucket."),
    Setting("region", "text", "Its region."),
    Setting("endpoint", "URL", "An S3 server other than Amazon's."),
    Setting("credentials_file", "path", "S3 access key, in Amazon's format; unset: the SDK's usual places."),
)
_BACKUP = (
    Setting(
        "store", " | ".join(TierStore), "Where topics are backed up; none: no backup.", str(TierStore.NONE)
    ),
    Setting("prefix", "text", "What all keys in the store start with.", ""),
    Setting("directory", "path", "Of the file store; unset: `backup` in PENSTOCK_HOME."),
    Setting("bucket", "text", "S3 bucket; not the one of the tier."),
    Setting("region", "text", "Its region."),
    Setting("endpoint", "URL", "An S3 server other than Amazon's."),
    Setting("access_key", "text", "Access key; unset: as the environment has it."),
    Setting("password_file", "path", "File with the secret key."),
    Setting(
        "keep_days", "number", "How long what is deleted can be restored.", BackupSpec().keep_days, "days"
    ),
)
_CLUSTER = (
    Setting("name", "text", "Name, also of the data directory.", "home"),
    Setting("host", "address", "Where the nodes listen; anything but loopback means TLS.", "127.0.0.1"),
    Setting("port", "whole number", "First of a block of ports; 0 chooses free ones.", PORT_FIRST_DEFAULT),
    Setting("zones", "list", "Zones.", ", ".join(ZONES_DEFAULT)),
    Setting("controllers", "whole number or list", "Number of controllers, or each of them.", 1),
    *below("controllers[]", _NODE),
    Setting("brokers", "whole number or list", "Number of brokers, or each of them; unset: one a zone."),
    *below("brokers[]", _NODE),
    Setting("combined", "flag", "Every broker is also a controller.", False),
    Setting("heap", "whole number", "Heap of each node.", HEAP_MB_DEFAULT, "MB"),
    Setting("jit", " | ".join(Jit), "quick: fast start; full: fast at run time.", str(Jit.QUICK)),
    Setting("kafka", "text", "Kafka's version; unset: the pinned one."),
    Setting("tls", "flag", "TLS on every listener; unset: if any host is not loopback."),
    *below("tier", _TIER),
    *below("backup", _BACKUP),
    Setting("config", "mapping", "Further Kafka properties of every node."),
)
SETTINGS = SettingsFile("fleet", "penstock up --fleet", below("clusters[]", _CLUSTER))
# The identity and listeners of a node: derived from other keys, or fixed.
_NOT_IN_CONFIG = (
    "process.roles", "node.id", "broker.id", "broker.rack", "log.dir", "log.dirs", "metadata.log.dir",
    "listeners", "advertised.listeners", "listener.security.protocol.map", "controller.listener.names",
    "inter.broker.listener.name", "controller.quorum.bootstrap.servers", "controller.quorum.voters",
)  # fmt: skip


def parse_fleet(document: Mapping[str, Any], *, where: str = "fleet") -> FleetSpec:
    root = Section(where, document, SETTINGS.keys())
    listed = document.get("clusters")
    if not isinstance(listed, list) or not listed or not all(isinstance(c, Mapping) for c in listed):
        raise root.invalid("clusters", "expected a list with at least one cluster")
    sections = root.each("clusters", listed, SETTINGS.keys("clusters[]"))
    clusters = [_cluster(section, index) for index, section in enumerate(sections)]
    _check_names(where, clusters)
    _check_ports(where, clusters)
    return FleetSpec(tuple(clusters))


def check_file(path: Path, environment: Mapping[str, str]) -> None:
    """Raises if a fleet file is invalid. No variable overrides it."""
    parse_fleet(SETTINGS.root(path, environment).values, where=str(path))


def _cluster(section: Section, index: int) -> ClusterSpec:
    host = _host(section, "127.0.0.1")
    block = PORT_FIRST_DEFAULT + index * 4 * PORTS_PER_KIND
    first = section.integer("port", block, at_least=0, at_most=65535 - 4 * PORTS_PER_KIND)
    zones = section.values.get("zones", list(ZONES_DEFAULT))
    if not isinstance(zones, list) or not zones or not all(map(_is_zone, zones)):
        raise section.invalid("zones", "expected a list of zone names")
    if len(set(zones)) < len(zones):
        raise section.invalid("zones", "expected each zone once")
    combined = section.flag("combined", default=False)
    defaults = _NodeDefaults(
        host=host,
        port_first=first,
        zones=tuple(Zone(zone) for zone in zones),
        heap_mb=section.integer("heap", HEAP_MB_DEFAULT, at_least=HEAP_MB_MIN, at_most=65536),
    )
    broker_role = Role.COMBINED if combined else Role.BROKER
    nodes = [] if combined else _nodes(section, "controllers", Role.CONTROLLER, 1, defaults)
    nodes += _nodes(section, "brokers", broker_role, len(defaults.zones), defaults)
    if combined and "controllers" in section.values:
        expected = "expected nothing: with `combined: true` brokers are the controllers"
        raise section.invalid("controllers", expected)
    ids = [node.id for node in nodes]
    if len(set(ids)) < len(ids):
        raise section.invalid("id", "expected each id once", sorted(ids))
    # Other hosts are reached over a network, so TLS is mandatory.
    off_machine = any(not is_loopback(node.host) for node in nodes)
    tls = section.flag("tls", default=off_machine)
    if off_machine and not tls:
        raise section.invalid("tls", "expected true: only loopback listeners may go without TLS")
    return ClusterSpec(
        name=_name(section, "home" if index == 0 else f"cluster-{index + 1}"),
        nodes=tuple(nodes),
        tls=tls,
        jit=section.choice("jit", Jit.QUICK),
        kafka=_version(section),
        config=_config(section),
        tier=_tier(section),
        backup=_backup(section),
    )


def _backup(section: Section) -> BackupSpec:
    backup = section.section("backup", SETTINGS.keys("clusters[].backup"))
    store = backup.choice("store", TierStore.NONE)
    _check_store(backup, store)
    prefix = backup.optional_text("prefix") or ""
    if prefix and not PREFIX_PATTERN.fullmatch(prefix):
        raise backup.invalid("prefix", "expected words separated by /")
    keys = ("directory", "bucket", "region", "endpoint", "access_key", "password_file")
    return BackupSpec(
        store=store,
        prefix=prefix,
        **{key: backup.optional_text(key) or "" for key in keys},
        keep_days=backup.number("keep_days", BackupSpec().keep_days, at_least=0, at_most=3650, unit="days"),
    )


def _check_store(section: Section, store: TierStore) -> None:
    """Raises if a key is missing, or belongs to another kind of store."""
    for key in ("bucket", "region") if store is TierStore.S3 else ():
        section.text(key)
    others = {
        TierStore.S3: ("directory",),
        TierStore.FILE: ("bucket", "region", "endpoint", "credentials_file", "access_key", "password_file"),
    }
    for key in others.get(store, ()):
        if key in section.values:
            raise section.invalid(key, f"expected nothing: the store is {store}")


def _tier(section: Section) -> TierSpec:
    tier = section.section("tier", SETTINGS.keys("clusters[].tier"))
    store = tier.choice("store", TierStore.FILE)
    _check_store(tier, store)
    prefix = tier.text("prefix", TierSpec().prefix)
    if not PREFIX_PATTERN.fullmatch(prefix):
        raise tier.invalid("prefix", "expected words separated by /")
    return TierSpec(
        store=store,
        prefix=prefix,
        **{
            key: tier.optional_text(key) or ""
            for key in ("directory", "bucket", "region", "endpoint", "credentials_file")
        },
    )


def _is_zone(value: object) -> bool:
    return isinstance(value, str) and ZONE_PATTERN.fullmatch(value) is not None


def _version(section: Section) -> str:
    if "kafka" not in section.values:
        return ""
    value = section.text("kafka")
    if not VERSION_PATTERN.fullmatch(value):
        raise section.invalid("kafka", "expected a version such as 4.3.1")
    return value


def _config(section: Section) -> dict[str, str]:
    config = section.section("config", None)
    for key, value in config.values.items():
        if key in _NOT_IN_CONFIG:
            expected = "expected it elsewhere: it is derived from the other keys of the fleet file"
            raise config.invalid(key, expected)
        if not isinstance(value, str | int | float):
            raise config.invalid(key, "expected a text, a number, true or false")
    return {key: _property(value) for key, value in config.values.items()}


def _host(section: Section, default: str) -> str:
    """Clients receive this address, so a wildcard address does not serve."""
    value = section.text("host", default)
    if any(character.isspace() for character in value):
        raise section.invalid("host", "expected a text without spaces")
    if value in ("0.0.0.0", "::", "[::]"):  # noqa: S104 - refused, not bound
        raise section.invalid("host", "expected an address at which the nodes are reached")
    return value


def _name(section: Section, default: str) -> str:
    value = section.text("name", default)
    if not NAME_PATTERN.fullmatch(value):
        raise section.invalid("name", "expected a short lower-case word")
    return value


@dataclass(frozen=True, slots=True)
class _NodeDefaults:
    host: str
    port_first: int
    zones: tuple[Zone, ...]
    heap_mb: int


def _nodes(
    section: Section, key: str, role: Role, count_default: int, defaults: _NodeDefaults
) -> list[NodeSpec]:
    listed = section.values.get(key, count_default)
    if isinstance(listed, int) and not isinstance(listed, bool):
        section.integer(key, count_default, at_least=1, at_most=NODES_MAX)
        listed = [{} for _ in range(listed)]
    if not isinstance(listed, list) or not listed or not all(isinstance(n, Mapping) for n in listed):
        raise section.invalid(key, "expected a number or a list of nodes")
    nodes = section.each(key, listed, SETTINGS.keys("clusters[].brokers[]"))
    return [_node(node, role, index, defaults) for index, node in enumerate(nodes)]


def _node(section: Section, role: Role, index: int, defaults: _NodeDefaults) -> NodeSpec:
    id_first = CONTROLLER_ID_FIRST if role is Role.CONTROLLER else BROKER_ID_FIRST
    node_id = section.integer("id", id_first + index, at_least=0, at_most=2**31 - 1)
    zone = section.values.get("zone", defaults.zones[index % len(defaults.zones)])
    if zone not in defaults.zones:
        raise section.invalid("zone", f"expected one of the cluster's zones {', '.join(defaults.zones)}")
    first, listeners = defaults.port_first, LISTENERS_OF[role]
    ports = {listener: _default_port(first, listener, role, index) for listener in listeners}
    if "port" in section.values:  # a single port means the listener for clients
        main = Listener.CONTROLLER if role is Role.CONTROLLER else Listener.INTERNAL
        ports[main] = section.integer("port", at_least=0, at_most=PORT_MAX)
    ports |= _ports(section, "ports", role)
    return NodeSpec(
        id=node_id,
        role=role,
        zone=Zone(zone),
        host=_host(section, defaults.host),
        ports=ports,
        advertised=_ports(section, "advertised", role, at_least=1),
        heap_mb=section.integer("heap", defaults.heap_mb, at_least=HEAP_MB_MIN, at_most=65536),
    )


def _ports(section: Section, key: str, role: Role, *, at_least: int = 0) -> dict[Listener, int]:
    ports = section.section(key, [listener.value for listener in LISTENERS_OF[role]])
    return {Listener(name): ports.integer(name, at_least=at_least, at_most=PORT_MAX) for name in ports.values}


def _default_port(first: int, listener: Listener, role: Role, index: int) -> int:
    if first == 0:
        return 0
    blocks = (Listener.CONTROLLER, Listener.INTERNAL, Listener.GATEWAY, Listener.METRICS)
    # Controllers take metrics ports from the end of the metrics block, brokers from its start.
    if listener is Listener.METRICS and role is Role.CONTROLLER:
        index = PORTS_PER_KIND - 1 - index
    return first + blocks.index(listener) * PORTS_PER_KIND + index


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
                # All metrics listeners are on loopback, and so is `localhost`.
                local = listener is Listener.METRICS or node.host == "localhost"
                taken = owners.setdefault(("127.0.0.1" if local else node.host, port), owner)
                if port and taken != owner:
                    raise PortShared(where=where, port=port, first=taken, second=owner)


def _property(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
