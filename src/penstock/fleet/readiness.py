"""Whether a node is there: asked by a real call, and only the right node's answer counts.

A port that accepts connections proves little: it may belong to another process, or to a node of
another cluster. So the node is asked for its own configuration, which Kafka gives only for the id
it has itself, and for the cluster it thinks it is in; a broker must also see itself unfenced.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.fleet.passwords import PLATFORM_USER
from penstock.fleet.spec import Role
from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security, tls_trusting
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
class Answer:
    ready: bool
    reason: str = ""


@dataclass(slots=True)
class Prober:
    """Asks one node, again and again, over one connection."""

    node: Node
    _connection: Connection | None = field(default=None, repr=False)

    async def ask(self) -> Answer:
        try:
            async with asyncio.timeout(PROBE_SECONDS_MAX):
                if self._connection is None:
                    self._connection = await self._connect()
                reason = await self._wrong(self._connection)
                return Answer(ready=not reason, reason=reason)
        except TimeoutError:
            await self.close()
            return Answer(ready=False, reason="it does not answer")
        except DefinitionsMissing:
            raise  # ours to mend; no node will ever answer us without them
        except (OSError, PenstockError) as error:
            await self.close()
            return Answer(ready=False, reason=str(error))

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connect(self) -> Connection:
        spec = self.node.spec
        return await Connection.open(spec.host, spec.ports[spec.probe_listener], security_of(self.node))

    async def _wrong(self, connection: Connection) -> str:
        """What is wrong with the answers; empty when nothing is."""
        spec, kafka_id = self.node.spec, self.node.cluster.kafka_id
        asked = {
            "ResourceType": _BROKER_RESOURCE,
            "ResourceName": str(spec.id),
            "ConfigurationKeys": ["node.id"],
        }
        configs = await connection.call("DescribeConfigs", {"Resources": [asked]})
        (result,) = configs["Results"]
        if result["ErrorCode"]:
            return f"node {spec.id} was asked, another one answered: {result['ErrorMessage']}"
        endpoints = _CONTROLLER_ENDPOINTS if spec.role is Role.CONTROLLER else _BROKER_ENDPOINTS
        cluster = await connection.call("DescribeCluster", {"EndpointType": endpoints})
        if cluster["ClusterId"] != kafka_id:
            return f"it belongs to cluster {cluster['ClusterId']}, not {kafka_id}"
        if spec.is_broker and spec.id not in {broker["BrokerId"] for broker in cluster["Brokers"]}:
            return "it is still fenced"
        return ""


def security_of(node: Node) -> Security:
    """How the platform logs in at a node: SCRAM, but PLAIN where only PLAIN can be."""
    mechanism = Mechanism.PLAIN if node.spec.role is Role.CONTROLLER else Mechanism.SCRAM_SHA_512
    login = Login(PLATFORM_USER, node.access.credentials.platform, mechanism)
    return Security(login, tls_trusting(node.access.ca) if node.cluster.spec.tls else None)


async def wait_until_ready(
    nodes: Sequence[Node],
    *,
    seconds: float = READY_SECONDS_MAX,
    told: Callable[[Node], None] = lambda node: None,
) -> None:
    """Return when all of them answer; raise as soon as one of them has died."""
    probers = [Prober(node) for node in nodes]
    waiting = {prober.node.full_name: "not asked yet" for prober in probers}
    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for prober in probers:
                group.create_task(_wait(prober, waiting, told))
    except TimeoutError as error:
        reason = "; ".join(f"{name}: {why}" for name, why in waiting.items())
        raise NotReady(nodes=", ".join(waiting), seconds=seconds, reason=reason) from error
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _wait(prober: Prober, waiting: dict[str, str], told: Callable[[Node], None]) -> None:
    node = prober.node
    born = time.monotonic()
    try:
        while True:
            answer = await prober.ask()
            if answer.ready:
                del waiting[node.full_name]
                told(node)
                return
            waiting[node.full_name] = answer.reason
            outcome = node.last_exit()
            if outcome is not None or (
                node.running() is None and time.monotonic() - born > PROBE_SECONDS_MAX
            ):
                raise NodeFailed(
                    node=node.name, outcome=_described(outcome), words=node.last_words() or "none"
                )
            await asyncio.sleep(PROBE_SECONDS_BETWEEN)
    finally:
        await prober.close()


def _described(outcome: int | None) -> str:
    if outcome is None:
        return "no trace"
    return f"exit code {outcome}" if outcome >= 0 else f"signal {-outcome}"
