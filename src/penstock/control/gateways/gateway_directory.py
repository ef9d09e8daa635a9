"""The gateways that have registered themselves on the known clusters, and whether they live.

Follows `_penstock.gateways` of each cluster. A gateway lives while its heartbeats arrive here; this control
plane's clock alone measures that, so clocks of other hosts do not matter.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import structlog

from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.compacted_topic import CompactedTopicReader
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.model.gateway_names import LEASE_MS, GatewayNames, bootstrap_for, read_heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.kafka.client import Client
    from penstock.model.entities import LogicalCluster, PhysicalCluster
    from penstock.model.events import GatewayHeartbeat
    from penstock.wire.records import Record

PARTITION: Final = TopicPartition(key_names.GATEWAYS_TOPIC, 0)
TENANT_PLACEHOLDER: Final = "{cluster}"  # in a configured bootstrap address: the logical cluster's id

log = structlog.get_logger("penstock.control")


class GatewayState(StrEnum):
    LIVE = "live"
    STARTING = "starting"  # it has its name and does not serve yet
    STALE = "stale"  # no heartbeat arrives
    STOPPED = "stopped"  # it has drained


@dataclass(frozen=True, slots=True)
class RegisteredGateway:
    heartbeat: GatewayHeartbeat
    state: GatewayState
    silent_seconds: float  # since its latest heartbeat


class GatewayDirectory:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._clusters: dict[str, _ClusterGateways] = {}

    def reader(self, cluster: str, client: Client) -> CompactedTopicReader:
        """Run it to follow the gateways of a cluster."""
        gateways = self._clusters[cluster] = _ClusterGateways(cluster, self._now)
        reader = CompactedTopicReader(client, PARTITION, apply=gateways.apply, reset=gateways.reset)
        gateways.keeps_up = lambda: reader.caught_up
        return reader

    def forget(self, cluster: str) -> None:
        self._clusters.pop(cluster, None)

    def all(self) -> list[RegisteredGateway]:
        """By cluster and name."""
        return [each for cluster in sorted(self._clusters) for each in self._clusters[cluster].list()]

    def of(self, cluster: str) -> list[RegisteredGateway]:
        known = self._clusters.get(cluster)
        return [] if known is None else known.list()

    def serving(self, cluster: str) -> list[GatewayHeartbeat]:
        """The live gateways; if there is none, those that may come back."""
        gateways = [each for each in self.of(cluster) if each.state is not GatewayState.STOPPED]
        live = [each.heartbeat for each in gateways if each.state is GatewayState.LIVE]
        return live or [each.heartbeat for each in gateways]

    def bootstrap(self, logical: LogicalCluster, physical: PhysicalCluster | None) -> str:
        """The addresses a tenant gets: those an operator has set, else what its gateways advertise."""
        if physical is not None and physical.bootstrap:
            return physical.bootstrap.replace(TENANT_PLACEHOLDER, logical.id)
        return bootstrap_for(logical.id, self.serving(logical.cluster))

    def uses_tls(self, cluster: str) -> bool:
        return any(gateway.tls for gateway in self.serving(cluster))

    def log_changes(self) -> None:
        """Log every gateway whose state has changed since the last call."""
        for gateways in self._clusters.values():
            gateways.log_changes()


class _ClusterGateways:
    def __init__(self, cluster: str, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._now = now
        # Whether what arrives has just been written.
        self.keeps_up: Callable[[], bool] = lambda: False
        self._names = GatewayNames()
        self._seen: dict[str, float] = {}  # monotonic time of the latest heartbeat, by name
        self._served: dict[str, GatewayHeartbeat] = {}  # the latest one with addresses, by name
        self._logged: dict[str, GatewayState] = {}

    def reset(self) -> None:
        self._names.holders.clear()

    def apply(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.value is None:
                name = (record.key or b"").decode(errors="replace")
                self._names.forget(name)
                continue
            try:
                heartbeat = read_heartbeat(record.value)
                heartbeat.require(heartbeat.cluster == self._cluster, "cluster", "the one of the topic")
            except PenstockError as failure:
                log.warning("heartbeat not understood", cluster=self._cluster, error=str(failure))
                continue
            self._names.apply(heartbeat, record.timestamp_ms)
            listed = heartbeat.gateway in self._names.holders  # the names are bounded
            if listed and self._names.contender(heartbeat) is None:
                self._seen[heartbeat.gateway] = self._now() - self._age_seconds(record)
                if heartbeat.serves:
                    self._served[heartbeat.gateway] = heartbeat
        for known in (self._seen, self._served, self._logged):
            for name in known.keys() - self._names.holders.keys():
                del known[name]

    def _age_seconds(self, record: Record) -> float:
        """Only a heartbeat that is read at the start can be old. Brokers' clocks do not count afterwards."""
        age = 0.0 if self.keeps_up() else max(0.0, time.time() - record.timestamp_ms / 1000)
        return age if age > LEASE_MS / 1000 else 0.0

    def list(self) -> list[RegisteredGateway]:
        rows = []
        for name, holder in sorted(self._names.holders.items()):
            silent = self._now() - self._seen.get(name, -float("inf"))
            heartbeat = holder.heartbeat
            if heartbeat.stopped:
                state = GatewayState.STOPPED
            elif silent > LEASE_MS / 1000:
                state = GatewayState.STALE
            else:
                state = GatewayState.LIVE if heartbeat.serves else GatewayState.STARTING
            if not heartbeat.serves and (former := self._served.get(name)) is not None:
                # It has been restarted: until it serves, tenants keep the addresses of before.
                address = {each: getattr(former, each) for each in ("bootstrap", "domain", "port", "tls")}
                heartbeat = replace(heartbeat, **address)
            rows.append(RegisteredGateway(heartbeat, state, silent))
        return rows

    def log_changes(self) -> None:
        for each in self.list():
            name = each.heartbeat.gateway
            if self._logged.get(name) is not each.state:
                self._logged[name] = each.state
                write = log.warning if each.state is GatewayState.STALE else log.info
                write("gateway " + each.state, cluster=self._cluster, gateway=name,
                      instance=each.heartbeat.instance)  # fmt: skip
