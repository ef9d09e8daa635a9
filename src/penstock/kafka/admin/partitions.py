"""Topic partitions, and calls that go to the leader of each partition."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.kafka.admin.outcomes import outcome
from penstock.kafka.broker_errors import broker_error
from penstock.kafka.routing import NodeWithId
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import BrokerUnknown
from penstock.wire.error_codes import RETRIABLE, Code

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from penstock.kafka.client import Client

ATTEMPT_SECONDS_MAX: Final = 5.0
LEADER_ATTEMPTS_MAX: Final = 50
LEADER_POLL_SECONDS: Final = 0.1
PAUSE_SECONDS: Final = 0.2
MISSING_SECONDS_MAX: Final = 2.0  # a topic that is still unknown after this does not exist


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionResponse(NamedTuple):
    """The part of a leader's response that is about one partition."""

    partition: TopicPartition
    code: int
    message: str | None
    body: Mapping[str, Any]


def partition_responses(
    response: Mapping[str, Any], topics: str = "Topics", name: str = "Name"
) -> Iterator[PartitionResponse]:
    """Split a response that lists topics and their partitions, as most do."""
    for t in response[topics]:
        for p in t["Partitions"]:
            key = TopicPartition(t[name], p["PartitionIndex"])
            yield PartitionResponse(key, p.get("ErrorCode", 0), p.get("ErrorMessage"), p)


def partition_errors(
    api: str, responses: Iterable[PartitionResponse], subject: str = ""
) -> dict[TopicPartition, PenstockError | None]:
    """The error, if any, of each partition; `subject` completes the name of what it is about."""
    return {
        one.partition: outcome(api, one.code, one.message, f"partition {one.partition}{subject}", None)
        for one in responses
    }


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


def listed(
    partitions: Iterable[TopicPartition] | None, name: str = "Name", indexes: str = "PartitionIndexes"
) -> list[dict[str, Any]] | None:
    """Partitions as requests list them; None stands for all."""
    if partitions is None:
        return None
    return [{name: topic, indexes: each} for topic, each in by_topic(partitions).items()]


def with_fields(
    fields: Mapping[TopicPartition, Mapping[str, Any]], name: str = "Name"
) -> list[dict[str, Any]]:
    """Partitions as requests list them, each with its fields."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), values in fields.items():
        grouped.setdefault(topic, []).append({"PartitionIndex": partition, **values})
    return [{name: topic, "Partitions": partitions} for topic, partitions in grouped.items()]


async def call_leaders(
    client: Client,
    api: str,
    partitions: Collection[TopicPartition],
    body: Callable[[list[TopicPartition]], Mapping[str, Any]],
    split: Callable[[Mapping[str, Any]], Iterable[PartitionResponse]] = partition_responses,
    *,
    timeout: float,
) -> dict[TopicPartition, Mapping[str, Any] | PenstockError]:
    """Call the leader of each partition, and again where leadership moved.

    `body` builds the request for one leader; `split` takes its response apart by partition."""
    started = time.monotonic()
    results: dict[TopicPartition, Mapping[str, Any] | PenstockError] = {}
    left = list(partitions)
    while left:
        spent = time.monotonic() - started
        round_seconds = max(0.001, min(ATTEMPT_SECONDS_MAX, timeout - spent))
        by_leader = await _led_by(client, left, results)
        responses = await asyncio.gather(
            *(_call(client, api, leader, body(led), round_seconds) for leader, led in by_leader.items())
        )
        for led, response in zip(by_leader.values(), responses):
            if isinstance(response, PenstockError):
                results.update(dict.fromkeys(led, response))
            else:
                for one in split(response):
                    subject = f"partition {one.partition}"
                    results[one.partition] = outcome(api, one.code, one.message, subject, one.body)
        spent = time.monotonic() - started
        in_time = spent + PAUSE_SECONDS < timeout
        left = [p for p in left if in_time and _should_retry(results[p], spent)]
        if left:
            await asyncio.sleep(PAUSE_SECONDS)
    return {partition: results[partition] for partition in partitions}


async def _led_by(
    client: Client,
    partitions: Iterable[TopicPartition],
    results: dict[TopicPartition, Mapping[str, Any] | PenstockError],
) -> dict[int, list[TopicPartition]]:
    """Partitions by leader; those without a leader get their error at once."""
    by_leader: dict[int, list[TopicPartition]] = {}
    leaders = await client.leaders(sorted({p.topic for p in partitions}), strict=False)
    for partition in partitions:
        leader = leaders.get(partition)
        if leader is not None and leader >= 0:
            by_leader.setdefault(leader, []).append(partition)
        else:
            code = Code.UNKNOWN_TOPIC_OR_PARTITION if leader is None else Code.LEADER_NOT_AVAILABLE
            results[partition] = broker_error("Metadata", code, None, f"partition {partition}")
    return by_leader


async def _call(
    client: Client, api: str, leader: int, body: Mapping[str, Any], timeout: float
) -> Mapping[str, Any] | PenstockError:
    try:
        return await client.call(api, body, to=NodeWithId(leader), timeout=timeout, retry=False)
    except PenstockError as failure:
        if failure.retriable or isinstance(failure, BrokerUnknown):
            return failure
        raise


def _should_retry(result: Mapping[str, Any] | PenstockError, spent_seconds: float) -> bool:
    if not isinstance(result, PenstockError):
        return False
    code = result.facts.get("error_code")
    if code in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID):
        return spent_seconds < MISSING_SECONDS_MAX
    return result.retriable or isinstance(result, BrokerUnknown) or code in RETRIABLE


async def wait_for_leaders(client: Client, name: str) -> list[TopicPartition]:
    """The partitions of a topic, once each has a leader: a new topic takes a moment."""
    for attempt in itertools.count(1):
        leaders = await client.leaders([name], strict=attempt >= LEADER_ATTEMPTS_MAX)
        if leaders and min(leaders.values()) >= 0:
            return sorted(TopicPartition(*partition) for partition in leaders)
        await asyncio.sleep(LEADER_POLL_SECONDS)
    raise AssertionError
