"""Reads a backup: its segments, gaps and logs, from the archive and, if there is one, from the tier."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from penstock.backup.chain import Chain, chain_of
from penstock.backup.layout import GAPS, Gap, parse_gap
from penstock.model.errors.backup import ManifestInvalid, ObjectMissing
from penstock.tier.format import LOG, MANIFEST, check_chunk, damaged, decode_manifest, joined, parse_key
from penstock.wire.digest import BatchDigest, BatchSpan
from penstock.wire.records import batches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from penstock.tier.format import Manifest, SegmentKey
    from penstock.tier.store import Store
    from penstock.wire.records import Batch

READS_MAX: Final = 32  # of manifests at the same time
CHUNKS_MAX: Final = 8  # kept in memory, of 4 MiB each

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoredSegment:
    key: SegmentKey
    store: Store
    suffixes: frozenset[str]
    log_size: int  # −1: there is no log


@dataclass(slots=True)
class Archive:
    """The segments of one cluster in one or two stores. Call `load` first."""

    cluster: str
    stores: Sequence[Store]
    segments: dict[SegmentKey, StoredSegment] = field(default_factory=dict)
    gaps: set[Gap] = field(default_factory=set)
    _manifests: dict[SegmentKey, Manifest] = field(default_factory=dict)
    _chunks: dict[tuple[str, int], bytes] = field(default_factory=dict)
    _indexes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # offset and place of a batch

    async def load(self, topic_id: str | None = None) -> None:
        """List the stores: every topic, or one."""
        self.segments.clear()
        for store in self.stores:
            named: dict[SegmentKey, dict[str, int]] = {}
            async for one in store.list(joined(self.cluster, topic_id or "")):
                parsed = parse_key(one.key)
                if parsed is not None:
                    named.setdefault(parsed[0], {})[parsed[1]] = one.size
            for key, sizes in named.items():
                segment = StoredSegment(key, store, frozenset(sizes), sizes.get(LOG, -1))
                self.segments[key] = segment
        self.gaps = set()
        async for one in self.stores[0].list(joined(self.cluster, GAPS, topic_id or "")):
            if (gap := parse_gap(one.key)) is not None:
                self.gaps.add(gap)

    def topic_ids(self) -> list[str]:
        return sorted({key.topic_id for key, one in self.segments.items() if MANIFEST in one.suffixes})

    def partitions(self, topic_id: str) -> list[int]:
        return sorted({key.partition for key in self._finished(topic_id)})

    def last_segments(self) -> dict[tuple[str, int], SegmentKey]:
        """The finished segment with the highest base offset, of each partition."""
        last: dict[tuple[str, int], SegmentKey] = {}
        for key, one in self.segments.items():
            place = (key.topic_id, key.partition)
            if MANIFEST in one.suffixes and (place not in last or last[place] < key):
                last[place] = key
        return last

    async def last_manifests(self) -> list[Manifest]:
        """Of each partition, the manifest of its last segment; of the one before, if that cannot be read."""
        by_place: dict[tuple[str, int], list[SegmentKey]] = {}
        for key in sorted(key for key, one in self.segments.items() if MANIFEST in one.suffixes):
            by_place.setdefault((key.topic_id, key.partition), []).append(key)
        limit = asyncio.Semaphore(READS_MAX)

        async def last(keys: list[SegmentKey]) -> Manifest | None:
            async with limit:
                for key in reversed(keys):
                    try:
                        return await self.manifest(key)
                    except (ManifestInvalid, ObjectMissing) as error:
                        log.warning("manifest not readable", segment=key.path(MANIFEST), error=error.message)
            return None

        read = await asyncio.gather(*map(last, by_place.values()))
        return [one for one in read if one is not None]

    async def manifests(self, keys: Iterable[SegmentKey]) -> list[Manifest]:
        limit = asyncio.Semaphore(READS_MAX)

        async def one(key: SegmentKey) -> Manifest:
            async with limit:
                return await self.manifest(key)

        return await asyncio.gather(*map(one, keys))

    async def manifest(self, key: SegmentKey) -> Manifest:
        if key not in self._manifests:
            data = await self.segments[key].store.read(key.path(MANIFEST))
            self._manifests[key] = decode_manifest(data, key)
        return self._manifests[key]

    async def chain(
        self, topic_id: str, partition: int, *, until_ms: int | None = None, empty_at: int = 0
    ) -> Chain:
        keys = [key for key in self._finished(topic_id) if key.partition == partition]
        chain = chain_of(await self.manifests(keys), until_ms=until_ms)
        return chain if chain.pieces else Chain(empty_at=empty_at)

    async def check(self, manifest: Manifest) -> None:
        """Read a whole log; raises unless its chunks, batches and digest are those of the manifest."""
        digest = BatchDigest()
        async for part in self.log(manifest, manifest.base_offset):
            for batch in part:
                if not batch.is_intact:
                    raise damaged(manifest, f"the CRC of the batch at {batch.base_offset} is wrong")
                digest.add(BatchSpan(batch.base_offset, batch.last_offset, batch.crc))
        if digest.hexdigest() != manifest.batch_digest:
            raise damaged(manifest, "the digest of its batches differs")

    async def log(self, manifest: Manifest, offset: int) -> AsyncIterator[list[Batch]]:
        """The batches of a segment, chunk by chunk, from about this offset on; chunks are checked."""
        index = self._indexes.setdefault(manifest.segment_id, [(manifest.base_offset, 0)])
        position = index[max(0, bisect_right(index, offset, key=lambda row: row[0]) - 1)][1]
        rest = b""  # of a batch that continues in the next chunk
        while position + len(rest) < manifest.log_bytes:
            number, skipped = divmod(position + len(rest), manifest.chunk_bytes)
            data = rest + (await self._chunk(manifest, number))[skipped:]
            part = list(batches(data))
            if part and position > index[-1][1]:
                index.append((part[0].base_offset, position))
            used = sum(len(batch.raw) for batch in part)
            position, rest = position + used, data[used:]
            yield part
        if rest:
            raise damaged(manifest, "its last batch is not whole")

    async def batches(self, chain: Chain, offset: int) -> AsyncIterator[list[Batch]]:
        """The batches of a chain from this offset on, in parts, each offset once."""
        position = offset
        for piece in chain.from_offset(offset):
            async for part in self.log(piece.manifest, max(position, piece.first)):
                selected = []
                for batch in part:
                    if batch.last_offset < max(position, piece.first) or batch.base_offset > piece.last:
                        continue
                    if batch.base_offset < position and position != offset:
                        raise damaged(piece.manifest, f"offset {position} is within a batch")
                    selected.append(batch)
                    position = batch.last_offset + 1
                if selected:
                    yield selected
                if position > piece.last:
                    break

    async def _chunk(self, manifest: Manifest, number: int) -> bytes:
        """A chunk of a log, checked. The last few are kept."""
        key = (manifest.segment_id, number)
        if key not in self._chunks:
            if manifest.encryption is not None:
                raise damaged(manifest, "it is encrypted, and this process has no key")
            start = number * manifest.chunk_bytes
            length = min(manifest.chunk_bytes, manifest.log_bytes - start)
            store = self.segments[manifest.key].store
            data = await store.read(manifest.key.path(LOG), start, length)
            check_chunk(manifest, number, data)
            while len(self._chunks) >= CHUNKS_MAX:
                del self._chunks[next(iter(self._chunks))]
            self._chunks[key] = data
        return self._chunks[key]

    def _finished(self, topic_id: str) -> list[SegmentKey]:
        return [
            key for key, one in self.segments.items() if key.topic_id == topic_id and MANIFEST in one.suffixes
        ]
