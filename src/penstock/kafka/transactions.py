"""Transactions and producers: list, describe, fence, abort what hangs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.outcomes import all_done
from penstock.kafka.partitions import Said, TopicPartition, ask_leaders, by_topic
from penstock.kafka.refusals import check, refusal
from penstock.kafka.routing import ANYONE, NodeWithId, transaction_coordinator
from penstock.model.errors import PenstockError
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from penstock.kafka.client import Client

# Brokers also wait this long for their own log of transactions (KAFKA-16047): not too short.
FENCE_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class Listed:
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
    started_ms: int  # −1: none is open
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Producer:
    """One that has written to a partition of late."""

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
) -> dict[str, Listed]:
    """Every transactional id of the cluster; each broker knows those it coordinates."""
    body = {"StateFilters": list(states), "ProducerIdFilters": list(producer_ids)}

    async def ask(node_id: int) -> list[Listed]:
        answer = await client.call("ListTransactions", body, to=NodeWithId(node_id), timeout=timeout)
        check("ListTransactions", answer["ErrorCode"], None, f"broker {node_id}")
        return [
            Listed(t["TransactionalId"], t["ProducerId"], t["TransactionState"], node_id)
            for t in answer["TransactionStates"]
        ]

    nodes = (await client.cluster(renew=True)).nodes
    found = await asyncio.gather(*map(ask, sorted(nodes)))
    return {listed.id: listed for part in found for listed in part}


async def describe(
    client: Client, ids: Sequence[str], *, timeout: float = CALL_SECONDS
) -> dict[str, Transaction | PenstockError]:
    async def one(transactional_id: str) -> Transaction | PenstockError:
        api, route = "DescribeTransactions", transaction_coordinator(transactional_id)
        answer = await client.call(api, {"TransactionalIds": [transactional_id]}, to=route, timeout=timeout)
        t = answer["TransactionStates"][0]
        if t["ErrorCode"] != Code.NONE:
            return refusal(api, t["ErrorCode"], None, f"transactional id {transactional_id!r}")
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
    """Producers that each partition's leader remembers."""

    def body(mine: list[TopicPartition]) -> dict[str, Any]:
        return {"Topics": [{"Name": n, "PartitionIndexes": ps} for n, ps in by_topic(mine).items()]}

    answers = await ask_leaders(client, "DescribeProducers", partitions, body, _said, timeout=timeout)
    return {
        partition: answer
        if isinstance(answer, PenstockError)
        else tuple(map(_producer, answer["ActiveProducers"]))
        for partition, answer in answers.items()
    }


async def new_producer(client: Client, *, timeout: float = CALL_SECONDS) -> Identity:
    """A producer id of our own, for idempotent writes."""
    body = {"TransactionalId": None, "TransactionTimeoutMs": FENCE_TIMEOUT_MS}
    answer = await client.call("InitProducerId", body, to=ANYONE, timeout=timeout)
    check("InitProducerId", answer["ErrorCode"])
    return Identity(answer["ProducerId"], answer["ProducerEpoch"])


async def fence(client: Client, transactional_id: str, *, timeout: float = CALL_SECONDS) -> Identity:
    """Shut out whoever uses this transactional id now, ending its open transaction."""
    body = {"TransactionalId": transactional_id, "TransactionTimeoutMs": FENCE_TIMEOUT_MS}
    route = transaction_coordinator(transactional_id)
    answer = await client.call("InitProducerId", body, to=route, timeout=timeout)
    check("InitProducerId", answer["ErrorCode"], None, f"transactional id {transactional_id!r}")
    return Identity(answer["ProducerId"], answer["ProducerEpoch"])


async def abort(
    client: Client,
    partition: TopicPartition,
    producer: Producer,
    *,
    timeout: float = CALL_SECONDS,
) -> None:
    """End a transaction that hangs in one partition and that no coordinator knows any more."""
    marker = {
        "ProducerId": producer.id,
        "ProducerEpoch": producer.epoch,
        "TransactionResult": False,
        "Topics": [{"Name": partition.topic, "PartitionIndexes": [partition.partition]}],
        "CoordinatorEpoch": max(producer.coordinator_epoch, 0),
    }

    def said(answer: Mapping[str, Any]) -> Iterator[Said]:
        for m in answer["Markers"]:
            yield from _said(m)

    answers = await ask_leaders(
        client, "WriteTxnMarkers", [partition], lambda _: {"Markers": [marker]}, said, timeout=timeout
    )
    all_done(answers)


def _said(answer: Mapping[str, Any]) -> Iterator[Said]:
    for t in answer["Topics"]:
        for p in t["Partitions"]:
            key = TopicPartition(t["Name"], p["PartitionIndex"])
            yield Said(key, p["ErrorCode"], p.get("ErrorMessage"), p)


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
