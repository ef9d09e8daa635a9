"""A client of a whole cluster: finds whom to ask, asks again where that helps.

    async with Client("localhost:9092", security) as kafka:
        answer = await kafka.call("OffsetFetch", body, to=group_coordinator("payments"))

One connection a node (and `lane`), opened when first needed and kept. With `controllers=True` the
bootstrap addresses are those of KRaft controllers, and calls go to the controllers' listener.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.kafka import retry
from penstock.kafka.connection import CALL_SECONDS, CLIENT_ID, OPEN_SECONDS, Connection
from penstock.kafka.refusals import refusal
from penstock.kafka.routing import (
    ANYONE,
    Address,
    Anyone,
    Cluster,
    Controller,
    CoordinatorOf,
    LeaderOf,
    NodeWithId,
    Route,
    addresses,
    cluster_of_description,
    cluster_of_metadata,
)
from penstock.kafka.security import PLAINTEXT, Security
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import BrokerUnknown, BrokerUnreachable
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    Body = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]

ATTEMPT_SECONDS_MAX: Final = 10.0  # an impatient call does not spend all its time on one hung node
ADDRESS_REST_SECONDS: Final = 5.0  # how long one that refused us goes to the end of the line
LOGIN_SPENT: Final = 0.85  # part of a login's lifetime after which the connection is replaced
CONTROLLER_ENDPOINTS: Final = 2  # DescribeCluster's EndpointType
LEADERS_MAX: Final = 200_000  # partitions remembered; beyond, all are forgotten and asked for anew
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
        self._spent: list[Connection] = []  # past their login's lifetime, with calls still out
        self._refused_at: dict[Address, float] = {}
        self._cluster: Cluster | None = None
        self._cluster_stale = False  # still a list of addresses to try
        self._leaders: dict[tuple[str, int], int] = {}
        self._coordinators: dict[CoordinatorOf, int] = {}
        self._chance = random.Random()

    async def call(
        self,
        api: str,
        body: Body | None = None,
        *,
        to: Route = ANYONE,
        timeout: float = CALL_SECONDS,
        newest: int | None = None,
        again: bool = True,
        lane: str = "",
    ) -> dict[str, Any]:
        """The answer to one request, from the right node, retried within `timeout` seconds.

        `body` may be a function of the version spoken, which is at most `newest`. An answer whose
        error codes are still retriable when time is up is returned as it is; the caller reads the
        codes anyway. With `again` false nothing is retried. Calls of different lanes do not wait
        for each other (a long poll wants one of its own).
        """
        deadline = time.monotonic() + timeout
        attempt = 0
        while True:
            answer: dict[str, Any] | None = None
            failure: PenstockError | None = None
            try:
                answer = await self._attempt(api, body, to, deadline, newest, lane)
                advice = retry.after_answer(api, answer, attempt, self._chance.random())
            except PenstockError as caught:
                failure = caught
                advice = retry.after_failure(api, caught, attempt, self._chance.random())
            if advice is not None:
                self._forget(to, advice)
            if advice is None or not again or time.monotonic() + advice.after_seconds >= deadline:
                if failure is not None:
                    raise failure
                assert answer is not None
                return answer
            await asyncio.sleep(advice.after_seconds)
            attempt += 1

    async def cluster(self, *, renew: bool = False, timeout: float = CALL_SECONDS) -> Cluster:
        """The nodes we know of; asked for if not known yet or if `renew`."""
        if self._cluster is None or self._cluster_stale or renew:
            if self._controllers:
                described = await self.call(
                    "DescribeCluster", {"EndpointType": CONTROLLER_ENDPOINTS}, timeout=timeout
                )
                if described["ErrorCode"]:
                    raise refusal("DescribeCluster", described["ErrorCode"], described["ErrorMessage"])
                self._cluster = cluster_of_description(described)
                self._cluster_stale = False
            else:
                self._learn(await self.call("Metadata", {"Topics": []}, timeout=timeout))
        assert self._cluster is not None
        return self._cluster

    async def leaders(
        self, topics: Sequence[str], *, strict: bool = True, timeout: float = CALL_SECONDS
    ) -> dict[tuple[str, int], int]:
        """Leader of every partition of these topics, asked for anew; −1 where there is none.

        A topic that does not exist (or may not be seen) is an error if `strict`, and else left out.
        """
        body = {"Topics": [{"Name": name} for name in topics], "AllowAutoTopicCreation": False}
        answer = await self.call("Metadata", body, timeout=timeout)
        self._learn(answer)
        for topic in answer["Topics"]:
            if strict and topic["ErrorCode"] not in (Code.NONE, Code.LEADER_NOT_AVAILABLE):
                raise refusal("Metadata", topic["ErrorCode"], None, f"topic {topic['Name']!r}")
        return {
            (topic["Name"], partition["PartitionIndex"]): partition["LeaderId"]
            for topic in answer["Topics"]
            for partition in topic["Partitions"]
        }

    async def connection(self, to: Route = ANYONE, *, lane: str = "") -> Connection:
        """The open connection that a call to `to` would use."""
        return await self._connect(await self._address(to, time.monotonic() + CALL_SECONDS), lane)

    async def close(self) -> None:
        connections = [*self._connections.values(), *self._spent]
        self._connections.clear()
        self._spent.clear()
        await asyncio.gather(*(connection.close() for connection in connections))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _attempt(
        self, api: str, body: Body | None, to: Route, deadline: float, newest: int | None, lane: str
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                address = await self._address(to, deadline)
                connection = await self._connect(address, lane)
        except TimeoutError:
            raise BrokerUnreachable(address=to, reason="the time given was over before it answered") from None
        version = connection.version_of(api, newest)
        values = body(version) if callable(body) else body
        left = max(0.001, deadline - time.monotonic())
        if retry.is_impatient(api) and left > 2 * ATTEMPT_SECONDS_MAX:
            left = ATTEMPT_SECONDS_MAX
        return await connection.call(api, values, version=version, timeout=left)

    async def _address(self, to: Route, deadline: float) -> Address:
        """Where the node is that this route names; may ask the cluster first."""
        left = max(0.001, deadline - time.monotonic())
        if isinstance(to, Anyone):
            return self._anyone()
        if isinstance(to, Controller):
            cluster = await self.cluster(timeout=left)
            return self._address_of(cluster.controller_id, cluster)
        if isinstance(to, NodeWithId):
            node_id = to.id
        elif isinstance(to, LeaderOf):
            node_id = await self._leader(to, left)
        else:
            node_id = await self._coordinator(to, left)
        cluster = await self.cluster(timeout=left)
        if node_id not in cluster.nodes:
            cluster = await self.cluster(renew=True, timeout=left)
        return self._address_of(node_id, cluster)

    def _anyone(self) -> Address:
        """A node we are connected to; else one that has not refused us lately."""
        for (address, lane), connection in self._connections.items():
            if not lane and not connection.closed:
                return address
        known = [node.address for node in self._cluster.nodes.values()] if self._cluster else []
        self._chance.shuffle(known)
        lately = time.monotonic() - ADDRESS_REST_SECONDS
        return min(
            (*known, *self._bootstrap),
            key=lambda address: max(0.0, self._refused_at.get(address, 0.0) - lately),
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
            raise refusal("Metadata", code, None, subject)
        return self._leaders[key]

    async def _coordinator(self, to: CoordinatorOf, left: float) -> int:
        known = self._coordinators.get(to)
        if known is not None:
            return known

        def body(version: int) -> dict[str, Any]:
            keys = {"CoordinatorKeys": [to.key]} if version >= 4 else {"Key": to.key}
            return {"KeyType": to.kind.value, **keys}

        answer = await self.call("FindCoordinator", body, timeout=left)
        found = answer["Coordinators"][0] if "Coordinators" in answer else answer
        if found["ErrorCode"]:
            raise refusal("FindCoordinator", found["ErrorCode"], found["ErrorMessage"], str(to))
        if len(self._coordinators) >= COORDINATORS_MAX:
            self._coordinators.clear()
        self._coordinators[to] = found["NodeId"]
        return int(found["NodeId"])

    async def _connect(self, address: Address, lane: str) -> Connection:
        key = (address, lane)
        async with self._opening.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is not None and not connection.closed:
                if connection.expires_at is None or time.monotonic() < connection.expires_at:
                    return connection
                self._spent.append(connection)
            elif connection is not None:
                await connection.close()
            await self._close_spent()
            try:
                opened = await Connection.open(
                    address.host,
                    address.port,
                    self._security,
                    client_id=self._client_id,
                    timeout=self._open_seconds,
                )
            except BrokerUnreachable:
                self._refused_at[address] = time.monotonic()
                raise
            if opened.expires_at is not None:
                now = time.monotonic()
                opened.expires_at = now + (opened.expires_at - now) * LOGIN_SPENT
            self._connections[key] = opened
            return opened

    async def _close_spent(self) -> None:
        idle = [connection for connection in self._spent if connection.idle]
        self._spent = [connection for connection in self._spent if not connection.idle]
        await asyncio.gather(*(connection.close() for connection in idle))

    def _learn(self, metadata: Mapping[str, Any]) -> None:
        self._cluster = cluster_of_metadata(metadata)
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

    def _forget(self, to: Route, advice: retry.Again) -> None:
        self._cluster_stale = self._cluster_stale or advice.renew_cluster
        if advice.renew_route and isinstance(to, LeaderOf):
            for key in [key for key in self._leaders if key[0] == to.topic]:
                del self._leaders[key]
        if advice.renew_route and isinstance(to, CoordinatorOf):
            self._coordinators.pop(to, None)
