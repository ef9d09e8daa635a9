"""Catching up with a real leader, so that the shadow is in sync and may lead again.

A shadow that was away has left the in-sync replicas, and a real broker leads. Nothing is written there
meanwhile, so the shadow fetches from the leader's end, as a follower, until the leader adds it; then an
election of the preferred leader, which is the first replica, makes it leader. It waits until all real
in-sync replicas end alike: the shadow stores nothing, so what one of them lacks it may have to get from
the source, which may have deleted it.

`follow` is for a leader that accepts records meanwhile. An in-sync shadow holds up the leader's high
watermark, and stores nothing; so it never claims more than every real in-sync replica has.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.admin import reassignments
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.routing import NodeWithId
from penstock.model.errors import PenstockError
from penstock.model.errors.shadow import PartitionNotLed, ShadowNeverInSync
from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kafka.client import Client
    from penstock.kafka.metadata_image import PartitionId, PartitionState
    from penstock.shadow.broker import ShadowBroker
    from penstock.shadow.partition import LedPartition

IN_SYNC_SECONDS_MAX: Final = 120.0
POLL_SECONDS: Final = 0.2
FOLLOW_WAIT_MS: Final = 20  # producers wait for the next fetch
FOLLOW_POLL_SECONDS: Final = 0.05
FETCH_BYTES_MAX: Final = 1 << 20


@dataclass(slots=True)
class Followed:
    """How a shadow follows one partition."""

    needed: int  # real in-sync replicas; with fewer, the shadow claims nothing more
    claimed: int = 0  # the leader may have acknowledged what is below


async def follow(
    shadow: ShadowBroker, brokers: Client, topic: str, partition: PartitionId, followed: Followed
) -> None:
    """Fetch, as far as every real in-sync replica has the log, until the shadow leads."""
    place = TopicPartition(topic, partition.partition)
    while (state := shadow.image.partitions.get(partition)) is None or state.leader != shadow.id:
        try:
            if state is None or state.leader < 0 or shadow.id not in state.replicas:
                await asyncio.sleep(FOLLOW_POLL_SECONDS)
                continue
            ends = await asyncio.gather(*(shadow.end_on(replica, *place) for replica in _real(state.isr)))
            known = [end for end in ends if end is not None]
            if len(known) < max(len(ends), followed.needed) or min(known) < followed.claimed:
                await asyncio.sleep(FOLLOW_POLL_SECONDS)
                continue
            if shadow.image.partitions.get(partition) != state:
                continue  # nothing is claimed once the shadow is elected: its log may end there
            followed.claimed = min(known)  # before the request: the leader may apply one without a response
            await _fetch_from(shadow, brokers, partition, state, followed.claimed, wait_ms=FOLLOW_WAIT_MS)
        except PenstockError:
            await asyncio.sleep(FOLLOW_POLL_SECONDS)  # the leader has changed, or a replica is away


async def join(shadow: ShadowBroker, brokers: Client, places: Sequence[tuple[str, PartitionId]]) -> None:
    """Become the first replica of partitions that real brokers lead; the others stay as they are."""
    targets = {
        TopicPartition(topic, key.partition): (shadow.id, *_real(state.replicas))
        for topic, key in places
        if (state := shadow.image.partitions.get(key)) is not None and shadow.id not in state.replicas
    }
    if targets:
        results_or_raise(await reassignments.alter(brokers, targets))
    deadline = time.monotonic() + IN_SYNC_SECONDS_MAX
    for topic, key in places:
        while (state := shadow.image.partitions.get(key)) is None or shadow.id not in state.replicas:
            if time.monotonic() > deadline:
                raise ShadowNeverInSync(
                    partition=TopicPartition(topic, key.partition), seconds=IN_SYNC_SECONDS_MAX
                )
            await asyncio.sleep(POLL_SECONDS)


async def regain(shadow: ShadowBroker, brokers: Client, topic: str, partition: PartitionId) -> None:
    """Become in-sync and be elected; returns when the shadow leads."""
    deadline = time.monotonic() + IN_SYNC_SECONDS_MAX
    place = TopicPartition(topic, partition.partition)
    while time.monotonic() < deadline:
        if shadow.is_stepping_down:
            raise PartitionNotLed(partition=place, epoch=-1)
        state = shadow.image.partitions.get(partition)
        if state is not None and state.leader == shadow.id:
            return
        try:
            if state is not None and state.leader >= 0:
                await _fetch_at_end(shadow, brokers, topic, partition, state)
            if state is not None and shadow.id in state.isr:
                if state.replicas[0] != shadow.id:
                    await _order(brokers, place, (shadow.id, *_real(state.replicas)))
                elif _is_one_end(await _ends(shadow, place, state)):
                    await reassignments.elect(brokers, [place])
        except PenstockError:
            pass  # the leader has changed, or is away; tried again until the deadline
        await asyncio.sleep(POLL_SECONDS)
    raise ShadowNeverInSync(partition=place, seconds=IN_SYNC_SECONDS_MAX)


async def renew_epoch(shadow: ShadowBroker, brokers: Client, topic: str, partition: PartitionId) -> None:
    """A real in-sync replica leads for a moment, then the shadow again, in a new leader epoch.

    Repeating it after a crash is harmless: `regain` restores the order of replicas."""
    await release(shadow, brokers, topic, partition)
    await regain(shadow, brokers, topic, partition)


async def release(shadow: ShadowBroker, brokers: Client, topic: str, partition: PartitionId) -> None:
    """Let a real in-sync replica lead, if there is one."""
    place = TopicPartition(topic, partition.partition)
    state = shadow.image.partitions.get(partition)
    if state is not None and state.leader == shadow.id and (real := _real(state.isr)):
        rest = [replica for replica in _real(state.replicas) if replica != real[0]]
        await _order(brokers, place, (real[0], *rest, shadow.id))
        results_or_raise(await reassignments.elect(brokers, [place]))
        deadline = time.monotonic() + IN_SYNC_SECONDS_MAX
        while (state := shadow.image.partitions.get(partition)) is not None and state.leader == shadow.id:
            if time.monotonic() > deadline:
                raise ShadowNeverInSync(partition=place, seconds=IN_SYNC_SECONDS_MAX)
            await asyncio.sleep(POLL_SECONDS)


def abandoned(partitions: Sequence[LedPartition], now: float, seconds: float) -> list[LedPartition]:
    """Partitions that a follower does not fetch any more although it fetches others (KAFKA-18723)."""
    latest: dict[int, float] = {}
    for partition in partitions:
        term = partition.leadership
        for replica in term.followers if term is not None else ():
            fetched = term.last_fetch(replica) if term is not None else None
            latest[replica] = max(latest.get(replica, 0.0), fetched or 0.0)
    return [
        partition
        for partition in partitions
        if (term := partition.leadership) is not None
        and any(
            (fetched := term.last_fetch(replica)) is not None
            and now - fetched > seconds
            and now - latest[replica] < seconds / 4
            for replica in _real(term.state.replicas)
        )
    ]


def _real(replicas: Sequence[int]) -> tuple[int, ...]:
    return tuple(replica for replica in replicas if not is_shadow(replica))


async def _order(brokers: Client, place: TopicPartition, replicas: Sequence[int]) -> None:
    """The same replicas in another order: the first one is the preferred leader."""
    results_or_raise(await reassignments.alter(brokers, {place: replicas}))


async def _ends(shadow: ShadowBroker, place: TopicPartition, state: PartitionState) -> set[int | None]:
    """Where the real in-sync replicas end."""
    return {await shadow.end_on(replica, *place) for replica in _real(state.isr)}


def _is_one_end(ends: set[int | None]) -> bool:
    """Whether they end alike. An end that is not known is like no other."""
    return len(ends) == 1 and None not in ends


async def _fetch_at_end(
    shadow: ShadowBroker, brokers: Client, topic: str, partition: PartitionId, state: PartitionState
) -> None:
    end = await shadow.end_on(state.leader, topic, partition.partition)
    if end is not None:
        await _fetch_from(shadow, brokers, partition, state, end, wait_ms=0)


async def _fetch_from(
    shadow: ShadowBroker,
    brokers: Client,
    partition: PartitionId,
    state: PartitionState,
    offset: int,
    *,
    wait_ms: int,
) -> None:
    requested = {
        "Partition": partition.partition,
        "CurrentLeaderEpoch": state.leader_epoch,
        "FetchOffset": offset,
        "LastFetchedEpoch": -1,
        "LogStartOffset": offset,  # so that DeleteRecords waits for real replicas only
        "PartitionMaxBytes": FETCH_BYTES_MAX,
    }
    body: dict[str, Any] = {
        "ReplicaState": {"ReplicaId": shadow.id, "ReplicaEpoch": shadow.session.broker_epoch},
        "MaxWaitMs": wait_ms,
        "MinBytes": 1,
        "MaxBytes": FETCH_BYTES_MAX,
        "Topics": [{"TopicId": partition.topic_id, "Partitions": [requested]}],
    }
    await brokers.call("Fetch", body, to=NodeWithId(state.leader), lane="follower", retry=False)
