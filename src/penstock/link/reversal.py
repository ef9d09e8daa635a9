"""Reverses an active link: its old source becomes the mirror of what was its destination (failback).

The old source is closed first. What only it has is saved and recorded for all partitions before any of them
is truncated. Then the shadow joins each partition and leads it, and what must go is recorded in the lineage
of the link back; real replicas truncate by it as after a source that truncated. Each step may be repeated by
a process that takes over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.audit import intents
from penstock.kafka.admin import group_offsets, groups, topics
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.groups import GroupType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.metadata_image import PartitionId
from penstock.link import promotion, tails
from penstock.link.group_sync import INTERNAL_GROUPS, WITHOUT_MEMBERS
from penstock.link.lineage import Lineage, lineage_of
from penstock.link.mirror_partition import replica_range
from penstock.link.states import State
from penstock.link.store import LinkStore
from penstock.link.tails import tail_of
from penstock.model.errors import PenstockError
from penstock.model.errors.link import LinkStateConflict, TailStoreMissing
from penstock.model.errors.shadow import PartitionNotLed
from penstock.model.fault_points import declare, reach

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.link.mirror import Mirror
    from penstock.tier.store import Store

SAVED: Final = declare("link.reverse.saved", "the tail of a partition is saved, and that is not recorded")
TRUNCATED: Final = declare("link.reverse.truncated", "every replica is truncated, and that is not recorded")
PREPARED_AT_ONCE_MAX: Final = 20

log = structlog.get_logger()


@dataclass(slots=True)
class Reversal:
    link: str
    source: Client  # of the active side
    brokers: Client  # of the old source
    store: Store | None  # for tails
    tails: dict[str, dict[str, Any]]  # by partition, as recorded
    record: Callable[[dict[str, dict[str, Any]]], Awaitable[None]]

    async def save_tails(self, names: Sequence[str]) -> None:
        """Close the topics, then find, save and record what only they have."""
        await promotion.fence_source(self.brokers, names)
        lineages = await self._lineages()
        for place, end in sorted((await tails.settled_ends(self.brokers, names)).items()):
            if not self._recorded(place) or not tail_of(self.tails[str(place)]).saved:
                await self._save_tail(place, lineages.get(place, Lineage()), end)

    async def truncate(self, mirror: Mirror, names: Sequence[str]) -> bool:
        """Lead every partition and truncate its replicas; true once all of them have."""
        image = mirror.shadow.image
        keys = {
            TopicPartition(name, index): PartitionId(image.topics[name], index)
            for name in names
            for index in image.partitions_of(name)
        }
        await mirror.shadow.join([(place.topic, key) for place, key in sorted(keys.items())])
        lineages = await self._lineages()
        limit = asyncio.Semaphore(PREPARED_AT_ONCE_MAX)

        async def prepare(place: TopicPartition, key: PartitionId) -> None:
            async with limit:
                await self._prepare(mirror, place, key, lineages.get(place, Lineage()))

        await asyncio.gather(*(prepare(place, key) for place, key in keys.items()))
        described = results_or_raise(await topics.describe(self.source, names))
        for name in names:
            await mirror.add_topic(name, described[name])
        if any(
            (one := mirror.partitions.get(place)) is None or one.led.truncating or not one.is_ready
            for place in keys
        ):
            return False
        await clamp_groups(self.brokers, {place: one.end for place, one in mirror.ranges.items()})
        reach(TRUNCATED)
        return True

    async def _prepare(
        self, mirror: Mirror, place: TopicPartition, key: PartitionId, lineage: Lineage
    ) -> None:
        """Lead a partition whose log still ends where its saved tail does, and record what must go."""
        name = f"{place.topic}/{place.partition}"
        if mirror.lineages.get(name, {}).get("topic_id") == str(key.topic_id):
            return
        while True:
            await mirror.shadow.regain(place.topic, key)
            _, end = await replica_range(mirror.shadow, place, key)
            tail = tail_of(self.tails[str(place)])
            if end == tail.end:
                break
            # Super users are not bound by the ACL. While the shadow leads, nothing is appended.
            log.warning("old source has changed", partition=str(place), end=end, saved_to=tail.end)
            await mirror.shadow.release(place.topic, key)
            settled = await tails.settled_ends(self.brokers, [place.topic])
            await self._save_tail(place, lineage, settled[place])
        if tail.emptied:
            actor = f"link {self.link}"
            await mirror.intents.record(intents.log_start(key.topic_id, key.partition, tail.kept, actor))
        truncated = lineage.emptied(tail.kept) if tail.emptied else lineage.truncated(tail.kept)
        log.warning("old source truncated", link=self.link, partition=str(place), before=end, end=tail.kept)
        if mirror.shadow.is_stepping_down:
            raise PartitionNotLed(partition=place, epoch=-1)
        await mirror.write_lineage(place, truncated)
        mirror.lineages[name] = {"topic_id": str(key.topic_id), **truncated.as_json()}

    async def _save_tail(self, place: TopicPartition, lineage: Lineage, end: int) -> None:
        if self.store is None:
            raise TailStoreMissing(link=self.link)
        tail = await tails.find_tail(self.source, self.brokers, place, lineage, end)
        cluster = (await self.brokers.cluster()).id
        tail = await tails.save(self.store, self.brokers, f"{self.link}/{cluster}", place, tail)
        log.info("tail saved", link=self.link, partition=str(place), start=tail.start, end=tail.end)
        reach(SAVED)
        self.tails = {**self.tails, str(place): tail.as_json()}
        await self.record(self.tails)

    def _recorded(self, place: TopicPartition) -> bool:
        return str(place) in self.tails

    async def _lineages(self) -> dict[TopicPartition, Lineage]:
        """Those of the link that is reversed, in the other direction."""
        store = LinkStore(self.source)
        await store.refresh()
        state = store.documents.get(f"status/{self.link}", {}).get("state", "gone")
        if state != State.ACTIVE:
            raise LinkStateConflict(link=self.link, state=state, action="reverse", possible="later")
        prefix = f"{self.link}/"
        result = {}
        for key, document in store.named("lineage").items():
            if key.startswith(prefix):
                topic, _, partition = key.removeprefix(prefix).rpartition("/")
                result[TopicPartition(topic, int(partition))] = lineage_of(document).inverted()
        return result


async def clamp_groups(client: Client, ends: Mapping[TopicPartition, int]) -> None:
    """Groups that have read what was truncated continue at the end. Else they would be reset, and a group
    that only the old source knows would read everything again, or skip."""
    for name, listing in (await groups.list_all(client)).items():
        if name.startswith(INTERNAL_GROUPS) or listing.type is GroupType.SHARE:
            continue
        try:
            committed = await group_offsets.committed(client, name)
            beyond = {
                place: CommittedOffset(ends[place], -1, one.metadata)
                for place, one in committed.items()
                if place in ends and one.offset > ends[place]
            }
            if beyond and listing.state in WITHOUT_MEMBERS:
                results_or_raise(await group_offsets.commit(client, name, beyond))
            elif beyond:
                log.warning("group has members and is beyond the end", group=name)
        except PenstockError as error:
            log.warning("group not clamped", group=name, error=str(error))
