"""The settings file of the gateways of a provided cluster, and free ports for them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from penstock.atomic_files import write_atomically
from penstock.fleet.cluster_record import free_port
from penstock.fleet.layout import make_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.model.entities import BrokerEndpoint

GATEWAY_FILE: Final = "gateway.yaml"
RENAMING_BYTES_MAX: Final = (
    128 * 1024
)  # that prefixes add to a Produce request with as many topics as it may have


def advertised_bootstrap(path: Path) -> str:
    """The bootstrap address for tenants, from the settings file of their gateway."""
    if not path.exists():
        return ""
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    host = document["advertised_host"]
    return ",".join(f"{host}:{broker['port']}" for broker in document["brokers"])


def management_address(path: Path) -> str:
    """`host:port` of the gateway's management address, from its settings file; empty without one."""
    port = yaml.safe_load(path.read_text()).get("metrics_port") if path.exists() else None
    return f"127.0.0.1:{port}" if port else ""


@dataclass(frozen=True, slots=True)
class GatewayFile:
    """Settings of a gateway in front of every broker, by port, that follows the cluster's state topic."""

    name: str
    cluster: str
    brokers: tuple[BrokerEndpoint, ...]
    platform_key: Path
    ca: Path | None = None  # of the brokers' certificates; none: plaintext to the brokers
    metrics: tuple[tuple[int, str, int], ...] = ()  # broker, host, port; where known
    handler_threads: int = 0  # of each broker with metrics
    request_bytes_max: int | None = None  # that the brokers accept; default: the gateway's

    def write(self, path: Path, ports: Sequence[int], metrics_port: int | None = None) -> Path:
        document: dict[str, Any] = {
            "gateway": f"gw-{self.name}",
            "cluster": str(self.cluster),
            "listen": "127.0.0.1",
            "advertised_host": "127.0.0.1",
            "platform_key": str(self.platform_key),
            "tenants_from": "state",
            "brokers": [self._broker(*each) for each in zip(self.brokers, ports, strict=True)],
        }
        if metrics_port is not None:
            document["metrics_port"] = metrics_port
        if self.ca is not None:
            document["upstream_ca"] = str(self.ca)
        if self.request_bytes_max is not None:
            document["bounds"] = {"frame_bytes_max": self.request_bytes_max - RENAMING_BYTES_MAX}
        make_directory(path.parent)
        write_atomically(path, yaml.safe_dump(document, sort_keys=False))
        return path

    def _broker(self, broker: BrokerEndpoint, port: int) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "id": int(broker.id),
            "zone": str(broker.zone),
            "address": _joined(broker.host, broker.port),
            "port": port,
        }
        for number, host, metrics_port in self.metrics:
            if number == broker.id:
                entry["metrics"] = {
                    "address": _joined(host, metrics_port),
                    "handler_threads": self.handler_threads,
                }
        return entry


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nothing listens on now, outside the range of outgoing connections."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port("127.0.0.1", ports, random.SystemRandom()))
    return list(ports)


def kept_ports(path: Path, places: Sequence[BrokerEndpoint]) -> list[int]:
    """The ports of these brokers: one that the file has keeps its port, another gets a free one."""
    before: dict[str, Any] = yaml.safe_load(path.read_text()) if path.exists() else {"brokers": []}
    known = {broker["id"]: broker["port"] for broker in before["brokers"]}
    new = free_ports(sum(place.id not in known for place in places))
    return [known.get(place.id) or new.pop() for place in places]
