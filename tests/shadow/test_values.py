"""Leader epochs, the metadata image, the window of batches and the identity file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from penstock.kafka.metadata_image import MetadataImage, PartitionId, PartitionState
from penstock.model.errors.shadow import PartitionNotLed, ShadowStateUnreadable
from penstock.model.shadow_ids import SHADOW_IDS, is_shadow
from penstock.shadow.epoch_history import NO_EPOCHS, EpochStart
from penstock.shadow.identity import load_identity
from penstock.shadow.leadership import Leadership
from penstock.shadow.partition import LedPartition, RawBatch, with_epoch
from penstock.wire.logs import Entry
from penstock.wire.records import Record, batches, write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TOPIC = UUID(int=9)
KEY = PartitionId(TOPIC, 0)


def raw(base: int, count: int = 1) -> RawBatch:
    data = write([Record(base + i, 1, None, b"v") for i in range(count)], leader_epoch=90)
    return RawBatch(base, base + count - 1, data)


def entry(name: str, **values: Any) -> Entry:
    return Entry(name, 0, values)


def test_an_epoch_without_records_is_dropped() -> None:
    history = NO_EPOCHS.begun(3, 10).begun(5, 20).begun(6, 20)
    assert history.entries == (EpochStart(3, 10), EpochStart(6, 20))


def test_an_epoch_ends_where_the_next_one_starts() -> None:
    history = NO_EPOCHS.begun(3, 10).begun(6, 20)
    assert history.end_of(4, 50) == EpochStart(3, 20)
    assert history.end_of(9, 50) == EpochStart(6, 50)
    assert history.end_of(1, 50) == EpochStart(-1, 10)
    assert (history.at(5), history.at(19), history.at(20)) == (-1, 3, 6)
    assert history.truncated(20).entries == (EpochStart(3, 10),)


def test_the_image_follows_leaders_epochs_and_in_sync_replicas() -> None:
    image = MetadataImage()
    image.apply(entry("TopicRecord", Name="orders", TopicId=TOPIC))
    row = {"PartitionId": 0, "TopicId": TOPIC}
    image.apply(
        entry(
            "PartitionRecord",
            **row,
            Replicas=[7, 1],
            Isr=[7, 1],
            Leader=7,
            LeaderEpoch=0,
            PartitionEpoch=0,
            AddingReplicas=[],
            RemovingReplicas=[],
        )
    )
    image.apply(entry("PartitionChangeRecord", **row, Isr=[7], Leader=-2, Replicas=None))
    image.apply(entry("PartitionChangeRecord", **row, Isr=None, Leader=1, Replicas=[1]))
    assert image.partitions_of("orders") == {0: PartitionState((1,), (7,), 1, 1, 2)}
    image.apply(entry("RemoveTopicRecord", TopicId=TOPIC))
    assert (image.partitions, image.topics, image.partitions_of("orders")) == ({}, {}, {})


def test_records_of_an_aborted_metadata_transaction_are_ignored() -> None:
    image = MetadataImage()
    for name, kept in (("AbortTransactionRecord", False), ("EndTransactionRecord", True)):
        image.apply(entry("BeginTransactionRecord"))
        image.apply(entry("TopicRecord", Name="orders", TopicId=TOPIC))
        assert not image.topics
        image.apply(entry(name))
        assert bool(image.topics) is kept


def test_the_image_follows_brokers_credentials_and_features() -> None:
    image = MetadataImage()
    point = {"Name": "INTERNAL", "Host": "b", "Port": 9}
    registered = {"BrokerId": 1, "BrokerEpoch": 5, "EndPoints": [point], "Rack": "a", "Fenced": True}
    registered |= {"IncarnationId": UUID(int=1), "Features": []}
    image.apply(entry("RegisterBrokerRecord", **registered))
    image.apply(entry("BrokerRegistrationChangeRecord", BrokerId=1, BrokerEpoch=5, Fenced=-1))
    fenced = [image.brokers[1].fenced]
    image.apply(entry("FenceBrokerRecord", Id=1, Epoch=5))
    fenced.append(image.brokers[1].fenced)
    assert fenced == [False, True]
    image.apply(entry("UnfenceBrokerRecord", Id=1, Epoch=5))
    assert (image.brokers[1].fenced, image.brokers[1].endpoints) == (False, {"INTERNAL": ("b", 9)})
    keys = {"Salt": b"s", "StoredKey": b"k", "ServerKey": b"x", "Iterations": 4096}
    image.apply(entry("UserScramCredentialRecord", Name="node", Mechanism=2, **keys))
    assert image.credentials["node", "SCRAM-SHA-512"].stored_key == b"k"
    image.apply(entry("RemoveUserScramCredentialRecord", Name="node", Mechanism=2))
    image.apply(entry("FeatureLevelRecord", Name="metadata.version", FeatureLevel=30))
    image.apply(entry("UnregisterBrokerRecord", BrokerId=1, BrokerEpoch=5))
    assert (image.credentials, image.features, image.brokers) == ({}, {"metadata.version": 30}, {})


async def test_a_window_serves_its_batches_with_the_destinations_epoch() -> None:
    requested: list[int] = []
    log = [raw(0, 3), raw(5), raw(9, 2)]

    async def older(offset: int, bytes_max: int) -> Sequence[RawBatch]:
        requested.append(offset)
        return [batch for batch in log if batch.last_offset >= offset]

    partition = LedPartition(KEY, "orders", 0, 0, older)
    with pytest.raises(PartitionNotLed):
        partition.append(log, 4)
    partition.leadership = Leadership(PartitionState((1,), (1,), SHADOW_IDS[0], 4, 0), 0)
    partition.append(log, 4)
    read = await partition.read(4, 1 << 20)
    assert [(b.base_offset, b.leader_epoch, b.is_intact) for b in batches(b"".join(read))] == [
        (5, 4, True), (9, 4, True),
    ]  # fmt: skip
    assert len(await partition.read(0, 1)) == 1, "at least one batch"
    partition.leadership.fetched(1, 9, 11, 0.0)
    partition.drop_acknowledged()
    assert (partition.window.covers_from, partition.end) == (6, 11)
    assert len(await partition.read(6, 1 << 20)) == 1, "a gap before the window's first batch is no miss"
    older_read = await partition.read(0, 1 << 20)
    assert [b.base_offset for b in batches(b"".join(older_read))] == [0, 5]
    assert requested == [0]


def test_only_the_leader_epoch_of_a_batch_changes() -> None:
    before = raw(3, 2).raw
    after = with_epoch(before, 5)
    assert (after[:12], after[12:16], after[16:]) == (before[:12], b"\0\0\0\x05", before[16:])


def test_the_log_start_never_passes_the_high_watermark() -> None:
    async def older(offset: int, bytes_max: int) -> Sequence[RawBatch]:
        return ()

    partition = LedPartition(KEY, "orders", 5, 5, older)
    partition.leadership = Leadership(PartitionState((1,), (1,), SHADOW_IDS[0], 4, 0), 8)
    partition.raise_start(20)
    assert partition.start == 8


def test_a_shadow_keeps_its_directory_id_and_changes_its_incarnation(tmp_path: Path) -> None:
    first, second = (load_identity(tmp_path, 7, "cluster") for _ in range(2))
    assert first.directory_id == second.directory_id
    assert first.incarnation_id != second.incarnation_id
    # Several links have the same settings file; a link may run on another host, without its file.
    assert load_identity(tmp_path, 8, "cluster").directory_id != first.directory_id
    assert load_identity(tmp_path / "another host", 7, "cluster").directory_id == first.directory_id
    with pytest.raises(ShadowStateUnreadable, match="of cluster cluster"):
        load_identity(tmp_path, 7, "another")
    (tmp_path / "shadow-7.json").write_text("{")
    with pytest.raises(ShadowStateUnreadable, match="damaged"):
        load_identity(tmp_path, 7, "cluster")


def test_shadow_ids_differ_from_those_of_brokers() -> None:
    assert is_shadow(SHADOW_IDS[0])
    assert not is_shadow(1)


async def test_a_follower_below_records_that_compaction_removed_continues_in_the_window() -> None:
    log = [raw(0, 3), raw(5), raw(9, 2)]

    async def older(offset: int, bytes_max: int) -> Sequence[RawBatch]:
        return [log[-1]]  # the source has nothing else left

    partition = LedPartition(KEY, "orders", 0, 0, older)
    partition.leadership = Leadership(PartitionState((1,), (1,), SHADOW_IDS[0], 4, 0), 0)
    partition.append(log, 4)
    partition.leadership.fetched(1, 9, 11, 0.0)
    partition.drop_acknowledged()
    read = await partition.read(0, 1 << 20)
    assert [b.base_offset for b in batches(b"".join(read))] == [9]
