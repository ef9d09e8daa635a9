"""Gathers what a plan needs from the backup and the cluster."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.backup.in_place.plan import InPlaceFacts, InPlaceRequest, LivePartition, plan_in_place
from penstock.backup.live_log import check_seam
from penstock.backup.raw_fetch import LogId
from penstock.backup.restore_plan import ClusterFacts, Request, RestorePlan, plan_restore
from penstock.backup.restore_store import running_restore
from penstock.kafka.admin import acls, brokers, configs, log_dirs, reassignments, topics
from penstock.kafka.admin.acls import AclFilter
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.link.mirror_topics import closing_acl
from penstock.link.source import log_range
from penstock.link.store import shadows_of_links
from penstock.model.errors import PenstockError
from penstock.model.errors.backup import BackupAmbiguous, BackupDiffers, BackupMissing, RestoreRefused
from penstock.model.shadow_ids import METADATA_VERSION, is_shadow
from penstock.tier.format import id_text

if TYPE_CHECKING:
    from penstock.backup.archive import Archive
    from penstock.backup.catalogue import Catalogue
    from penstock.backup.chain import Chain
    from penstock.backup.in_place.plan import InPlacePlan
    from penstock.backup.layout import Gap
    from penstock.kafka.client import Client


@dataclass(frozen=True, slots=True)
class Selection:
    """What an operator asks for."""

    topic: str = ""
    topic_id: str = ""
    target: str = ""
    until_ms: int | None = None
    retention_ms: int | None = None


async def resolve(catalogue: Catalogue, archive: Archive, selection: Selection) -> tuple[str, str]:
    """The id and the name of the topic that is meant: by id, or the only one of that name."""
    known = await catalogue.topics(selection.until_ms)
    if selection.topic_id:
        if selection.topic_id not in known and selection.topic_id not in archive.topic_ids():
            raise BackupMissing(what=f"topic id {selection.topic_id}", known=_listed(known))
        if selection.topic_id in known:
            return selection.topic_id, known[selection.topic_id].name
        keys = [key for key in archive.segments if key.topic_id == selection.topic_id]
        return selection.topic_id, (await archive.manifest(max(keys))).topic
    matching = sorted(
        (one for one in known.values() if one.name == selection.topic), key=lambda one: one.last_ms
    )
    if not matching:
        raise BackupMissing(what=f"topic {selection.topic!r}", known=_listed(known))
    if len(matching) > 1:
        ids = ", ".join(one.topic_id for one in matching)
        raise BackupAmbiguous(count=len(matching), topic=selection.topic, ids=ids)
    return matching[0].topic_id, matching[0].name


async def restorable(client: Client, catalogue: Catalogue, until_ms: int | None) -> list[str]:
    """Ids of the topics of the last entry that no topic here has the name of, by name."""
    entry = await catalogue.entry_at(until_ms)
    stored = await catalogue.part(entry, "topics") if entry is not None else None
    present = set(await topics.describe(client))
    lost = {one["name"]: topic_id for topic_id, one in (stored or {}).items() if one["name"] not in present}
    return [lost[name] for name in sorted(lost) if not name.startswith(("__", "_penstock."))]


async def make_plan(
    client: Client, archive: Archive, catalogue: Catalogue, selection: Selection
) -> RestorePlan:
    await archive.load()
    topic_id, name = await resolve(catalogue, archive, selection)
    request = Request(topic_id, name, selection.target or name, selection.until_ms, selection.retention_ms)
    known = await catalogue.topic(topic_id, selection.until_ms)
    document: dict[str, Any] = known[0] if known else {"partitions": [], "configs": {}}
    ends: dict[int, int] = {}
    if known is not None:
        logs = await catalogue.part(known[1], "logs") or {}
        ends = {row[0]: row[1] for row in logs.get(topic_id, [])}
    indexes = {row[0] for row in document["partitions"]} | set(archive.partitions(topic_id))
    chains: dict[int, Chain] = {
        index: await archive.chain(topic_id, index, until_ms=selection.until_ms, empty_at=ends.get(index, 0))
        for index in range(max(indexes, default=-1) + 1)
    }
    gaps: dict[int, tuple[Gap, ...]] = {
        index: tuple(sorted(g for g in archive.gaps if (g.topic_id, g.partition) == (topic_id, index)))
        for index in chains
    }
    facts = await cluster_facts(client, request.target)
    return plan_restore(request, chains, gaps, document["configs"], facts, int(time.time() * 1000))


async def make_in_place_plan(
    client: Client, archive: Archive, catalogue: Catalogue, request: InPlaceRequest
) -> InPlacePlan:
    topic = (await topics.describe(client, [request.topic]))[request.topic]
    if isinstance(topic, PenstockError):
        reason = "it does not exist; restore it without --in-place"
        raise RestoreRefused(topic=request.topic, reasons=reason) from topic
    topic_id = id_text(topic.id)
    await archive.load(topic_id)
    chains = {one.index: await archive.chain(topic_id, one.index) for one in topic.partitions}
    live = {}
    for one in topic.partitions:
        place = TopicPartition(topic.name, one.index)
        start, end = await log_range(client, place)
        differs = ""
        if chains[one.index].pieces and chains[one.index].start < start:
            log = LogId(topic.id, one.index)
            try:
                await check_seam(client, archive, chains[one.index], log, start, end, one.leader)
            except BackupDiffers as error:
                differs = str(error.facts["reason"])
        live[one.index] = LivePartition(one.replicas, one.isr, start, end, differs)
    gaps = {
        index: tuple(sorted(g for g in archive.gaps if (g.topic_id, g.partition) == (topic_id, index)))
        for index in chains
    }
    resource = configs.topic(topic.name)
    entries = results_or_raise(await configs.describe(client, [resource]))[resource]
    values = {name: entry.value for name, entry in entries.items()}
    facts = await _in_place_facts(client, catalogue, topic)
    named = replace(request, topic_id=topic_id)
    return plan_in_place(named, chains, gaps, live, values, facts, int(time.time() * 1000))


async def _in_place_facts(client: Client, catalogue: Catalogue, topic: topics.Topic) -> InPlaceFacts:
    registered = await brokers.describe(client)
    cluster = await cluster_facts(client, topic.name)
    closed = cluster.has_authorizer and closing_acl(topic.name) in await acls.describe(client, AclFilter())
    return InPlaceFacts(
        live=frozenset(registered.brokers),
        free_bytes=cluster.free_bytes,
        metadata_level=cluster.metadata_level,
        clock_skew_seconds=await catalogue.clock_skew_seconds(),
        is_mirror=closed,
        running=cluster.running,
        interventions=cluster.interventions,
    )


async def cluster_facts(client: Client, target: str) -> ClusterFacts:
    registered = await brokers.describe(client, shadows=True)
    real = [broker for broker in registered.brokers if not is_shadow(broker)]
    described = (await topics.describe(client, [target]))[target]
    moving = await reassignments.under_way(client)
    shadows = sorted({*filter(is_shadow, registered.brokers), *await shadows_of_links(client)})
    return ClusterFacts(
        brokers=len(real),
        free_bytes=await _free_bytes(client, real),
        has_authorizer=await _has_authorizer(client),
        target_exists=not isinstance(described, PenstockError),
        metadata_level=await _metadata_level(client),
        running=await running_restore(client),
        interventions=(
            *((f"a reassignment of {len(moving)} partitions",) if moving else ()),
            *(f"a link or restore of shadow {broker}" for broker in shadows),
        ),
    )


async def _free_bytes(client: Client, real: list[int]) -> int:
    free = []
    for directories in (await log_dirs.describe(client, real)).values():
        usable = [one.usable_bytes for one in directories if one.error is None and one.usable_bytes >= 0]
        if usable:
            free.append(max(usable))
    return min(free, default=-1)


async def _has_authorizer(client: Client) -> bool:
    try:
        await acls.describe(client, AclFilter())
    except PenstockError:
        return False
    return True


async def _metadata_level(client: Client) -> int:
    feature = (await brokers.features(client)).get(METADATA_VERSION)
    return feature.level if feature is not None else -1


def _listed(known: dict[str, Any]) -> str:
    names = sorted({one.name for one in known.values() if not one.name.startswith("_")})
    return ", ".join(names[:20]) or "none"
