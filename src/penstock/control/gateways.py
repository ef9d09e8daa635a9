"""Gateways of clusters that the platform provides: the file that they serve by, and their ports."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from penstock.fleet.cluster import AUTOMATIC_PORTS
from penstock.fleet.layout import make_directory, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.model.entities import BrokerPlace

GATEWAY_FILE: Final = "gateway.yaml"


def offered_bootstrap(path: Path) -> str:
    """What tenants are told, from the file that their gateway is started with."""
    if not path.exists():
        return ""
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    host = document["advertised_host"]
    return ",".join(f"{host}:{broker['port']}" for broker in document["brokers"])


@dataclass(frozen=True, slots=True)
class Before:
    """A gateway before every broker of a cluster, by port, that follows the cluster's state topic."""

    name: str
    cluster: str
    brokers: tuple[BrokerPlace, ...]
    platform_key: Path
    ca: Path | None = None  # that the brokers' certificates are from; none: plaintext towards them
    metrics: tuple[tuple[int, str, int], ...] = ()  # broker, host, port; of those that are known
    handler_threads: int = 0  # of each broker with metrics

    def write(self, path: Path, ports: Sequence[int]) -> Path:
        document: dict[str, Any] = {
            "gateway": f"gw-{self.name}",
            "cluster": str(self.cluster),
            "listen": "127.0.0.1",
            "advertised_host": "127.0.0.1",
            "platform_key": str(self.platform_key),
            "tenants_from": "state",
            "brokers": [self._broker(*each) for each in zip(self.brokers, ports, strict=True)],
        }
        if self.ca is not None:
            document["upstream_ca"] = str(self.ca)
        make_directory(path.parent)
        write_atomically(path, yaml.safe_dump(document, sort_keys=False))
        return path

    def _broker(self, broker: BrokerPlace, port: int) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "id": int(broker.id),
            "zone": str(broker.zone),
            "address": _joined(broker.host, broker.port),
            "port": port,
        }
        for number, host, at in self.metrics:
            if number == broker.id:
                entry["metrics"] = {"address": _joined(host, at), "handler_threads": self.handler_threads}
        return entry


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, outside of what systems lend to outgoing connections."""
    found: list[int] = []
    chance = random.SystemRandom()
    while len(found) < count:
        port = chance.choice(AUTOMATIC_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
