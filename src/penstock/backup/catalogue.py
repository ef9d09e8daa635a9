"""The catalogue: what a cluster had at a time, by topic id, so that a re-created topic is another topic.

An entry refers to its parts by their SHA-256, so an unchanged part is stored once. Parts are:

  topics    id → name, partitions with leader epoch and replicas, explicit configs
  logs      id → [partition, stored end, high watermark, leader epoch, log start], as the archiver has them
  groups    group → type and offsets by `<topic id>/<partition>`
  acls      every ACL
  registry  every entity of the platform's registry
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.backup.layout import (
    CATALOGUE,
    ENTRIES,
    canonical,
    entry_key,
    entry_time,
    part_key,
)
from penstock.model.errors.backup import CatalogueInvalid, ObjectExists, ObjectMissing
from penstock.model.fault_points import declare, reach
from penstock.tier.format import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.tier.store import Store

FORMAT: Final = 1
READS_MAX: Final = 32  # of entries at the same time
PROMPT_PARTS: Final = ("topics", "acls", "registry")  # a change of one is written at once
WRITTEN: Final = declare("backup.catalogue.written", "an entry of the catalogue is stored")

Document = dict[str, Any]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Entry:
    at_ms: int
    parts: Mapping[str, str]  # name → SHA-256


@dataclass(frozen=True, slots=True)
class TopicHistory:
    topic_id: str
    name: str
    partitions: int
    first_ms: int  # the first entry that has it
    last_ms: int  # the last one


def is_due(before: Entry | None, parts: Mapping[str, str], elapsed_ms: float, interval_ms: int) -> bool:
    """Whether to write an entry: a prompt part has changed, or the interval is over.

    `elapsed_ms` is the time since the last entry; below 0, a clock was set back."""
    if before is None or not 0 <= elapsed_ms < interval_ms:
        return True
    return any(before.parts.get(name) != parts.get(name) for name in PROMPT_PARTS)


def digest_of(document: Any) -> str:
    return hashlib.sha256(canonical(document)).hexdigest()


class Catalogue:
    """The catalogue of one cluster in a store."""

    def __init__(self, store: Store, cluster: str) -> None:
        self._store = store
        self.cluster = cluster
        self.last: Entry | None = None
        self._parts: dict[str, Any] = {}
        self._reused: dict[str, bytes] = {}  # parts of the last entry that were stored before

    async def times(self) -> list[int]:
        """When entries were written, in milliseconds, oldest first."""
        prefix = joined(self.cluster, CATALOGUE, ENTRIES)
        listed = [entry_time(one.key) async for one in self._store.list(prefix)]
        return sorted(at for at in listed if at is not None)

    async def clock_skew_seconds(self) -> float:
        """By how much the store's clock is ahead of the one that wrote the last entry; 0 without one."""
        prefix = joined(self.cluster, CATALOGUE, ENTRIES)
        stored = [
            (at, one.modified_ms)
            async for one in self._store.list(prefix)
            if (at := entry_time(one.key)) is not None
        ]
        at, modified_ms = max(stored, default=(0, 0))
        return (modified_ms - at) / 1000

    async def resume(self) -> None:
        self.last = await self.entry_at()

    async def entry(self, at_ms: int) -> Entry:
        key = entry_key(self.cluster, at_ms)
        data = await self._store.read(key)
        try:
            document = json.loads(data)
            if document["format"] != FORMAT:
                raise ValueError("it is of another format")
            return Entry(int(document["at_ms"]), dict(document["parts"]))
        except (ValueError, TypeError, KeyError) as failure:
            raise CatalogueInvalid(key=key, reason=str(failure) or repr(failure)) from failure

    async def entry_at(self, at_ms: int | None = None) -> Entry | None:
        """The last entry up to a time that can be read; None if there is none."""
        for at in reversed(await self._times_to(at_ms)):
            if (entry := await self._readable(at)) is not None:
                return entry
        return None

    async def entries(self, times: Iterable[int]) -> list[Entry]:
        """All of them; raises if one cannot be read."""
        limit = asyncio.Semaphore(READS_MAX)

        async def one(at: int) -> Entry:
            async with limit:
                return await self.entry(at)

        return await asyncio.gather(*map(one, times))

    async def part(self, entry: Entry, name: str) -> Any:
        """A part of an entry, checked against its SHA-256; None if the entry has none."""
        digest = entry.parts.get(name)
        if digest is None:
            return None
        if digest not in self._parts:
            key = part_key(self.cluster, digest)
            data = await self._store.read(key)
            if hashlib.sha256(data).hexdigest() != digest:
                raise CatalogueInvalid(key=key, reason="its SHA-256 is another")
            self._parts = {digest: json.loads(data)}
        return self._parts[digest]

    async def write(self, parts: Mapping[str, Any], now_ms: int) -> None:
        """Store the parts that are new, then the entry. It never sorts before the last one."""
        if self.last is not None:
            now_ms = max(now_ms, self.last.at_ms + 1)  # a clock was set back
        digests = {name: digest_of(document) for name, document in parts.items()}
        known = set(self.last.parts.values()) if self.last is not None else set()
        # An expiry that had not seen the last entry may have deleted a part which that entry uses again.
        for digest, data in self._reused.items():
            await self._store.create(part_key(self.cluster, digest), data)
        self._reused = {}
        for name, digest in digests.items():
            if digest not in known:
                data = canonical(parts[name])
                if not await self._store.create(part_key(self.cluster, digest), data):
                    self._reused[digest] = data
        entry = Entry(now_ms, digests)
        document = {"format": FORMAT, "at_ms": now_ms, "cluster": self.cluster, "parts": digests}
        try:
            await self._store.create(entry_key(self.cluster, now_ms), canonical(document))
        except ObjectExists:
            # Another process wrote in the same millisecond; its entry is as good.
            return
        reach(WRITTEN)
        self.last = entry

    async def topics(self, at_ms: int | None = None) -> dict[str, TopicHistory]:
        """Every topic id that the catalogue has seen up to a time."""
        limit = asyncio.Semaphore(READS_MAX)

        async def one(at: int) -> Entry | None:
            async with limit:
                return await self._readable(at)

        read = await asyncio.gather(*map(one, await self._times_to(at_ms)))
        return await self.history([entry for entry in read if entry is not None], lenient=True)

    async def history(self, entries: Iterable[Entry], *, lenient: bool = False) -> dict[str, TopicHistory]:
        """Every topic id of these entries, which are sorted by time; `lenient`: of those that can be read."""
        history: dict[str, TopicHistory] = {}
        for entry in entries:
            try:
                topics = await self.part(entry, "topics") or {}
            except (CatalogueInvalid, ObjectMissing) as error:
                if not lenient:
                    raise
                log.warning("topics of an entry not readable", at_ms=entry.at_ms, error=error.message)
                continue
            for topic_id, topic in topics.items():
                first = history[topic_id].first_ms if topic_id in history else entry.at_ms
                count = len(topic["partitions"])
                history[topic_id] = TopicHistory(topic_id, topic["name"], count, first, entry.at_ms)
        return history

    async def topic(self, topic_id: str, at_ms: int | None = None) -> tuple[Document, Entry] | None:
        """A topic as the catalogue had it last, up to a time. Entries are searched from the newest."""
        seen: set[str] = set()
        for at in reversed(await self._times_to(at_ms)):
            entry = await self._readable(at)
            if entry is None or (digest := entry.parts.get("topics", "")) in seen:
                continue
            seen.add(digest)
            try:
                topics = await self.part(entry, "topics") or {}
            except (CatalogueInvalid, ObjectMissing) as error:
                log.warning("topics of an entry not readable", at_ms=at, error=error.message)
                continue
            if topic_id in topics:
                return topics[topic_id], entry
        return None

    async def _times_to(self, at_ms: int | None) -> list[int]:
        times = await self.times()
        return times if at_ms is None else times[: bisect_right(times, at_ms)]

    async def _readable(self, at_ms: int) -> Entry | None:
        """An entry, or None: a damaged one must not prevent restores from the others."""
        try:
            return await self.entry(at_ms)
        except (CatalogueInvalid, ObjectMissing) as error:
            log.warning("catalogue entry not readable", at_ms=at_ms, error=error.message)
            return None
