"""Probe a node with real requests, and wait until nodes are ready.

An open port proves little: it may belong to another process, or to a node of another cluster. So the
probe requests the node's own configuration, which Kafka returns only for the node's own id, and checks
the cluster id. A broker must also see itself unfenced.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.fleet.credentials.passwords import PLATFORM_USER
from penstock.fleet.spec import Role
from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model.errors import PenstockError
from penstock.model.errors.fleet import NodeFailed, NotReady
from penstock.model.errors.wire import DefinitionsMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.fleet.node import Node

PROBE_SECONDS_MAX = 2.0
PROBE_SECONDS_BETWEEN = 0.1
READY_SECONDS_MAX = 90.0

_BROKER_RESOURCE = 4
_BROKER_ENDPOINTS, _CONTROLLER_ENDPOINTS = 1, 2


@dataclass(frozen=True, slots=True)
class ProbeResult:
    ready: bool
    reason: str = ""


@dataclass(slots=True)
class Prober:
    """Probes one node repeatedly over one connection."""

    node: Node
    _connection: Connection | None = field(default=None, repr=False)

    async def probe(self) -> ProbeResult:
        try:
            async with asyncio.timeout(PROBE_SECONDS_MAX):
                if self._connection is None:
                    self._connection = await self._connect()
                reason = await self._problem(self._connection)
                return ProbeResult(ready=not reason, reason=reason)
        except TimeoutError:
            await self.close()
            return ProbeResult(ready=False, reason="it does not respond")
        except DefinitionsMissing:
            raise  # a fault of this installation: without definitions no probe can succeed
        except (OSError, PenstockError) as error:
            await self.close()
            return ProbeResult(ready=False, reason=str(error))

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connect(self) -> Connection:
        spec = self.node.spec
        return await Connection.open(spec.host, spec.ports[spec.probe_listener], security_of(self.node))

    async def _problem(self, connection: Connection) -> str:
        """Why the node is not ready; empty if it is."""
        spec, kafka_id = self.node.spec, self.node.cluster.kafka_id
        resource = {"ResourceType": _BROKER_RESOURCE, "ResourceName": str(spec.id)}
        resources = [{**resource, "ConfigurationKeys": ["node.id"]}]
        configs = await connection.call("DescribeConfigs", {"Resources": resources})
        (result,) = configs["Results"]
        if result["ErrorCode"]:
            return f"another node than {spec.id} responded: {result['ErrorMessage']}"
        endpoints = _CONTROLLER_ENDPOINTS if spec.role is Role.CONTROLLER else _BROKER_ENDPOINTS
        cluster = await connection.call("DescribeCluster", {"EndpointType": endpoints})
        if cluster["ClusterId"] != kafka_id:
            return f"it belongs to cluster {cluster['ClusterId']}, not {kafka_id}"
        if spec.is_broker and spec.id not in {broker["BrokerId"] for broker in cluster["Brokers"]}:
            return "it is still fenced"
        return ""


def security_of(node: Node) -> Security:
    """How the platform logs in to a node: SCRAM, or PLAIN on a controller listener."""
    mechanism = Mechanism.PLAIN if node.spec.role is Role.CONTROLLER else Mechanism.SCRAM_SHA_512
    login = Login(PLATFORM_USER, node.access.credentials.platform, mechanism)
    return Security(login, tls_context(node.access.ca) if node.cluster.spec.tls else None)


async def wait_until_ready(
    nodes: Sequence[Node],
    *,
    seconds: float = READY_SECONDS_MAX,
    on_ready: Callable[[Node], None] = lambda node: None,
) -> None:
    """Return when all nodes are ready; raise as soon as one has died."""
    probers = [Prober(node) for node in nodes]
    waiting = {prober.node.full_name: "not probed yet" for prober in probers}
    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for prober in probers:
                group.create_task(_wait(prober, waiting, on_ready))
    except TimeoutError as error:
        reason = "; ".join(f"{name}: {why}" for name, why in waiting.items())
        raise NotReady(nodes=", ".join(waiting), seconds=seconds, reason=reason) from error
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _wait(prober: Prober, waiting: dict[str, str], on_ready: Callable[[Node], None]) -> None:
    node = prober.node
    started = time.monotonic()
    try:
        while True:
            result = await prober.probe()
            if result.ready:
                del waiting[node.full_name]
                on_ready(node)
                return
            waiting[node.full_name] = result.reason
            outcome = node.last_exit()
            gone = node.running() is None and time.monotonic() - started > PROBE_SECONDS_MAX
            if outcome is not None or gone:
                last_error = node.last_error() or "none"
                raise NodeFailed(node=node.name, outcome=_described(outcome), last_error=last_error)
            await asyncio.sleep(PROBE_SECONDS_BETWEEN)
    finally:
        await prober.close()


def _described(outcome: int | None) -> str:
    if outcome is None:
        return "an unknown exit code"
    return f"code {outcome}" if outcome >= 0 else f"signal {-outcome}"
