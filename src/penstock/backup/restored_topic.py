"""What belongs to a restored topic besides its records: configs, ACLs and group offsets."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.backup.restore_plan import SAFE_CONFIGS
from penstock.kafka.admin import acls, configs, group_offsets, groups, share_groups, topics
from penstock.kafka.admin.acls import Acl, Operation, Pattern, Permission, ResourceType
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.groups import GroupType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.link.group_sync import WITHOUT_MEMBERS, MirrorRange, group_commits
from penstock.link.mirror_topics import closing_acl
from penstock.model.errors import PenstockError
from penstock.model.errors.backup import RestoreRefused, RestoreStuck
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from penstock.backup.catalogue import Catalogue
    from penstock.backup.chain import Chain
    from penstock.backup.restore_plan import Request
    from penstock.kafka.client import Client
    from penstock.shadow.broker import ShadowBroker

CREATED_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.05

log = structlog.get_logger()


def configs_meanwhile(final: Mapping[str, str | None]) -> dict[str, str | None]:
    """The configs until the log is proved: nothing expires or is compacted."""
    return {**final, **SAFE_CONFIGS}


async def create_led_topic(
    client: Client,
    shadow: ShadowBroker,
    topic: str,
    replicas: Mapping[int, Sequence[int]],
    values: Mapping[str, str | None],
) -> UUID:
    """Create a topic whose first replicas are the shadow, or take what an earlier attempt has created."""
    new = topics.NewTopic(topic, replicas=replicas, configs=values)
    error = (await topics.create(client, [new]))[topic]
    if isinstance(error, PenstockError) and error.facts.get("error_code") != Code.TOPIC_ALREADY_EXISTS:
        raise error
    deadline = time.monotonic() + CREATED_SECONDS_MAX
    # The metadata log has it before every broker's metadata does.
    while len(states := shadow.image.partitions_of(topic)) < len(replicas):
        if time.monotonic() > deadline:
            raise RestoreStuck(restore=topic, seconds=CREATED_SECONDS_MAX, reason="it is not created")
        await asyncio.sleep(POLL_SECONDS)
    if any(shadow.id not in state.replicas for state in states.values()):
        raise RestoreRefused(topic=topic, reasons="a topic of this name was created meanwhile")
    return shadow.image.topics[topic]


async def set_configs(client: Client, topic: str, final: Mapping[str, str | None]) -> None:
    """Replace the configs of the restore by the topic's own."""
    values: dict[str, str | None] = dict.fromkeys(SAFE_CONFIGS)
    changes = {configs.topic(topic): configs.changes({**values, **final})}
    for error in (await configs.alter(client, changes)).values():
        if error is not None:
            raise error


async def restore_access(
    client: Client, catalogue: Catalogue, request: Request, chains: Mapping[int, Chain], *, at_ms: int | None
) -> dict[str, Any]:
    """ACLs and group offsets of the topic, as the catalogue has them; a report of what was done."""
    known = await catalogue.topic(request.topic_id, at_ms)
    if known is None:
        return {"acls": 0, "groups": 0, "clamped": 0, "groups_skipped": []}
    _, entry = known
    created = await _restore_acls(client, await catalogue.part(entry, "acls") or [], request.target)
    stored = await catalogue.part(entry, "groups") or {}
    report = await _restore_groups(client, stored, request, chains)
    return {"acls": created, **report}


async def _restore_acls(client: Client, rows: list[list[Any]], topic: str) -> int:
    acls_due = [
        Acl(
            row[0],
            Operation(row[1]),
            ResourceType(row[2]),
            row[3],
            Pattern(row[4]),
            Permission(row[5]),
            row[6],
        )
        for row in rows
        if row[2] == ResourceType.TOPIC and row[4] == Pattern.LITERAL and row[3] == topic
    ]
    acls_due = [acl for acl in acls_due if acl != closing_acl(topic)]
    for error in (await acls.create(client, acls_due)).values() if acls_due else ():
        if error is not None:
            raise error
    return len(acls_due)


async def _restore_groups(
    client: Client, stored: Mapping[str, Any], request: Request, chains: Mapping[int, Chain]
) -> dict[str, Any]:
    """Commit offsets, clamped to the restored range. A group with members stays as it is."""
    here = await groups.list_all(client)
    ranges = {
        TopicPartition(request.target, index): MirrorRange(chain.start, chain.end)
        for index, chain in chains.items()
    }
    restored, clamped, skipped = 0, 0, []
    for name, group in stored.items():
        offsets = _offsets_of(group["offsets"], request)
        if not offsets:
            continue
        state = here[name].state if name in here else ""
        if state not in WITHOUT_MEMBERS:
            skipped.append(name)
            continue
        commits = group_commits(offsets, {}, ranges, state_here=state)
        try:
            if group["type"] == GroupType.SHARE:
                starts = {place: one.offset for place, one in commits.offsets.items()}
                results_or_raise(await share_groups.alter(client, name, starts))
            else:
                results_or_raise(await group_offsets.commit(client, name, commits.offsets))
        except PenstockError as error:
            log.warning("group not restored", group=name, error=str(error))
            skipped.append(name)
            continue
        restored += 1
        clamped += commits.clamped
    return {"groups": restored, "clamped": clamped, "groups_skipped": skipped}


def _offsets_of(offsets: Mapping[str, list[Any]], request: Request) -> dict[TopicPartition, CommittedOffset]:
    """A group's offsets of this topic. Leader epochs of the old topic mean nothing in the new one."""
    result = {}
    for place, (offset, _, metadata) in offsets.items():
        topic_id, _, partition = place.partition("/")
        if topic_id == request.topic_id:
            result[TopicPartition(request.target, int(partition))] = CommittedOffset(offset, -1, metadata)
    return result
