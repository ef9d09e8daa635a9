"""Format 1: keys, manifests and tombstones of segments in an object store.

    <prefix>/<kafka cluster id>/<topic id>/<partition>/<20-digit base offset>-<segment id>.<suffix>

The manifest is one line of JSON with sorted keys. It has a CRC32C for each chunk of the log, and the batch
digest of `penstock.wire.digest`, by which copies of the same records are compared.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from penstock.model.errors import PenstockError
from penstock.model.errors.backup import ManifestInvalid, SegmentDamaged
from penstock.wire.digest import BatchDigest, BatchSpan
from penstock.wire.records import batches

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT: Final = 1
CHUNK_BYTES: Final = 4 << 20
LOG, INDEXES, MANIFEST, TOMBSTONE = ".log", ".idx", ".json", ".gone"
SUFFIXES: Final = (LOG, INDEXES, MANIFEST, TOMBSTONE)
CUSTOM_METADATA_VERSION: Final = 1
_custom_metadata = struct.Struct(">BI")
_ID: Final = r"[0-9A-Za-z_-]{22}"
_KEY: Final = re.compile(
    rf"(?:(?P<prefix>.+)/)?(?P<cluster>{_ID})/(?P<topic>{_ID})/(?P<partition>\d+)"
    rf"/(?P<base>\d{{20}})-(?P<segment>{_ID})(?P<suffix>\.\w+)"
)


def id_text(identifier: UUID) -> str:
    """An id as Kafka prints it: 22 characters of base64url."""
    return base64.urlsafe_b64encode(identifier.bytes).rstrip(b"=").decode()


def id_of(text: str) -> UUID:
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


class SegmentKey(NamedTuple):
    """Names a segment within a store, without prefix and suffix."""

    cluster: str
    topic_id: str
    partition: int
    base_offset: int
    segment_id: str

    def path(self, suffix: str, prefix: str = "") -> str:
        name = f"{self.base_offset:020d}-{self.segment_id}{suffix}"
        return joined(prefix, self.cluster, self.topic_id, str(self.partition), name)


def joined(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def parse_key(key: str, prefix: str = "") -> tuple[SegmentKey, str] | None:
    """The segment and the suffix that a key names; None if it is not a key of format 1."""
    match = _KEY.fullmatch(key)
    if match is None or (match["prefix"] or "") != prefix or match["suffix"] not in SUFFIXES:
        return None
    partition, base = int(match["partition"]), int(match["base"])
    return SegmentKey(match["cluster"], match["topic"], partition, base, match["segment"]), match["suffix"]


@dataclass(frozen=True, slots=True)
class Manifest:
    cluster: str
    topic_id: str
    topic: str
    partition: int
    segment_id: str
    base_offset: int
    end_offset: int  # inclusive
    max_timestamp_ms: int
    event_timestamp_ms: int
    broker: int
    leader_epochs: tuple[tuple[int, int], ...]  # epoch and its first offset, rising
    log_bytes: int
    chunk_crc32c: tuple[str, ...]
    batch_digest: str
    chunk_bytes: int = CHUNK_BYTES
    idx_bytes: int = 0
    idx_crc32c: str = "00000000"
    indexes: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # name → start and length
    encryption: Mapping[str, str] | None = None

    @property
    def key(self) -> SegmentKey:
        return SegmentKey(self.cluster, self.topic_id, self.partition, self.base_offset, self.segment_id)


def encode_manifest(manifest: Manifest) -> bytes:
    document = asdict(manifest) | {"format": FORMAT}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decode_manifest(data: bytes, key: SegmentKey) -> Manifest:
    """Read and check a manifest; it must be of the segment that its key names."""
    try:
        document = json.loads(data)
        manifest = _manifest(document)
    except (ValueError, TypeError, KeyError) as failure:
        raise ManifestInvalid(segment=key.path(MANIFEST), reason=str(failure) or repr(failure)) from failure
    if manifest.key != key:
        raise ManifestInvalid(segment=key.path(MANIFEST), reason=f"it is of {manifest.key.path(MANIFEST)}")
    return manifest


def _manifest(document: Any) -> Manifest:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("it is not of format 1")
    names = {one.name for one in fields(Manifest)} | {"format"}
    if set(document) != names:
        raise ValueError(f"its keys differ: {', '.join(sorted(set(document) ^ names))}")
    values = {name: document[name] for name in names if name != "format"}
    values["leader_epochs"] = tuple((int(epoch), int(start)) for epoch, start in values["leader_epochs"])
    values["indexes"] = {name: (int(at), int(size)) for name, (at, size) in values["indexes"].items()}
    values["chunk_crc32c"] = tuple(values["chunk_crc32c"])
    manifest = Manifest(**values)
    numbers = (manifest.partition, manifest.base_offset, manifest.log_bytes, manifest.idx_bytes)
    if any(type(number) is not int or number < 0 for number in numbers) or manifest.chunk_bytes <= 0:
        raise ValueError("a number is negative or not a number")
    if manifest.end_offset < manifest.base_offset:
        raise ValueError(f"it ends at {manifest.end_offset}, below its base offset")
    if len(manifest.chunk_crc32c) != -(-manifest.log_bytes // manifest.chunk_bytes):
        raise ValueError(f"{len(manifest.chunk_crc32c)} chunks for {manifest.log_bytes} bytes")
    starts = [start for _, start in manifest.leader_epochs]
    epochs = [epoch for epoch, _ in manifest.leader_epochs]
    if starts != sorted(starts) or epochs != sorted(epochs):
        raise ValueError("its leader epochs do not rise")
    return manifest


class Origin(NamedTuple):
    """Where the records of a new segment come from."""

    cluster: str
    topic_id: str
    topic: str
    partition: int
    broker: int


def describe_log(
    data: bytes | memoryview,
    origin: Origin,
    *,
    segment_id: str,
    base_offset: int | None = None,
    event_timestamp_ms: int,
) -> Manifest:
    """The manifest of these batches, after a check of their CRCs and order.

    `base_offset` is the first offset covered; batches may begin later, where compaction left a hole."""
    digest = BatchDigest()
    epochs: list[tuple[int, int]] = []
    first = last = max_timestamp = -1
    size = 0
    for batch in _checked_batches(data):
        first = batch.base_offset if first < 0 else first
        last, size = batch.last_offset, size + len(batch.raw)
        max_timestamp = max(max_timestamp, batch.max_timestamp_ms)
        if not epochs or epochs[-1][0] != batch.leader_epoch:
            epochs.append((batch.leader_epoch, batch.base_offset))
        digest.add(BatchSpan(batch.base_offset, batch.last_offset, batch.crc))
    if first < 0 or size != len(data):
        raise SegmentDamaged(
            segment=f"of {origin.topic}-{origin.partition}", reason="it has no whole batches"
        )
    base = first if base_offset is None else min(first, base_offset)
    return Manifest(
        *origin[:4], segment_id, base, last, max_timestamp, event_timestamp_ms, origin.broker,
        tuple(epochs), len(data), chunk_crcs(data), digest.hexdigest(),
    )  # fmt: skip


def _checked_batches(data: bytes | memoryview) -> Any:
    """The batches, intact, at rising offsets and epochs."""
    end, epoch = -1, -1
    for batch in batches(data):
        if not batch.is_intact:
            raise SegmentDamaged(
                segment=f"at offset {batch.base_offset}", reason="the CRC of a batch is wrong"
            )
        if batch.base_offset <= end or batch.leader_epoch < epoch:
            reason = f"offset {batch.base_offset}, epoch {batch.leader_epoch} follows {end}, epoch {epoch}"
            raise SegmentDamaged(segment=f"at offset {batch.base_offset}", reason=reason)
        end, epoch = batch.last_offset, batch.leader_epoch
        yield batch


def chunk_crcs(data: bytes | memoryview, chunk_bytes: int = CHUNK_BYTES) -> tuple[str, ...]:
    view = memoryview(data)
    return tuple(crc_text(view[at : at + chunk_bytes]) for at in range(0, len(view), chunk_bytes))


def crc_text(data: bytes | memoryview) -> str:
    return f"{crc32c(data):08x}"


def check_chunk(manifest: Manifest, number: int, data: bytes | memoryview) -> None:
    """Raise if a chunk of the log is not what the manifest has."""
    expected = min(manifest.chunk_bytes, manifest.log_bytes - number * manifest.chunk_bytes)
    if len(data) != expected:
        raise damaged(manifest, f"chunk {number} has {len(data)} of {expected} bytes")
    if crc_text(data) != manifest.chunk_crc32c[number]:
        raise damaged(manifest, f"the CRC of chunk {number} is wrong")


def check_log(manifest: Manifest, data: bytes | memoryview) -> None:
    """Raise if a whole log is not what the manifest has: chunks, batches and digest."""
    view = memoryview(data)
    if len(view) != manifest.log_bytes:
        raise damaged(manifest, f"it has {len(view)} of {manifest.log_bytes} bytes")
    for number in range(len(manifest.chunk_crc32c)):
        at = number * manifest.chunk_bytes
        check_chunk(manifest, number, view[at : at + manifest.chunk_bytes])
    digest = BatchDigest()
    try:
        for batch in _checked_batches(view):
            digest.add(BatchSpan(batch.base_offset, batch.last_offset, batch.crc))
    except PenstockError as failure:
        raise damaged(manifest, failure.message) from failure
    if digest.hexdigest() != manifest.batch_digest:
        raise damaged(manifest, "the digest of its batches differs")


def damaged(manifest: Manifest, reason: str) -> SegmentDamaged:
    """The error of a log that is not what its manifest has."""
    return SegmentDamaged(segment=manifest.key.path(LOG), reason=reason)


def custom_metadata(manifest: bytes) -> bytes:
    """What Kafka stores with the segment: the CRC of its manifest."""
    return _custom_metadata.pack(CUSTOM_METADATA_VERSION, crc32c(manifest))


@dataclass(frozen=True, slots=True)
class Tombstone:
    at_ms: int
    reason: str
    state: str


def encode_tombstone(tombstone: Tombstone) -> bytes:
    document = asdict(tombstone) | {"format": FORMAT}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decode_tombstone(data: bytes, key: SegmentKey) -> Tombstone:
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise ValueError("it is not of format 1")
        return Tombstone(int(document["at_ms"]), str(document["reason"]), str(document["state"]))
    except (ValueError, TypeError, KeyError, binascii.Error) as failure:
        raise ManifestInvalid(segment=key.path(TOMBSTONE), reason=str(failure) or repr(failure)) from failure
