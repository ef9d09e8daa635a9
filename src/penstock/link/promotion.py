"""The steps of a promotion and of a failover. Each is idempotent: a process that takes over repeats it.

A record that the source acknowledges is never lost by a promotion. The source is closed only when each of
its brokers enforces the ACL. Then the link drains to the end of the leaders' logs, not to their high
watermarks, since what is between the two may still be acknowledged; and it waits until no transaction is
open there, since its coordinator may still commit it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from penstock.kafka.admin import (
    acls,
    group_offsets,
    groups,
    reassignments,
    share_groups,
    topics,
    transactions,
)
from penstock.kafka.admin import brokers as broker_calls
from penstock.kafka.admin.groups import GroupType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.routing import NodeWithId
from penstock.link import mirror_topics, source
from penstock.link.group_sync import INTERNAL_GROUPS, WITHOUT_MEMBERS
from penstock.model.errors import PenstockError
from penstock.model.errors.link import (
    GroupsNotCopied,
    LeadersMissing,
    LinkNotDrained,
    MirrorNotReleased,
    SourceNotFenced,
)
from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.link.mirror import Mirror
    from penstock.link.mirror_partition import MirrorPartition

DRAIN_SECONDS_MAX: Final = 120.0
DRAINED_LOOKS: Final = 2  # in a row, so that requests accepted before the ACL have been appended
FENCE_SECONDS_MAX: Final = 30.0
GROUPS_SECONDS_MAX: Final = 30.0
LAST_GROUPS_SECONDS_MAX: Final = 3.0  # before a failover, from a source that may be dying
CATCH_UP_SECONDS_MAX: Final = 10.0  # before a failover, for followers to get what was fetched
LEADERS_SECONDS_MAX: Final = 120.0
REMOVE_SECONDS_MAX: Final = 120.0
POLL_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 0.5


async def fence_source(client: Client, names: Sequence[str]) -> None:
    """Deny writes on every broker of the source. Super users are not bound by it: their writes are lag."""
    try:
        await mirror_topics.close(client, names)
        deadline = time.monotonic() + FENCE_SECONDS_MAX
        for node in sorted((await client.cluster(refresh=True)).nodes):
            expected = {mirror_topics.closing_acl(name) for name in names}
            while not expected <= set(await acls.describe(client, to=NodeWithId(node))):
                if time.monotonic() > deadline:
                    raise SourceNotFenced(reason=f"broker {node} does not enforce the ACL yet")
                await asyncio.sleep(POLL_SECONDS)
    except SourceNotFenced:
        raise
    except PenstockError as error:
        raise SourceNotFenced(reason=error.message) from error


async def drain(mirror: Mirror, names: Sequence[str]) -> None:
    """Wait until every record of these topics is on every in-sync replica here, and producer ids are free.

    The source lists their partitions: those of this process may not be all, right after it was started.
    The source is closed again at each look, in case a process that was suspended has opened it."""
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    looks = 0
    while looks < DRAINED_LOOKS:
        described = results_or_raise(await topics.describe(mirror.client, names))
        places = [
            TopicPartition(topic.name, p.index) for topic in described.values() for p in topic.partitions
        ]
        ends = await source.log_ends(mirror.client, places)
        behind = sum(not _has(mirror.partitions.get(place), end) for place, end in ends.items())
        if not behind:
            await mirror.producer_ids.burn()
            await fence_source(mirror.client, names)
        drained = not behind and not mirror.producer_ids.below
        looks = looks + 1 if drained else 0
        failed = any(one.failed for one in mirror.partitions.values())
        if not drained and (failed or time.monotonic() > deadline):
            raise LinkNotDrained(count=behind, seconds=DRAIN_SECONDS_MAX)
        await asyncio.sleep(LOOK_SECONDS)


def _has(one: MirrorPartition | None, end: int | None) -> bool:
    """Whether a partition is led, and every in-sync replica has it up to this end."""
    if one is None or end is None or one.failed:
        return False
    return one.is_ready and one.led.high_watermark >= end


async def sync_groups(sync: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
    """Copy group offsets until none is left out: that group would read records again."""
    deadline = time.monotonic() + GROUPS_SECONDS_MAX
    while failed := await sync():
        if time.monotonic() > deadline:
            group, reason = next(iter(failed.items()))
            raise GroupsNotCopied(count=len(failed), group=group, reason=reason)
        await asyncio.sleep(LOOK_SECONDS)


async def refuse_groups_on_both_sides(there: Client, here: Client, names: Sequence[str]) -> None:
    """Raise if a group that reads these topics on the source has members here: its offsets are not copied."""
    states = {name: one.state for name, one in (await groups.list_all(here)).items()}
    blocked = []
    for name, listing in sorted((await groups.list_all(there)).items()):
        if name.startswith(INTERNAL_GROUPS) or states.get(name, "") in WITHOUT_MEMBERS:
            continue
        read: Collection[TopicPartition]
        if listing.type is GroupType.SHARE:
            read = await share_groups.describe(there, name)
        else:
            read = await group_offsets.committed(there, name)
        if any(place.topic in names for place in read):
            blocked.append(name)
    if blocked:
        reason = "it has members on both sides; stop those on the destination"
        raise GroupsNotCopied(count=len(blocked), group=blocked[0], reason=reason)


async def step_down(mirror: Mirror) -> None:
    """Let real brokers lead, once they have what was fetched."""
    deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
    while time.monotonic() < deadline:
        if all(one.led.high_watermark >= one.led.end for one in mirror.partitions.values()):
            break
        await asyncio.sleep(POLL_SECONDS)
    await mirror.shadow.step_down()


async def wait_for_leaders(client: Client, names: Sequence[str]) -> None:
    """Wait until real brokers lead all mirrors: also after a shadow died, whose session ends in seconds."""
    deadline = time.monotonic() + LEADERS_SECONDS_MAX
    while True:
        leaders = [p.leader for topic in await _existing(client, names) for p in topic.partitions]
        missing = sum(leader < 0 or is_shadow(leader) for leader in leaders)
        if not missing:
            return
        if time.monotonic() > deadline:
            raise LeadersMissing(count=missing, seconds=LEADERS_SECONDS_MAX)
        await asyncio.sleep(POLL_SECONDS)


async def abort_transactions(client: Client, names: Sequence[str]) -> int:
    """Abort what is open: its coordinator is on the source, so it would block readers forever."""
    places = [
        TopicPartition(topic.name, partition.index)
        for topic in await _existing(client, names)
        for partition in topic.partitions
    ]
    aborted = 0
    for place, active in results_or_raise(await transactions.producers(client, places)).items():
        for producer in active:
            if producer.open_since_offset is not None:
                await transactions.abort(client, place, producer)
                aborted += 1
    return aborted


async def remove_shadow(client: Client, names: Sequence[str], shadow: int) -> None:
    """Remove the shadow from every replica list; then its registration, which alone would leave it there."""
    deadline = time.monotonic() + REMOVE_SECONDS_MAX
    while True:
        targets = {
            TopicPartition(topic.name, partition.index): [r for r in partition.replicas if not is_shadow(r)]
            for topic in await _existing(client, names)
            for partition in topic.partitions
            if any(map(is_shadow, partition.replicas))
        }
        if not targets:
            break
        if time.monotonic() > deadline:
            raise MirrorNotReleased(count=len(targets), shadow=shadow, seconds=REMOVE_SECONDS_MAX)
        await reassignments.alter(client, targets)  # refused while one is under way; read again above
        await asyncio.sleep(POLL_SECONDS)
    registered = await broker_calls.describe(client, fenced=True, shadows=True)
    if shadow in registered.brokers:
        await broker_calls.unregister(client, shadow)


async def _existing(client: Client, names: Sequence[str]) -> list[topics.Topic]:
    """The mirrors that were not deleted meanwhile."""
    described = await topics.describe(client, names)
    return [one for one in described.values() if not isinstance(one, PenstockError)]
