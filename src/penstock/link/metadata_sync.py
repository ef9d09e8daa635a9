"""Which configs, ACLs and quotas follow the source.

A mirror's configs are the link's: they follow by the table of `mirror_topics`. ACLs and quotas may also be
the destination's own. So only what the link has copied is changed or removed later; `copied` is stored
before the copies are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.kafka.admin.acls import Pattern, ResourceType
from penstock.kafka.admin.configs import Source
from penstock.link.mirror_topics import SYNCED_IF_SET, closing_acl, is_internal, synced_configs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.kafka.admin.acls import Acl
    from penstock.kafka.admin.configs import Entry
    from penstock.kafka.admin.quotas import Entity

    QuotaKey = tuple[Entity, str]

PLATFORM_USERS: Final = "_penstock."
WILDCARD: Final = "*"


@dataclass(frozen=True, slots=True)
class AclChanges:
    create: frozenset[Acl]
    delete: frozenset[Acl]
    copied: frozenset[Acl]


@dataclass(frozen=True, slots=True)
class QuotaChanges:
    values: Mapping[QuotaKey, float | None]  # None: removed
    copied: frozenset[QuotaKey]


def config_changes(source: Mapping[str, Entry], here: Mapping[str, Entry]) -> dict[str, str | None]:
    """What to set on a mirror; None removes a config that the source no longer sets."""
    desired = synced_configs(source)
    changes = {
        name: value for name, value in desired.items() if name not in here or here[name].value != value
    }
    stale = [
        name
        for name in SYNCED_IF_SET
        if name not in desired and name in here and here[name].source is Source.TOPIC
    ]
    return changes | dict.fromkeys(stale)


def acl_changes(
    source: Collection[Acl], here: Collection[Acl], copied: Collection[Acl], topics: Collection[str]
) -> AclChanges:
    followed = frozenset(acl for acl in source if follows(acl, topics))
    create = followed - frozenset(here)
    delete = (frozenset(copied) - followed) & frozenset(here)
    return AclChanges(create, delete, (frozenset(copied) & followed) | create)


def follows(acl: Acl, topics: Collection[str]) -> bool:
    """Whether an ACL concerns mirrored topics, or the groups and transactional ids that go with them."""
    name = acl.resource_name
    if (
        acl.principal.removeprefix("User:").startswith(PLATFORM_USERS)
        or name == WILDCARD
        or is_internal(name)
    ):
        return False
    if acl == closing_acl(name):
        return False  # of a link
    if acl.resource_type is ResourceType.TOPIC:
        if acl.pattern is Pattern.PREFIXED:
            return any(topic.startswith(name) for topic in topics)
        return name in topics
    return acl.resource_type in (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


def quota_changes(
    source: Mapping[QuotaKey, float], here: Mapping[QuotaKey, float], copied: Collection[QuotaKey]
) -> QuotaChanges:
    """A limit that the destination has set for the same client stays."""
    followed = {key: value for key, value in source.items() if not _is_platform(key[0])}
    ours = {key for key in followed if key not in here or key in copied}
    changed: dict[QuotaKey, float | None] = {
        key: followed[key] for key in ours if here.get(key) != followed[key]
    }
    stale = [key for key in copied if key not in followed and key in here]
    return QuotaChanges(changed | dict.fromkeys(stale), frozenset(ours))


def _is_platform(entity: Entity) -> bool:
    return any((part.name or "").startswith(PLATFORM_USERS) for part in entity)
