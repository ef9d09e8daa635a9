"""A real Kafka fleet for tests, controlled from synchronous code.

It has no supervisor: a node that a test kills stays dead until the test starts it.
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.fleet.credentials.passwords import PLATFORM_USER, SCRAM_MECHANISM
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import LocalFleet, open_fleet
from penstock.fleet.readiness import security_of, wait_until_ready
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.spec import Listener
from penstock.fleet.spec_file import parse_fleet
from penstock.fleet.supervisor import stop_nodes
from tests.harness.propagation import wait_for_leaders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from penstock.fleet.node import Node
    from penstock.kafka.security import Security

THREE_ZONES: Mapping[str, Any] = {"port": 0}
TINY: Mapping[str, Any] = {"port": 0, "combined": True, "brokers": 1, "zones": ["a"]}


@dataclass
class Fleet:
    """One cluster of real nodes. `fleet.client_config()` is all most tests need."""

    local: LocalFleet
    faulty: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def start(
        cls,
        home: Path,
        cluster: Mapping[str, Any],
        *,
        environment: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Fleet:
        """Start a cluster of this shape; `environment` has additional variables by node."""
        fleet = cls(asyncio.run(_open(home, cluster)))
        for name, variables in (environment or {}).items():
            fleet.node(name).environment = variables
        try:
            asyncio.run(fleet._start_all())
            fleet.wait_ready()
        except BaseException:
            fleet.stop()
            raise
        return fleet

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.local.nodes

    @property
    def brokers(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.spec.is_broker)

    @property
    def bootstrap(self) -> str:
        return self.local.clusters[0].cluster.spec.bootstrap()

    @property
    def gateway_bootstrap(self) -> str:
        """The gateway listener, where SCRAM users of tenants log in."""
        return self.local.clusters[0].cluster.spec.bootstrap(Listener.GATEWAY)

    @property
    def kafka_id(self) -> str:
        return self.local.clusters[0].cluster.kafka_id

    def client_config(self, **overrides: object) -> dict[str, Any]:
        """librdkafka properties of a superuser; `group_id="x"` overrides `group.id`."""
        tls = self.local.clusters[0].cluster.spec.tls
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
            "sasl.mechanism": SCRAM_MECHANISM,
            "sasl.username": PLATFORM_USER,
            "sasl.password": self.local.access.credentials.platform,
        }
        if tls:
            config["ssl.ca.location"] = str(self.local.access.ca)
        return config | {key.replace("_", "."): value for key, value in overrides.items()}

    def security(self) -> Security:
        """The same superuser for `penstock.kafka`."""
        return security_of(self.brokers[0])

    def node(self, name: str) -> Node:
        return self.local.node(name)

    def kill(self, name: str) -> None:
        """Send SIGKILL and wait until the node has ended."""
        self._signal(name, signal.SIGKILL)
        wait_gone(self.node(name))

    def pause(self, name: str) -> None:
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def stop_node(self, name: str) -> None:
        """Controlled shutdown of one node."""
        asyncio.run(self.node(name).stop())

    def start_node(self, name: str, *, wait: bool = True) -> None:
        asyncio.run(self.node(name).start())
        if wait:
            self.wait_ready([self.node(name)])

    def restart(self, name: str) -> None:
        """Controlled shutdown and start; returns when the node is ready."""
        self.stop_node(name)
        self.start_node(name)

    def wait_ready(self, nodes: Iterable[Node] | None = None) -> None:
        asyncio.run(wait_until_ready(list(nodes or self.nodes)))

    def wait_for_leaders(self, topic: str, partitions: int | None = None) -> None:
        """Wait until every broker knows a new topic and serves what it leads."""
        asyncio.run(wait_for_leaders(self.bootstrap, self.security(), topic, partitions))

    def stop(self) -> None:
        for node in self.nodes:
            if (identity := node.running()) is not None:
                identity.signal(signal.SIGCONT)
        asyncio.run(stop_nodes(self.nodes))

    def destroy(self) -> None:
        """Kill every process; for fleets whose data is no longer needed."""
        for node in self.nodes:
            if (identity := node.running()) is not None:
                identity.signal(signal.SIGKILL)
        for node in self.nodes:
            wait_gone(node)

    async def _start_all(self) -> None:
        for node in self.nodes:
            await node.start()

    def _signal(self, name: str, number: signal.Signals) -> None:
        identity = self.node(name).running()
        assert identity is not None, f"{name} is not running"
        assert identity.signal(number)


async def _open(home: Path, cluster: Mapping[str, Any]) -> LocalFleet:
    # Without Kafka's delay of 3 s before the first assignment of every group that a test creates.
    config = {"group.initial.rebalance.delay.ms": 0, **cluster.get("config", {})}
    shape = {**cluster, "config": config}
    local = open_fleet(parse_fleet({"clusters": [shape]}), Layout(home), await obtain_runtime())
    await local.prepare()
    return local


def wait_gone(node: Node) -> None:
    wait_for(lambda: node.running() is None, what=f"{node.name} to end")


def wait_for(condition: Callable[[], object], *, what: str, seconds: float = 150.0) -> None:
    """Poll until the condition holds; fails with `what` after `seconds`, which allow for a busy machine."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.02)
