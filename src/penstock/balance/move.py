"""Moves a tenant's partitions to another cell of a real cluster, while its clients work.

    async with Client(bootstrap, security) as client:
        await move_tenant(client, Target(tenant, brokers), rate=50e6, report=print)

Look, let `moving.next_step` decide, act, look again. Ended anywhere, it is resumed by being called
again, by anybody; calling it for a tenant that has moved changes nothing. One move at a time on a
cluster: two would take away each other's throttles. Consumer offsets and transaction state are the
cluster's own topics, on brokers of any cell; they do not move.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.balance.moving import Begin, Done, Elect, Held, Wait, next_step, progress, straddles
from penstock.balance.throttle import lift, throttle
from penstock.kafka import logdirs, reassignments, topics
from penstock.kafka.outcomes import all_done
from penstock.kafka.partitions import TopicPartition
from penstock.model.errors import PenstockError
from penstock.model.errors.balance import MoveStalled
from penstock.model.faults import declare, reach
from penstock.model.ids import BrokerId, tenant_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.balance.moving import Progress, Step, Target
    from penstock.kafka.client import Client

LOOK_SECONDS: Final = 0.5  # between two looks at a batch under way
SIZES_SECONDS_MAX: Final = 5.0  # a broker that does not tell its sizes by then is passed over
SETTLE_SECONDS: Final = 5.0
STALLED_SECONDS: Final = 600.0  # without a partition or a byte more
RATE_DEFAULT: Final = 50e6  # bytes a second that one broker sends or receives for the move

THROTTLED: Final = declare("balance.move.throttled", "throttles are set, no partition of the batch moves yet")
BEGUN: Final = declare("balance.move.begun", "a batch is being copied")
PLACED: Final = declare("balance.move.placed", "all partitions are in place, throttles still set")


async def move_tenant(
    client: Client,
    target: Target,
    *,
    rate: float = RATE_DEFAULT,
    report: Callable[[Progress], None] = lambda _: None,
    look_seconds: float = LOOK_SECONDS,
    stalled_seconds: float = STALLED_SECONDS,
) -> Progress:
    """Returns when every partition of the tenant is in the target cell, led there, unthrottled."""
    told: Progress | None = None
    last_change = time.monotonic()
    settled = _Settled(target)
    while True:
        seen, alive = await observe(client, target)
        held = settled.judged(seen, time.monotonic())
        step = next_step(held, target, alive)
        now = progress(held, target, await _copied(client, held, target))
        if now != told:
            told, last_change = now, time.monotonic()
            report(now)
        if isinstance(step, Done):
            reach(PLACED)
            await lift(client, sorted({each.partition[0] for each in held}), sorted(map(int, alive)))
            return now
        if time.monotonic() - last_change > stalled_seconds:
            raise MoveStalled(tenant=target.tenant, seconds=stalled_seconds, reason=_why(step))
        await _act(client, step, rate)
        if not isinstance(step, Begin):
            await asyncio.sleep(look_seconds)


async def observe(client: Client, target: Target) -> tuple[list[Held], set[BrokerId]]:
    """The tenant's partitions as they are, and which brokers are up."""
    prefix = tenant_prefix(target.tenant)
    cluster = await client.cluster(renew=True)
    before = await reassignments.under_way(client)
    described = all_done(await topics.describe(client))
    mine = {name: topic for name, topic in described.items() if name.startswith(prefix)}
    partitions = [TopicPartition(name, p.index) for name, topic in mine.items() for p in topic.partitions]
    # Asked before and after: a description says of neither beginning nor end where it stands.
    moving = before | (await reassignments.under_way(client))
    sizes = await _sizes(client, partitions)
    held = []
    for name, topic in mine.items():
        for p in topic.partitions:
            key = TopicPartition(name, p.index)
            one = moving.get(key)
            # While one is under way Kafka lists both, those that leave last.
            replicas = [r for r in p.replicas if one is None or r not in one.removing]
            held.append(
                Held(
                    partition=key,
                    replicas=tuple(BrokerId(r) for r in replicas or p.replicas),
                    leader=BrokerId(p.leader) if p.leader >= 0 else None,
                    size_bytes=max(sizes.get(key, {}).values(), default=0),
                    under_way=one is not None,
                )
            )
    return held, {BrokerId(node) for node in cluster.nodes}


class _Settled:
    """Brokers hear of the end of a reassignment later than the controller: what straddles two cells
    and is not listed as under way is taken to be, until it has looked the same for a while."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._since: dict[tuple[str, int], tuple[tuple[BrokerId, ...], float]] = {}

    def judged(self, held: list[Held], now: float) -> list[Held]:
        return [replace(each, under_way=each.under_way or self._doubtful(each, now)) for each in held]

    def _doubtful(self, each: Held, now: float) -> bool:
        if each.under_way or not straddles(each, self._target):
            self._since.pop(each.partition, None)
            return False
        replicas, since = self._since.get(each.partition, ((), now))
        if replicas != each.replicas:
            since = now
        self._since[each.partition] = (each.replicas, since)
        return now - since < SETTLE_SECONDS


async def _act(client: Client, step: Step, rate: float) -> None:
    if isinstance(step, Begin):
        await throttle(client, step.batch, rate)
        reach(THROTTLED)
        wanted = {TopicPartition(*each.partition): list(each.target) for each in step.batch}
        all_done(await reassignments.alter(client, wanted, allow_replication_factor_change=False))
        reach(BEGUN)
    elif isinstance(step, Elect):
        # Those that cannot lead yet are elected at the next look.
        await reassignments.elect(client, [TopicPartition(*each) for each in step.partitions])


async def _copied(client: Client, held: list[Held], target: Target) -> Mapping[tuple[str, int], int]:
    """Bytes that the slowest new replica of each partition under way has."""
    moving = {TopicPartition(*each.partition): each for each in held if each.under_way}
    if not moving:
        return {}
    sizes = await _sizes(client, list(moving), [broker.id for broker in target.brokers])
    return {
        key: min(sizes.get(key, {}).get(replica, 0) for replica in each.replicas)
        for key, each in moving.items()
    }


async def _sizes(
    client: Client, partitions: list[TopicPartition], brokers: list[BrokerId] | None = None
) -> dict[TopicPartition, dict[int, int]]:
    """Bytes by partition and broker. A broker that does not answer has nothing to say."""
    if not partitions:
        return {}
    asked = list(brokers) if brokers is not None else list((await client.cluster()).nodes)
    answers = await asyncio.gather(
        *(
            logdirs.describe(client, [broker], partitions=partitions, timeout=SIZES_SECONDS_MAX)
            for broker in asked
        ),
        return_exceptions=True,
    )
    found: dict[TopicPartition, dict[int, int]] = {}
    for broker, answer in zip(asked, answers):
        if isinstance(answer, PenstockError) and answer.retriable:
            continue
        if isinstance(answer, BaseException):
            raise answer
        for directory in answer[broker]:
            for key, replica in directory.replicas.items():
                found.setdefault(key, {})[broker] = replica.size_bytes
    return found


def _why(step: Step) -> str:
    match step:
        case Wait(reason):
            return reason
        case Elect(partitions):
            return f"{len(partitions)} partitions are not led by their first replica"
        case _:
            return "batches are begun and do not begin"
