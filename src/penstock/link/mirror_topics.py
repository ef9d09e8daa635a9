"""Mirror topics: which they are, their configs, and the ACL that keeps them closed.

A mirror is closed for writes by an ACL that denies Write to every user, besides the shadow's own refusal:
if the shadow dies, a real broker leads and would accept records. The ACL is created before the topic.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.kafka.admin import acls, configs, topics
from penstock.kafka.admin.acls import Acl, Operation, Permission, ResourceType
from penstock.kafka.admin.configs import Source
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.model.errors import PenstockError
from penstock.model.errors.link import AuthorizerMissing, MirrorTopicInvalid, MirrorTopicTaken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client

EVERY_USER: Final = "User:*"
# Always set on the mirror, since clusters may have other defaults.
SYNCED_ALWAYS: Final = ("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes")
# Set on the mirror if they are set on the source's topic.
SYNCED_IF_SET: Final = (
    "segment.bytes", "segment.ms", "message.timestamp.type", "delete.retention.ms",
    "min.compaction.lag.ms", "max.compaction.lag.ms", "min.cleanable.dirty.ratio",
)  # fmt: skip


def closing_acl(topic: str) -> Acl:
    return Acl(EVERY_USER, Operation.WRITE, ResourceType.TOPIC, topic, permission=Permission.DENY)


def matching(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The topics that a link mirrors: full matches of its patterns. Internal ones are never among them."""
    compiled = [re.compile(pattern) for pattern in patterns]
    return sorted(
        name for name in names if not is_internal(name) and any(one.fullmatch(name) for one in compiled)
    )


def is_internal(topic: str) -> bool:
    return topic.startswith(("__", "_penstock."))


def check_names(patterns: Sequence[str]) -> None:
    for pattern in patterns:
        if is_internal(pattern):
            raise MirrorTopicInvalid(topic=pattern, reason="it is an internal topic")
        try:
            re.compile(pattern)
        except re.error as error:
            raise MirrorTopicInvalid(topic=pattern, reason=f"it is no regular expression: {error}") from error


def synced_configs(entries: Mapping[str, configs.Entry]) -> dict[str, str | None]:
    """The configs of a mirror, from those of its source."""
    always = {name: entries[name].value for name in SYNCED_ALWAYS if name in entries}
    explicit = {
        name: entries[name].value
        for name in SYNCED_IF_SET
        if name in entries and entries[name].source is Source.TOPIC
    }
    return always | explicit


async def close(client: Client, names: Sequence[str]) -> None:
    """Deny writes to these topics. Raises if the cluster has no authorizer."""
    for error in (await acls.create(client, [closing_acl(name) for name in names])).values():
        if error is not None:
            raise AuthorizerMissing(reason=error)


async def open_(client: Client, names: Sequence[str]) -> None:
    """Allow writes again, as the other ACLs have it."""
    for result in (await acls.delete(client, [acls.exactly(closing_acl(name)) for name in names])).values():
        if isinstance(result, PenstockError):
            raise result


async def source_configs(client: Client, name: str) -> dict[str, str | None]:
    resource = configs.topic(name)
    entries = results_or_raise(await configs.describe(client, [resource]))[resource]
    return synced_configs(entries)


async def create_mirror(
    client: Client, name: str, replicas: Mapping[int, Sequence[int]], values: Mapping[str, str | None]
) -> None:
    """Create the topic, or take the one that an earlier attempt has created."""
    shadow = next(iter(replicas.values()))[0]
    existing = (await topics.describe(client, [name]))[name]
    if isinstance(existing, PenstockError):
        new = topics.NewTopic(name, replicas=replicas, configs=values)
        results_or_raise(await topics.create(client, [new]))
    elif any(shadow not in partition.replicas for partition in existing.partitions):
        raise MirrorTopicTaken(topic=name)
