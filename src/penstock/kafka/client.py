"""A client for a whole cluster: routes each request to the right node and retries where that helps.

    async with Client("localhost:9092", security) as kafka:
        response = await kafka.call("OffsetFetch", body, to=group_coordinator("payments"))

It keeps one connection per node and `lane`, opened on first use. With `controllers=True` the bootstrap
addresses are those of KRaft controllers, and requests go to the controller listener.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.kafka.broker_errors import broker_error, check
from penstock.kafka.connection import CALL_SECONDS, CLIENT_ID, OPEN_SECONDS, Connection
from penstock.kafka.retry import Retry, after_failure, after_response, can_retry_when_slow
from penstock.kafka.routing import (
    ANY_NODE,
    Address,
    AnyNode,
    Cluster,
    Controller,
    CoordinatorOf,
    LeaderOf,
    NodeWithId,
    Route,
    addresses,
    cluster_of,
)
from penstock.kafka.security import PLAINTEXT, Security
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import BrokerUnknown, BrokerUnreachable
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Body = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]

ATTEMPT_SECONDS_MAX: Final = 10.0  # so that one hung node does not use up the whole time limit
ATTEMPT_SECONDS_MIN: Final = 0.25  # a shorter last attempt would replace the reason by "no response"
ADDRESS_REST_SECONDS: Final = 5.0  # an unreachable address is tried last for this long
LOGIN_LIFETIME_USED_MAX: Final = 0.85  # the connection is replaced before its login expires (KIP-368)
CONTROLLER_ENDPOINTS: Final = 2  # DescribeCluster's EndpointType
LEADERS_MAX: Final = 200_000  # cached partition leaders; the cache is cleared beyond that
COORDINATORS_MAX: Final = 10_000


class Client:
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        security: Security = PLAINTEXT,
        *,
        client_id: str = CLIENT_ID,
        controllers: bool = False,
        open_seconds: float = OPEN_SECONDS,
    ) -> None:
        self._bootstrap = addresses(bootstrap)
        assert self._bootstrap, "a client needs at least one bootstrap address"
        self._security = security
        self._client_id = client_id
        self._controllers = controllers
        self._open_seconds = open_seconds
        self._connections: dict[tuple[Address, str], Connection] = {}
        self._opening: dict[tuple[Address, str], asyncio.Lock] = {}
        self._expiring: list[Connection] = []  # replaced, but with requests still in flight
        self._unreachable_at: dict[Address, float] = {}
        self._cluster: Cluster | None = None
        self._cluster_stale = False  # its addresses are still worth trying
        self._leaders: dict[tuple[str, int], int] = {}
        self._coordinators: dict[CoordinatorOf, int] = {}
        self._random = random.Random()

    async def call(
        self,
        api: str,
        body: Body | None = None,
        *,
        to: Route = ANY_NODE,
        timeout: float = CALL_SECONDS,
        version_max: int | None = None,
        retry: bool = True,
        lane: str = "",
    ) -> dict[str, Any]:
        """Send a request to the node that `to` names and return its response, within `timeout` seconds.

        `body` may be a function of the negotiated version, which is at most `version_max`. If the time
        is up and the error codes are still retriable, the last response is returned: callers read the
        codes anyway. Each `lane` has its own connection, so that a long poll does not delay other calls."""
        deadline = time.monotonic() + timeout
        attempt = 0
        while True:
            response: dict[str, Any] | None = None
            failure: PenstockError | None = None
            try:
                response = await self._attempt(api, body, to, deadline, version_max, lane)
                advice = after_response(api, response, attempt, self._random.random())
            except PenstockError as caught:
                failure = caught
                advice = after_failure(api, caught, attempt, self._random.random())
            if advice is not None:
                self._forget(to, advice)
            pause = advice.after_seconds if advice is not None else None
            if pause is None or not retry or time.monotonic() + pause + ATTEMPT_SECONDS_MIN >= deadline:
                if failure is not None:
                    raise failure
                assert response is not None
                return response
            await asyncio.sleep(pause)
            attempt += 1

    async def cluster(self, *, refresh: bool = False, timeout: float = CALL_SECONDS) -> Cluster:
        """The known nodes; fetched on first use, when stale, or with `refresh`."""
        if self._cluster is None or self._cluster_stale or refresh:
            if self._controllers:
                body = {"EndpointType": CONTROLLER_ENDPOINTS}
                described = await self.call("DescribeCluster", body, timeout=timeout)
                check("DescribeCluster", described["ErrorCode"], described["ErrorMessage"])
                self._cluster = cluster_of(described, "BrokerId")
                self._cluster_stale = False
            else:
                self._learn(await self.call("Metadata", {"Topics": []}, timeout=timeout))
        assert self._cluster is not None
        return self._cluster

    async def leaders(
        self, topics: Sequence[str], *, strict: bool = True, timeout: float = CALL_SECONDS
    ) -> dict[tuple[str, int], int]:
        """Fetch the leader of every partition of these topics; −1 where there is none.

        A topic that does not exist, or that this user may not describe, is an error if `strict` and
        left out otherwise."""
        body = {"Topics": [{"Name": name} for name in topics], "AllowAutoTopicCreation": False}
        response = await self.call("Metadata", body, timeout=timeout)
        self._learn(response)
        for topic in response["Topics"]:
            if strict and topic["ErrorCode"] not in (Code.NONE, Code.LEADER_NOT_AVAILABLE):
                raise broker_error("Metadata", topic["ErrorCode"], None, f"topic {topic['Name']!r}")
        return {
            (topic["Name"], partition["PartitionIndex"]): partition["LeaderId"]
            for topic in response["Topics"]
            for partition in topic["Partitions"]
        }

    async def connection(self, to: Route = ANY_NODE, *, lane: str = "") -> Connection:
        """The open connection that a call with this route and lane uses."""
        return await self._connect(await self._address(to, time.monotonic() + CALL_SECONDS), lane)

    async def close(self) -> None:
        connections = [*self._connections.values(), *self._expiring]
        self._connections.clear()
        self._expiring.clear()
        await asyncio.gather(*(connection.close() for connection in connections))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _attempt(
        self, api: str, body: Body | None, to: Route, deadline: float, version_max: int | None, lane: str
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                address = await self._address(to, deadline)
                connection = await self._connect(address, lane)
        except TimeoutError:
            reason = "the time limit passed before a connection was ready"
            raise BrokerUnreachable(address=to, reason=reason) from None
        version = connection.version_of(api, version_max)
        values = body(version) if callable(body) else body
        left = max(0.001, deadline - time.monotonic())
        if can_retry_when_slow(api) and left > 2 * ATTEMPT_SECONDS_MAX:
            left = ATTEMPT_SECONDS_MAX
        return await connection.call(api, values, version=version, timeout=left)

    async def _address(self, to: Route, deadline: float) -> Address:
        """The address of the node that this route names; fetches metadata if needed."""
        left = max(0.001, deadline - time.monotonic())
        if isinstance(to, AnyNode):
            return self._any_address()
        if isinstance(to, Controller):
            cluster = await self.cluster(timeout=left)
            if cluster.controller_id < 0:  # an election is in progress
                raise broker_error("Metadata", Code.LEADER_NOT_AVAILABLE, None, "the controller")
            return self._address_of(cluster.controller_id, cluster)
        if isinstance(to, NodeWithId):
            node_id = to.id
        elif isinstance(to, LeaderOf):
            node_id = await self._leader(to, left)
        else:
            node_id = await self._coordinator(to, left)
        cluster = await self.cluster(timeout=left)
        if node_id not in cluster.nodes:
            cluster = await self.cluster(refresh=True, timeout=left)
        return self._address_of(node_id, cluster)

    def _any_address(self) -> Address:
        """A connected node if there is one, else one that was not unreachable recently."""
        for (address, lane), connection in self._connections.items():
            if not lane and not connection.closed:
                return address
        known = [node.address for node in self._cluster.nodes.values()] if self._cluster else []
        self._random.shuffle(known)
        rested = time.monotonic() - ADDRESS_REST_SECONDS
        return min(
            (*known, *self._bootstrap),
            key=lambda address: max(0.0, self._unreachable_at.get(address, 0.0) - rested),
        )

    def _address_of(self, node_id: int, cluster: Cluster) -> Address:
        node = cluster.nodes.get(node_id)
        if node is None:
            raise BrokerUnknown(node=node_id, known=", ".join(map(str, sorted(cluster.nodes))) or "none")
        return node.address

    async def _leader(self, to: LeaderOf, left: float) -> int:
        key = (to.topic, to.partition)
        if key not in self._leaders:
            await self.leaders([to.topic], timeout=left)
        if key not in self._leaders:
            code, subject = Code.UNKNOWN_TOPIC_OR_PARTITION, f"partition {to.partition} of topic {to.topic!r}"
            raise broker_error("Metadata", code, None, subject)
        return self._leaders[key]

    async def _coordinator(self, to: CoordinatorOf, left: float) -> int:
        known = self._coordinators.get(to)
        if known is not None:
            return known

        def body(version: int) -> dict[str, Any]:
            keys = {"CoordinatorKeys": [to.key]} if version >= 4 else {"Key": to.key}
            return {"KeyType": to.kind.value, **keys}

        response = await self.call("FindCoordinator", body, timeout=left)
        coordinator = response["Coordinators"][0] if "Coordinators" in response else response
        check("FindCoordinator", coordinator["ErrorCode"], coordinator.get("ErrorMessage"), str(to))
        if len(self._coordinators) >= COORDINATORS_MAX:
            self._coordinators.clear()
        self._coordinators[to] = coordinator["NodeId"]
        return int(coordinator["NodeId"])

    async def _connect(self, address: Address, lane: str) -> Connection:
        key = (address, lane)
        async with self._opening.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is not None and not connection.closed:
                if connection.expires_at is None or time.monotonic() < connection.expires_at:
                    return connection
                self._expiring.append(connection)
            elif connection is not None:
                await connection.close()
            await self._close_expiring()
            try:
                host, port, timeout = address.host, address.port, self._open_seconds
                opened = await Connection.open(
                    host, port, self._security, client_id=self._client_id, timeout=timeout
                )
            except BrokerUnreachable:
                self._unreachable_at[address] = time.monotonic()
                raise
            if opened.expires_at is not None:
                now = time.monotonic()
                opened.expires_at = now + (opened.expires_at - now) * LOGIN_LIFETIME_USED_MAX
            self._connections[key] = opened
            return opened

    async def _close_expiring(self) -> None:
        idle = [connection for connection in self._expiring if connection.idle]
        self._expiring = [connection for connection in self._expiring if not connection.idle]
        await asyncio.gather(*(connection.close() for connection in idle))

    def _learn(self, metadata: Mapping[str, Any]) -> None:
        self._cluster = cluster_of(metadata, "NodeId")
        self._cluster_stale = False
        if len(self._leaders) > LEADERS_MAX:
            self._leaders.clear()
        for topic in metadata["Topics"]:
            for partition in topic["Partitions"]:
                key = (topic["Name"], partition["PartitionIndex"])
                if partition["LeaderId"] >= 0:
                    self._leaders[key] = partition["LeaderId"]
                else:
                    self._leaders.pop(key, None)

    def _forget(self, to: Route, advice: Retry) -> None:
        self._cluster_stale = self._cluster_stale or advice.refresh_cluster
        if advice.refresh_route and isinstance(to, LeaderOf):
            for key in [key for key in self._leaders if key[0] == to.topic]:
                del self._leaders[key]
        if advice.refresh_route and isinstance(to, CoordinatorOf):
            self._coordinators.pop(to, None)
