"""Lists the object stores of a cluster: whether tier and backup have what they should.

A listing may take minutes, so it runs beside the collectors, and its result is taken when it is there. What
is missing is listed a second time before it counts.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from penstock.audit.store_evidence import (
    Promise,
    backup_gaps,
    finished_segments,
    object_problems,
)
from penstock.backup.archive import Archive
from penstock.backup.catalogue import Catalogue
from penstock.model import key_names
from penstock.model.durability import partition_subject
from penstock.model.errors import PenstockError
from penstock.model.errors.backup import ManifestInvalid, ObjectMissing
from penstock.tier.format import LOG, MANIFEST, parse_key
from penstock.tier.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.audit.metadata_history import Observation
    from penstock.audit.rules.state import SubjectState
    from penstock.model.durability import Stored
    from penstock.tier.format import SegmentKey
    from penstock.tier.store import StoreSettings

LIST_SECONDS: Final = 3600.0
FIRST_SECONDS: Final = 60.0  # until the first listing: by then, the logs have been observed
READS_MAX: Final = 32  # manifests at the same time

log = structlog.get_logger("penstock.audit")


@dataclass(frozen=True, slots=True)
class Stores:
    """Where a cluster's segments are. Without one, the rules about it find nothing."""

    tier: StoreSettings | None = None
    backup: StoreSettings | None = None


def archives_of(stores: Stores, cluster: str) -> dict[str, Archive]:
    """By the name of the place. `cluster` is Kafka's id."""
    named = {"tier": stores.tier, "backup": stores.backup}
    return {name: Archive(cluster, [Store(each)]) for name, each in named.items() if each is not None}


@dataclass(slots=True)
class StoreCollector:
    """Call `collect` in every cycle; it never waits for a store."""

    stores: Stores
    period_seconds: float = LIST_SECONDS
    failure: str = ""
    _task: asyncio.Task[list[Observation]] | None = None
    _began: float | None = None
    _ranges: dict[SegmentKey, tuple[int, int]] = field(default_factory=dict)  # of the backup

    def collect(self, cluster: str, states: Mapping[bytes, SubjectState], now: float) -> list[Observation]:
        """The result of a listing that has ended, and another listing when it is due."""
        if self.stores == Stores():
            return []
        if self._task is None:
            if self._began is None:
                self._began = now + min(FIRST_SECONDS, self.period_seconds) - self.period_seconds
            if now - self._began >= self.period_seconds:
                self._began = now
                self._task = asyncio.create_task(self._list(cluster, states))
            return []
        if not self._task.done():
            return []
        task, self._task = self._task, None
        try:
            result = task.result()
        except PenstockError as error:
            self.failure = str(error)
            log.warning("object store not listed", **{key_names.ERROR: self.failure})
            return []
        self.failure = ""
        return result

    def disabled(self) -> tuple[str, ...]:
        """The rules that these stores do not feed, each with the reason."""
        result = []
        for rule, store, name in (
            ("tier-object-wrong", self.stores.tier, "tier"),
            ("backup-gap", self.stores.backup, "backup"),
        ):
            if store is None:
                result.append(f"{rule}: the settings name no {name}")
            elif self.failure:
                result.append(f"{rule}: {self.failure}")
        return tuple(result)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _list(self, cluster: str, states: Mapping[bytes, SubjectState]) -> list[Observation]:
        observations: list[Observation] = []
        if self.stores.tier is not None:
            observations += await self._tier(Store(self.stores.tier), cluster, states)
        if self.stores.backup is not None:
            observations += await self._backup(self.stores.backup, cluster, states)
        return observations

    async def _tier(
        self, store: Store, cluster: str, states: Mapping[bytes, SubjectState]
    ) -> list[Observation]:
        first = await self._tier_problems(store, cluster, states)
        if not first:
            return []
        again = await self._tier_problems(store, cluster, states)
        return [observation for key, observation in again.items() if key in first]

    async def _tier_problems(
        self, store: Store, cluster: str, states: Mapping[bytes, SubjectState]
    ) -> dict[str, tuple[str, Stored]]:
        before_ms = int(time.time() * 1000)
        stored: dict[str, dict[str, int]] = {}
        async for one in store.list(cluster):
            if (parsed := parse_key(one.key)) is not None:
                stored.setdefault(parsed[0].segment_id, {})[parsed[1]] = one.size
        return object_problems(finished_segments(list(states.values()), before_ms), stored)

    async def _backup(
        self, settings: StoreSettings, cluster: str, states: Mapping[bytes, SubjectState]
    ) -> list[Observation]:
        """The catalogue is read first: what it records as archived was stored before."""
        store = Store(settings)
        ends = await _archived_ends(Catalogue(store, cluster))
        tier = [] if self.stores.tier is None else [Store(self.stores.tier)]
        archive = Archive(cluster, [store, *tier])
        await archive.load()
        ranges = await self._sound_ranges(archive)
        gaps: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for gap in archive.gaps:
            gaps.setdefault((gap.topic_id, gap.partition), []).append((gap.first, gap.last))
        starts = {state.subject: _log_start(state) for state in list(states.values())}
        observations: list[Observation] = []
        for place in sorted(ends.keys() | ranges.keys()):
            start = starts.get(partition_subject(*place))
            if start is None:
                continue  # a topic that exists no more, or whose log start is not known yet
            promise = Promise(tuple(ranges.get(place, ())), tuple(gaps.get(place, ())), ends.get(place, 0))
            if (facts := backup_gaps(promise, start)) is not None:
                observations.append((partition_subject(*place), facts))
        return observations

    async def _sound_ranges(self, archive: Archive) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """Offsets of every segment that has its manifest and its log. Each manifest is read once."""
        whole = [
            key for key, one in archive.segments.items() if MANIFEST in one.suffixes and LOG in one.suffixes
        ]
        limit = asyncio.Semaphore(READS_MAX)

        async def read(key: SegmentKey) -> None:
            async with limit:
                try:
                    manifest = await archive.manifest(key)
                except (ManifestInvalid, ObjectMissing) as error:
                    log.warning("manifest not readable", segment=key.path(MANIFEST), error=str(error))
                    return
                self._ranges[key] = (manifest.base_offset, manifest.end_offset)

        await asyncio.gather(*(read(key) for key in whole if key not in self._ranges))
        present = set(whole)
        self._ranges = {key: range_ for key, range_ in self._ranges.items() if key in present}
        ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for key, range_ in self._ranges.items():
            ranges.setdefault((key.topic_id, key.partition), []).append(range_)
        return ranges


async def _archived_ends(catalogue: Catalogue) -> dict[tuple[str, int], int]:
    """By topic id and partition, the end that the newest entry of the catalogue records."""
    times = await catalogue.times()
    if not times:
        return {}
    logs = await catalogue.part(await catalogue.entry(times[-1]), "logs") or {}
    return {(topic_id, row[0]): row[1] for topic_id, rows in logs.items() for row in rows}


def _log_start(state: SubjectState) -> int | None:
    """The start of the leader's log, if it was observed."""
    leader = None if state.placement is None else state.replicas.get(str(state.placement.leader))
    return None if leader is None else leader.replica.start
