"""List and describe transactions and producers, fence a transactional id, abort hanging transactions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition, call_leaders, listed, partition_responses
from penstock.kafka.broker_errors import broker_error, check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import ANY_NODE, NodeWithId, transaction_coordinator
from penstock.model.errors import PenstockError
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from penstock.kafka.admin.partitions import PartitionResponse
    from penstock.kafka.client import Client

# Brokers also use it as the timeout for writing their transaction log (KAFKA-16047): not too short.
FENCE_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class TransactionListing:
    id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class Transaction:
    id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int  # −1: no transaction is open
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer that wrote to a partition recently."""

    id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    open_since_offset: int | None  # where its open transaction begins, if it has one


@dataclass(frozen=True, slots=True)
class Identity:
    producer_id: int
    epoch: int


async def list_all(
    client: Client,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    timeout: float = CALL_SECONDS,
) -> dict[str, TransactionListing]:
    """Every transactional id of the cluster. Each broker lists only those it coordinates."""
    body = {"StateFilters": list(states), "ProducerIdFilters": list(producer_ids)}

    async def list_on(node_id: int) -> list[TransactionListing]:
        response = await client.call("ListTransactions", body, to=NodeWithId(node_id), timeout=timeout)
        check("ListTransactions", response["ErrorCode"], None, f"broker {node_id}")
        return [
            TransactionListing(t["TransactionalId"], t["ProducerId"], t["TransactionState"], node_id)
            for t in response["TransactionStates"]
        ]

    nodes = (await client.cluster(refresh=True)).real_nodes
    by_node = await asyncio.gather(*map(list_on, nodes))
    return {listing.id: listing for listings in by_node for listing in listings}


async def describe(
    client: Client, ids: Sequence[str], *, timeout: float = CALL_SECONDS
) -> dict[str, Transaction | PenstockError]:
    async def one(transactional_id: str) -> Transaction | PenstockError:
        api, route = "DescribeTransactions", transaction_coordinator(transactional_id)
        response = await client.call(api, {"TransactionalIds": [transactional_id]}, to=route, timeout=timeout)
        t = response["TransactionStates"][0]
        if t["ErrorCode"] != Code.NONE:
            return broker_error(api, t["ErrorCode"], None, f"transactional id {transactional_id!r}")
        return Transaction(
            id=transactional_id,
            state=t["TransactionState"],
            producer_id=t["ProducerId"],
            producer_epoch=t["ProducerEpoch"],
            timeout_ms=t["TransactionTimeoutMs"],
            started_ms=t["TransactionStartTimeMs"],
            partitions=frozenset(TopicPartition(x["Topic"], p) for x in t["Topics"] for p in x["Partitions"]),
        )

    return dict(zip(ids, await asyncio.gather(*map(one, ids))))


async def producers(
    client: Client, partitions: Collection[TopicPartition], *, timeout: float = CALL_SECONDS
) -> dict[TopicPartition, tuple[Producer, ...] | PenstockError]:
    """The active producers of each partition, from its leader."""

    def body(led: list[TopicPartition]) -> dict[str, Any]:
        return {"Topics": listed(led)}

    responses = await call_leaders(client, "DescribeProducers", partitions, body, timeout=timeout)
    return {
        partition: response
        if isinstance(response, PenstockError)
        else tuple(map(_producer, response["ActiveProducers"]))
        for partition, response in responses.items()
    }


async def new_producer(client: Client, *, timeout: float = CALL_SECONDS) -> Identity:
    """Allocate a producer id for idempotent writes."""
    body = {"TransactionalId": None, "TransactionTimeoutMs": FENCE_TIMEOUT_MS}
    response = await client.call("InitProducerId", body, to=ANY_NODE, timeout=timeout)
    check("InitProducerId", response["ErrorCode"])
    return Identity(response["ProducerId"], response["ProducerEpoch"])


async def fence(client: Client, transactional_id: str, *, timeout: float = CALL_SECONDS) -> Identity:
    """Fence the current producer of this transactional id and abort its open transaction."""
    body = {"TransactionalId": transactional_id, "TransactionTimeoutMs": FENCE_TIMEOUT_MS}
    route = transaction_coordinator(transactional_id)
    response = await client.call("InitProducerId", body, to=route, timeout=timeout)
    check("InitProducerId", response["ErrorCode"], None, f"transactional id {transactional_id!r}")
    return Identity(response["ProducerId"], response["ProducerEpoch"])


async def abort(
    client: Client, partition: TopicPartition, producer: Producer, *, timeout: float = CALL_SECONDS
) -> None:
    """Abort a hanging transaction: open in one partition, but unknown to any coordinator."""
    marker = {
        "ProducerId": producer.id,
        "ProducerEpoch": producer.epoch,
        "TransactionResult": False,
        "Topics": listed([partition]),
        "CoordinatorEpoch": max(producer.coordinator_epoch, 0),
    }

    def split(response: Mapping[str, Any]) -> Iterator[PartitionResponse]:
        for m in response["Markers"]:
            yield from partition_responses(m)

    responses = await call_leaders(
        client, "WriteTxnMarkers", [partition], lambda _: {"Markers": [marker]}, split, timeout=timeout
    )
    results_or_raise(responses)


def _producer(p: Mapping[str, Any]) -> Producer:
    start = p["CurrentTxnStartOffset"]
    return Producer(
        p["ProducerId"],
        p["ProducerEpoch"],
        p["LastSequence"],
        p["LastTimestamp"],
        p["CoordinatorEpoch"],
        start if start >= 0 else None,
    )
