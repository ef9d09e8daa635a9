"""Partitions: their names, and calls that go to the leader of each."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.kafka.refusals import refusal
from penstock.kafka.routing import NodeWithId
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import BrokerUnknown
from penstock.wire.codes import RETRIABLE, Code

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from penstock.kafka.client import Client

ATTEMPT_SECONDS_MAX: Final = 5.0
PAUSE_SECONDS: Final = 0.2
PAUSE_SECONDS_MISSING: Final = 2.0  # a topic that is still not there after this is not on its way

V = TypeVar("V")


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Said(NamedTuple):
    """What a leader answered about one partition."""

    partition: TopicPartition
    code: int
    message: str | None
    answer: Mapping[str, Any]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


async def ask_leaders(
    client: Client,
    api: str,
    partitions: Collection[TopicPartition],
    body: Callable[[list[TopicPartition]], Mapping[str, Any]],
    said: Callable[[Mapping[str, Any]], Iterable[Said]],
    *,
    timeout: float,
) -> dict[TopicPartition, Mapping[str, Any] | PenstockError]:
    """Ask the leader of each partition, again where leadership moved; an answer or error for each."""
    started = time.monotonic()
    results: dict[TopicPartition, Mapping[str, Any] | PenstockError] = {}
    left = list(partitions)
    while left:
        spent = time.monotonic() - started
        round_seconds = max(0.001, min(ATTEMPT_SECONDS_MAX, timeout - spent))
        by_leader = await _led_by(client, left, results)
        answers = await asyncio.gather(
            *(_ask(client, api, leader, body(mine), round_seconds) for leader, mine in by_leader.items())
        )
        for mine, answer in zip(by_leader.values(), answers):
            if isinstance(answer, PenstockError):
                results.update(dict.fromkeys(mine, answer))
            else:
                for one in said(answer):
                    results[one.partition] = (
                        refusal(api, one.code, one.message, f"partition {one.partition}")
                        if one.code != Code.NONE
                        else one.answer
                    )
        spent = time.monotonic() - started
        left = [p for p in left if _again(results[p], spent)] if spent + PAUSE_SECONDS < timeout else []
        if left:
            await asyncio.sleep(PAUSE_SECONDS)
    return {partition: results[partition] for partition in partitions}


async def _led_by(
    client: Client,
    partitions: Iterable[TopicPartition],
    results: dict[TopicPartition, Mapping[str, Any] | PenstockError],
) -> dict[int, list[TopicPartition]]:
    """Partitions by leader; those without one get their error at once."""
    by_leader: dict[int, list[TopicPartition]] = {}
    leaders = await client.leaders(sorted({p.topic for p in partitions}), strict=False)
    for partition in partitions:
        leader = leaders.get((partition.topic, partition.partition))
        if leader is None:
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
            results[partition] = refusal("Metadata", code, None, f"partition {partition}")
        elif leader < 0:
            code = Code.LEADER_NOT_AVAILABLE
            results[partition] = refusal("Metadata", code, None, f"partition {partition}")
        else:
            by_leader.setdefault(leader, []).append(partition)
    return by_leader


async def _ask(
    client: Client, api: str, leader: int, body: Mapping[str, Any], timeout: float
) -> Mapping[str, Any] | PenstockError:
    try:
        return await client.call(api, body, to=NodeWithId(leader), timeout=timeout, again=False)
    except PenstockError as failure:
        if failure.retriable or isinstance(failure, BrokerUnknown):
            return failure
        raise


def _again(result: Mapping[str, Any] | PenstockError, spent_seconds: float) -> bool:
    if not isinstance(result, PenstockError):
        return False
    code = result.facts.get("error_code")
    if code in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID):
        return spent_seconds < PAUSE_SECONDS_MISSING
    return result.retriable or isinstance(result, BrokerUnknown) or code in RETRIABLE
