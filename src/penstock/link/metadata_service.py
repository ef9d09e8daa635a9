"""Copies what goes with the records: group offsets, configs, ACLs and quotas.

A failure belongs to the group or the kind that caused it; the others follow. `problems` has the last ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.kafka.admin import acls, configs, group_offsets, groups, quotas, share_groups
from penstock.kafka.admin.acls import Acl, Operation, Pattern, Permission, ResourceType
from penstock.kafka.admin.groups import GroupType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.quotas import EntityComponent
from penstock.link.group_sync import INTERNAL_GROUPS, group_commits, share_starts
from penstock.link.metadata_sync import acl_changes, config_changes, quota_changes
from penstock.model.errors import PenstockError
from penstock.model.errors.link import LinkStateLost
from penstock.model.fault_points import declare, reach

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from penstock.kafka.admin.groups import GroupListing
    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.link.group_sync import MirrorRange
    from penstock.link.metadata_sync import QuotaKey

    Copied = dict[str, Any]

GROUPS_COMMITTED: Final = declare("link.groups.committed", "group offsets are committed on the mirror")
KINDS: Final = ("configs", "acls", "quotas")

log = structlog.get_logger()


class MetadataService:
    def __init__(
        self,
        source: Client,
        brokers: Client,
        copied: Copied,
        save: Callable[[Copied], Awaitable[None]],
        intend: Callable[[Sequence[str]], Awaitable[None]],
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        """`save` and `intend` record what is about to be copied, and topics about to be configured."""
        self._source = source
        self._brokers = brokers
        self._copied: Copied = {"acls": [], "quotas": []} | copied
        self._save = save
        self._intend = intend
        self._confirm = confirm  # raises if another process has taken over
        self.problems: dict[str, str] = {}
        self.groups_synced = 0
        self.group_offsets_clamped = 0

    async def sync_groups(self, ranges: Mapping[TopicPartition, MirrorRange]) -> dict[str, str]:
        """Copy the offsets of every group; returns why some could not be copied."""
        there = await groups.list_all(self._source)
        here = await groups.list_all(self._brokers)
        clamped = synced = 0
        failed: dict[str, str] = {}
        for name, listing in there.items():
            if name.startswith(INTERNAL_GROUPS):
                continue
            try:
                sync = self._sync_share_group if listing.type is GroupType.SHARE else self._sync_group
                clamped += await sync(name, here.get(name), ranges)
                synced += 1
            except LinkStateLost:
                raise
            except PenstockError as error:
                failed[f"group {name}"] = error.message
        self.problems = {key: one for key, one in self.problems.items() if key in KINDS} | failed
        self.groups_synced, self.group_offsets_clamped = synced, clamped
        return failed

    async def sync_metadata(self, names: Sequence[str]) -> None:
        """Configs, ACLs and quotas, one after another."""
        syncs = (self._sync_configs, self._sync_acls, self._sync_quotas)
        for kind, sync in zip(KINDS, syncs, strict=True):
            try:
                await sync(names)
                self.problems.pop(kind, None)
            except LinkStateLost:
                raise
            except PenstockError as error:
                self.problems[kind] = error.message

    async def _sync_group(
        self, name: str, here: GroupListing | None, ranges: Mapping[TopicPartition, MirrorRange]
    ) -> int:
        committed = await group_offsets.committed(self._source, name)
        known = await group_offsets.committed(self._brokers, name) if here is not None else {}
        commits = group_commits(committed, known, ranges, state_here=here.state if here is not None else "")
        if commits.offsets:
            await self._confirm()
            results_or_raise(await group_offsets.commit(self._brokers, name, commits.offsets))
            reach(GROUPS_COMMITTED)
        return commits.clamped

    async def _sync_share_group(
        self, name: str, here: GroupListing | None, ranges: Mapping[TopicPartition, MirrorRange]
    ) -> int:
        there = results_or_raise(await share_groups.describe(self._source, name))
        known = results_or_raise(await share_groups.describe(self._brokers, name)) if here is not None else {}
        starts = share_starts(
            {place: one.start for place, one in there.items()},
            {place: one.start for place, one in known.items()},
            ranges,
            state_here=here.state if here is not None else "",
        )
        if starts.offsets:
            await self._confirm()
            results_or_raise(await share_groups.alter(self._brokers, name, starts.offsets))
            reach(GROUPS_COMMITTED)
        return starts.clamped

    async def _sync_configs(self, names: Sequence[str]) -> None:
        resources = [configs.topic(name) for name in names]
        there = await configs.describe(self._source, resources)
        here = await configs.describe(self._brokers, resources)
        altered = {}
        for resource in resources:
            source, mirror = there[resource], here[resource]
            if isinstance(source, PenstockError) or isinstance(mirror, PenstockError):
                continue  # deleted on one side
            if changed := config_changes(source, mirror):
                log.info("configs changed", topic=resource.name, configs=sorted(changed))
                altered[resource] = configs.changes(changed)
        if altered:
            await self._intend([resource.name for resource in altered])
            results_or_raise(await configs.alter(self._brokers, altered))

    async def _sync_acls(self, names: Sequence[str]) -> None:
        copied = [_acl_of(row) for row in self._copied["acls"]]
        changes = acl_changes(
            await acls.describe(self._source), await acls.describe(self._brokers), copied, names
        )
        if changes.create or changes.delete:
            rows = sorted(map(_acl_row, changes.copied | changes.delete))
            await self._record(acls=rows)
            results_or_raise(await acls.create(self._brokers, list(changes.create)))
            results_or_raise(await acls.delete(self._brokers, [acls.exactly(acl) for acl in changes.delete]))
            await self._record(acls=sorted(map(_acl_row, changes.copied)))

    async def _sync_quotas(self, _: Sequence[str]) -> None:
        copied = {_quota_key(row) for row in self._copied["quotas"]}
        changes = quota_changes(
            _flat(await quotas.describe(self._source)), _flat(await quotas.describe(self._brokers)), copied
        )
        if changes.values:
            await self._record(quotas=sorted(map(_quota_row, changes.copied | copied)))
            by_entity: dict[quotas.Entity, dict[str, float | None]] = {}
            for (entity, key), value in changes.values.items():
                by_entity.setdefault(entity, {})[key] = value
            results_or_raise(await quotas.alter(self._brokers, by_entity))
            await self._record(quotas=sorted(map(_quota_row, changes.copied)))

    async def _record(self, **values: Any) -> None:
        copied = self._copied | values
        await self._save(copied)
        self._copied = copied


def _acl_row(acl: Acl) -> list[Any]:
    return [
        acl.principal, int(acl.operation), int(acl.resource_type), acl.resource_name,
        int(acl.pattern), int(acl.permission), acl.host,
    ]  # fmt: skip


def _acl_of(row: Sequence[Any]) -> Acl:
    principal, operation, resource, name, pattern, permission, host = row
    return Acl(
        principal, Operation(operation), ResourceType(resource), name,
        Pattern(pattern), Permission(permission), host,
    )  # fmt: skip


def _flat(limits: Mapping[quotas.Entity, Mapping[str, float]]) -> dict[QuotaKey, float]:
    return {(entity, key): value for entity, values in limits.items() for key, value in values.items()}


def _quota_row(key: QuotaKey) -> list[Any]:
    return [sorted([part.kind, part.name or ""] for part in key[0]), key[1]]


def _quota_key(row: Sequence[Any]) -> QuotaKey:
    return frozenset(EntityComponent(kind, name or None) for kind, name in row[0]), row[1]
