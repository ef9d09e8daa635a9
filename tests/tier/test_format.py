"""Format 1: golden files, keys, manifests, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors.backup import ManifestInvalid, SegmentDamaged
from penstock.tier.format import (
    LOG,
    MANIFEST,
    SegmentKey,
    Tombstone,
    check_chunk,
    check_log,
    chunk_crcs,
    custom_metadata,
    decode_manifest,
    decode_tombstone,
    encode_manifest,
    encode_tombstone,
    id_of,
    id_text,
    parse_key,
)
from penstock.wire.digest import BatchDigest, spans
from tests.tier.segments import CLUSTER, SEGMENT_ID, TOPIC_ID, batch, log_of, manifest_of

if TYPE_CHECKING:
    from uuid import UUID

GOLDEN = Path(__file__).parent / "golden"
KEY = SegmentKey(CLUSTER, TOPIC_ID, 3, 10, SEGMENT_ID)
SEGMENT = batch(10) + batch(12, 3, epoch=4)


def test_the_golden_segment_is_what_is_written_today() -> None:
    assert (GOLDEN / "archive.log").read_bytes() == SEGMENT
    assert (GOLDEN / "archive.json").read_bytes() == encode_manifest(manifest_of(SEGMENT))


def test_the_golden_manifest_is_read_and_describes_its_log() -> None:
    manifest = decode_manifest((GOLDEN / "archive.json").read_bytes(), KEY)
    check_log(manifest, (GOLDEN / "archive.log").read_bytes())
    assert manifest.leader_epochs == ((0, 10), (4, 12))
    assert (manifest.base_offset, manifest.end_offset) == (10, 14)
    assert manifest.batch_digest == BatchDigest(spans(SEGMENT, verify=True)).hexdigest()


def test_a_segment_may_cover_offsets_before_its_first_batch() -> None:
    assert manifest_of(SEGMENT, base=7).base_offset == 7
    assert manifest_of(SEGMENT, base=11).base_offset == 10


@given(st.uuids(), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.sampled_from(["", "a", "a/b"]))
def test_keys_are_read_as_they_were_written(topic: UUID, partition: int, base: int, prefix: str) -> None:
    key = SegmentKey(CLUSTER, id_text(topic), partition, base, id_text(topic))
    assert parse_key(key.path(LOG, prefix), prefix) == (key, LOG)
    assert id_of(key.topic_id) == topic


@pytest.mark.parametrize("key", ["", "probe", f"{CLUSTER}/catalogue/x.json", KEY.path(".tmp"), KEY.path("")])
def test_other_objects_are_no_segments(key: str) -> None:
    assert parse_key(key) is None


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"end_offset": 1},
        {"log_bytes": -1},
        {"chunk_crc32c": []},
        {"segment_id": "another"},
        {"leader_epochs": [[4, 10], [0, 12]]},
        {"surprise": 1},
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(change: dict[str, object]) -> None:
    document = json.loads(encode_manifest(manifest_of(SEGMENT))) | change
    with pytest.raises(ManifestInvalid):
        decode_manifest(json.dumps(document).encode(), KEY)


def test_bytes_that_are_no_json_are_refused() -> None:
    with pytest.raises(ManifestInvalid):
        decode_manifest(b"{", KEY)
    with pytest.raises(ManifestInvalid):
        decode_tombstone(b"[]", KEY)


def test_a_damaged_log_is_refused() -> None:
    manifest = manifest_of(SEGMENT)
    damaged = bytearray(SEGMENT)
    damaged[-1] ^= 1
    with pytest.raises(SegmentDamaged, match="chunk 0"):
        check_log(manifest, bytes(damaged))
    with pytest.raises(SegmentDamaged, match="bytes"):
        check_log(manifest, SEGMENT[:-1])
    with pytest.raises(SegmentDamaged, match="bytes"):
        check_chunk(manifest, 0, SEGMENT[:-1])


@pytest.mark.parametrize(
    "log", [b"", SEGMENT[:-1], batch(12) + batch(10), batch(10, epoch=4) + batch(12, epoch=3)]
)
def test_a_log_that_is_not_whole_or_not_in_order_gets_no_manifest(log: bytes) -> None:
    with pytest.raises(SegmentDamaged):
        manifest_of(log)


def test_a_batch_with_a_wrong_crc_gets_no_manifest() -> None:
    damaged = bytearray(log_of(0, 2))
    damaged[-1] ^= 1
    with pytest.raises(SegmentDamaged, match="CRC"):
        manifest_of(bytes(damaged))


def test_chunks_and_custom_metadata_have_their_crcs() -> None:
    assert chunk_crcs(b"123456789", 9) == ("e3069283",)
    assert chunk_crcs(b"1234567890", 9)[1] == chunk_crcs(b"0")[0]
    assert custom_metadata(b"123456789") == bytes.fromhex("01e3069283")


def test_tombstones_are_read_as_they_were_written() -> None:
    tombstone = Tombstone(5, "retention", "DELETE_SEGMENT_STARTED")
    assert decode_tombstone(encode_tombstone(tombstone), KEY) == tombstone
    assert KEY.path(MANIFEST, "x").startswith("x/" + CLUSTER)


def test_the_manifest_of_the_brokers_plugin_is_read_and_written_alike() -> None:
    data = (GOLDEN / "manifest.json").read_bytes()
    document = json.loads(data)
    names = ("cluster", "topic_id", "partition", "base_offset", "segment_id")
    manifest = decode_manifest(data, SegmentKey(*(document[name] for name in names)))
    assert encode_manifest(manifest) == data.rstrip(b"\n")
