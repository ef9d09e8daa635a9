"""The archiver against a cluster of values: gaps, truncation, damage, a store that fails, a restart."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from penstock.backup import archiver as archiver_module
from penstock.backup import raw_fetch
from penstock.backup.archive import Archive
from penstock.backup.archiver import Archiver
from penstock.backup.layout import Gap
from penstock.backup.raw_fetch import LogId, RawLog
from penstock.kafka.admin import topics
from penstock.kafka.admin.topics import Partition, Topic
from penstock.model.errors.backup import StoreUnavailable
from penstock.shadow.epoch_history import EpochStart
from penstock.tier.format import id_text
from penstock.tier.store import Store, StoreSettings
from penstock.wire.records import batches
from tests.tier.segments import CLUSTER, batch

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client

TOPIC = UUID(int=7)
LOG = LogId(TOPIC, 0)


@dataclass
class Kafka:
    """One partition on two brokers, of which 2 follows."""

    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    exists: bool = True
    fetched_from: list[int] = field(default_factory=list)

    def append(self, count: int, *, epoch: int = 0, value: bytes = b"value") -> None:
        for _ in range(count):
            self.batches.append(batch(self.end, epoch=epoch, value=value))

    def truncate(self, end: int) -> None:
        self.batches = [one for one in self.batches if next(batches(one)).last_offset < end]

    @property
    def end(self) -> int:
        return next(batches(self.batches[-1])).last_offset + 1 if self.batches else 0

    @property
    def client(self) -> Client:
        async def cluster(**_: object) -> Any:
            return SimpleNamespace(id=CLUSTER, nodes={1: None, 2: None})

        return cast("Client", SimpleNamespace(cluster=cluster))

    async def describe(self, *_: object, **__: object) -> dict[str, Topic]:
        partition = Partition(0, 1, 0, (1, 2), (1, 2), ())
        return {"orders": Topic("orders", TOPIC, False, (partition,))} if self.exists else {}

    async def fetch(self, _: Client, broker: int, positions: dict[LogId, int]) -> dict[LogId, RawLog]:
        self.fetched_from.append(broker)
        position = positions[LOG]
        if not self.start <= position <= self.end:
            return {LOG: RawLog(b"", -1, -1, out_of_range=True)}
        due = [one for one in self.batches if next(batches(one)).last_offset >= position][:3]
        return {LOG: RawLog(b"".join(due), self.end, self.start)}

    async def log_range(self, *_: object) -> tuple[int, int]:
        return self.start, self.end

    async def epoch_end(self, _: Client, __: TopicPartition, epoch: int) -> EpochStart:
        known = [b for one in self.batches for b in batches(one) if b.leader_epoch <= epoch]
        return EpochStart(known[-1].leader_epoch, known[-1].last_offset + 1) if known else EpochStart(-1, 0)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    one = Kafka()
    monkeypatch.setattr(topics, "describe", one.describe)
    monkeypatch.setattr(raw_fetch, "fetch", one.fetch)
    monkeypatch.setattr(archiver_module, "log_range", one.log_range)
    monkeypatch.setattr(archiver_module, "epoch_end", one.epoch_end)

    async def first_offset(*_: object) -> int:
        return one.start

    monkeypatch.setattr(Archiver, "_first_offset", first_offset)
    return one


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(StoreSettings("file", "", tmp_path / "store"))


async def started(kafka: Kafka, store: Store) -> Archiver:
    archiver = Archiver(kafka.client, store, selects=lambda _: True)
    await archiver.resume()
    return archiver


async def stored_batches(store: Store) -> list[bytes]:
    archive = Archive(CLUSTER, [store])
    await archive.load()
    chain = await archive.chain(id_text(TOPIC), 0)
    return [bytes(b.raw) async for part in archive.batches(chain, chain.start) for b in part]


async def gaps(store: Store) -> set[Gap]:
    archive = Archive(CLUSTER, [store])
    await archive.load()
    return archive.gaps


async def test_everything_is_stored_from_a_follower(kafka: Kafka, store: Store) -> None:
    kafka.append(10)
    archiver = await started(kafka, store)
    await archiver.round()
    assert await stored_batches(store) == kafka.batches
    assert set(kafka.fetched_from) == {2}
    assert (archiver.logs[LOG].lag, archiver.totals.segments) == (0, 1)
    assert archiver.last_round_at > 0


async def test_a_new_process_continues_from_the_store_alone(kafka: Kafka, store: Store) -> None:
    for _ in range(3):
        kafka.append(4)
        archiver = await started(kafka, store)
        await archiver.round()
        await archiver.round()
        assert archiver.totals.segments == 1
    assert await stored_batches(store) == kafka.batches


async def test_a_gap_is_recorded_and_what_follows_is_stored(kafka: Kafka, store: Store) -> None:
    kafka.append(2)
    await (await started(kafka, store)).round()
    kafka.append(5)
    kafka.start = 8
    archiver = await started(kafka, store)
    await archiver.round()
    expected = {Gap(id_text(TOPIC), 0, 4, 7)}
    assert (await gaps(store), archiver.totals.gaps) == (expected, 1)
    assert await stored_batches(store) == [*kafka.batches[:2], *kafka.batches[4:]]
    await archiver.record_gap(next(iter(expected)))
    assert archiver.totals.gaps == 1


async def test_after_an_unclean_election_the_new_log_is_stored(kafka: Kafka, store: Store) -> None:
    kafka.append(5)
    archiver = await started(kafka, store)
    await archiver.round()
    kafka.truncate(6)
    kafka.append(8, epoch=2, value=b"other")
    await archiver.round()
    assert await stored_batches(store) == kafka.batches
    again = await started(kafka, store)
    await again.round()
    assert await stored_batches(store) == kafka.batches


async def test_a_log_that_became_shorter_is_followed(kafka: Kafka, store: Store) -> None:
    kafka.append(5)
    archiver = await started(kafka, store)
    await archiver.round()
    kafka.truncate(6)
    kafka.append(1, epoch=2, value=b"other")
    await archiver.round()
    kafka.append(3, epoch=2, value=b"more")
    await archiver.round()
    await archiver.round()
    assert await stored_batches(store) == kafka.batches


async def test_two_unclean_elections_between_rounds_are_followed(kafka: Kafka, store: Store) -> None:
    kafka.append(3)
    archiver = await started(kafka, store)
    await archiver.round()
    kafka.append(3, epoch=1)
    await archiver.round()
    kafka.truncate(4)
    kafka.append(2, epoch=2, value=b"other")
    kafka.append(5, epoch=5, value=b"third")
    await archiver.round()
    assert await stored_batches(store) == kafka.batches
    kafka.truncate(2)
    kafka.append(9, epoch=7, value=b"fourth")
    await (await started(kafka, store)).round()
    assert await stored_batches(store) == kafka.batches


async def test_a_damaged_batch_is_not_stored(kafka: Kafka, store: Store) -> None:
    kafka.append(2)
    good = kafka.batches[1]
    kafka.batches[1] = good[:-1] + b"!"
    archiver = await started(kafka, store)
    await archiver.round()
    assert "CRC" in archiver.logs[LOG].problem
    assert archiver.last_round_at == 0
    kafka.batches[1] = good
    await archiver.round()
    await archiver.round()
    assert archiver.logs[LOG].problem == ""
    assert await stored_batches(store) == kafka.batches


async def test_a_store_that_fails_is_tried_again(
    kafka: Kafka, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.append(3)
    archiver = await started(kafka, store)

    async def full(*_: object) -> bool:
        raise StoreUnavailable(store="s3://backups", reason="it is full")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "create", full)
        await archiver.round()
        assert "full" in archiver.logs[LOG].problem
        assert len(archiver.logs[LOG].buffer) == 0
    await archiver.round()
    assert await stored_batches(store) == kafka.batches


async def test_a_segment_that_cannot_be_read_is_stored_again(
    kafka: Kafka, store: Store, tmp_path: Path
) -> None:
    """A manifest that a power loss cut off stops neither this partition nor others."""
    for _ in range(2):
        kafka.append(3)
        await (await started(kafka, store)).round()
    last = max((tmp_path / "store").rglob("*.json"))
    last.write_bytes(b"")
    archiver = await started(kafka, store)
    assert archiver._ends == {(id_text(TOPIC), 0): (6, 0)}
    await archiver.round()
    assert archiver.totals.segments == 1
    last.unlink()
    assert await stored_batches(store) == kafka.batches


async def test_a_replica_without_the_next_offset_makes_the_round_incomplete(
    kafka: Kafka, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.append(3)
    archiver = await started(kafka, store)

    async def behind(*_: object) -> dict[LogId, RawLog]:
        return {LOG: RawLog(b"", -1, -1, out_of_range=True)}

    with monkeypatch.context() as patch:
        patch.setattr(raw_fetch, "fetch", behind)
        await archiver.round()
    assert "broker 2 does not have offset 0" in archiver.logs[LOG].problem
    assert archiver.last_round_at == 0
    await archiver.round()
    assert archiver.last_round_at > 0


async def test_a_deleted_topic_is_forgotten_and_its_backup_stays(kafka: Kafka, store: Store) -> None:
    kafka.append(3)
    archiver = await started(kafka, store)
    await archiver.round()
    kafka.exists = False
    await archiver.round()
    assert archiver.logs == {}
    assert len(await stored_batches(store)) == 3
