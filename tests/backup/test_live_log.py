"""A log from its backup and its replicas: where they meet, and what does not fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from penstock.backup import live_log, raw_fetch
from penstock.backup.live_log import LiveLog, check_seam, epochs_of, joined_history
from penstock.backup.raw_fetch import LogId, RawLog
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.errors.backup import BackupDiffers
from penstock.model.errors.wire import BrokerUnknown
from penstock.shadow.epoch_history import EpochHistory, EpochStart
from penstock.wire.records import Batch, Record, batches, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LOG = LogId(UUID(int=9), 0)
PLACE = TopicPartition("orders", 0)
NOTHING: Any = None
EPOCHS = EpochHistory((EpochStart(0, 0), EpochStart(2, 20)))


def batch(base: int, count: int, epoch: int, value: bytes = b"v") -> Batch:
    data = write([Record(base + n, 1, None, value) for n in range(count)], leader_epoch=epoch)
    return next(iter(batches(data)))


OLD = [batch(0, 10, 0), batch(10, 10, 0), batch(20, 10, 2)]
NEW = [*OLD, batch(30, 10, 2)]


class Archive:
    """Has the first batches of a log."""

    def __init__(self, some: list[Batch]) -> None:
        self.some = some

    async def batches(self, _: Any, offset: int) -> AsyncIterator[list[Batch]]:
        if some := [one for one in self.some if one.last_offset >= offset]:
            yield some


def chain(some: list[Batch], epochs: EpochHistory = EPOCHS) -> Any:
    end = some[-1].last_offset + 1 if some else 0
    return SimpleNamespace(pieces=tuple(some), start=0, end=end, epochs=epochs)


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Batch]]:
    """Logs by broker; a broker without one is away."""
    logs: dict[int, list[Batch]] = {}

    async def fetch(_: Any, broker: int, positions: dict[LogId, int], **__: Any) -> dict[LogId, RawLog]:
        if broker not in logs:
            raise BrokerUnknown(node=broker, known="none")
        offset = positions[LOG]
        data = b"".join(bytes(one.raw) for one in logs[broker] if one.last_offset >= offset)
        return {LOG: RawLog(data, 40, 15)}

    monkeypatch.setattr(raw_fetch, "fetch", fetch)
    return logs


def live(some: list[Batch], boundary: int = 15, epochs: EpochHistory = EPOCHS) -> LiveLog:
    archive: Any = Archive(some)
    return LiveLog(NOTHING, archive, chain(some), LOG, boundary, (1, 2), epochs)


async def offsets(log: LiveLog, bytes_max: int = 1 << 20) -> list[int]:
    result, offset = [], 0
    while some := await log.older(offset, bytes_max):
        result += [one.base_offset for one in some]
        offset = some[-1].last_offset + 1
    return result


@pytest.mark.parametrize("bytes_max", [1, 200, 1 << 20])
async def test_a_log_is_read_from_its_backup_and_then_from_its_replicas(
    bytes_max: int, replicas: dict[int, list[Batch]]
) -> None:
    replicas[2] = NEW[1:]
    assert await offsets(live(OLD), bytes_max) == [0, 10, 20, 30]


async def test_an_offset_above_the_replicas_is_waited_for(replicas: dict[int, list[Batch]]) -> None:
    replicas[1] = NEW[1:]
    assert await live(OLD).older(40, 100) == []


async def test_a_batch_with_another_epoch_is_never_served(replicas: dict[int, list[Batch]]) -> None:
    replicas[1] = NEW[1:]
    wrong = EpochHistory((EpochStart(0, 0),))
    with pytest.raises(BackupDiffers, match="epoch 2, not 0"):
        await live(OLD, epochs=wrong).older(20, 100)


async def test_an_offset_within_a_batch_is_never_served(replicas: dict[int, list[Batch]]) -> None:
    replicas[1] = NEW[1:]
    with pytest.raises(BackupDiffers, match="within a batch"):
        await live(OLD).older(25, 100)


async def seam(stored: list[Batch], start: int, end: int, epochs: EpochHistory = EPOCHS) -> None:
    archive: Any = Archive(stored)
    await check_seam(NOTHING, archive, chain(stored, epochs), LOG, start, end, 1)


async def test_a_backup_that_overlaps_or_touches_the_log_fits(replicas: dict[int, list[Batch]]) -> None:
    replicas[1] = NEW
    await seam(OLD, 15, 40)
    await seam(OLD[:2], 20, 40)
    await seam(NEW, 40, 40)


@pytest.mark.parametrize(
    ("stored", "start", "end", "reason"),
    [
        (OLD[:1], 15, 40, "ends at offset 10"),
        ([], 15, 40, "ends at offset 0"),
        (NEW, 15, 30, "the log at 30"),
        ([*OLD[:2], batch(20, 10, 2, b"other")], 15, 40, "the batch at offset 20 is another one"),
        ([*OLD[:2], batch(20, 10, 1)], 15, 40, "the batch at offset 20 is another one"),
    ],
)
async def test_a_backup_of_another_log_does_not_fit(
    stored: list[Batch], start: int, end: int, reason: str, replicas: dict[int, list[Batch]]
) -> None:
    replicas[1] = NEW
    with pytest.raises(BackupDiffers, match=reason):
        await seam(stored, start, end)


async def test_a_backup_with_later_epochs_does_not_fit(replicas: dict[int, list[Batch]]) -> None:
    replicas[1] = NEW
    later = EpochHistory((EpochStart(7, 0),))
    with pytest.raises(BackupDiffers, match="follows epoch 7"):
        await seam(OLD[:2], 20, 40, later)


def kafka_epoch_end(entries: list[tuple[int, int]], log_end: int, epoch: int) -> EpochStart:
    """As `LeaderEpochFileCache.endOffsetFor` of Kafka 4.3."""
    if epoch == entries[-1][0]:
        return EpochStart(epoch, log_end)
    higher = [start for known, start in entries if known > epoch]
    if not higher:
        return EpochStart(-1, -1)
    return EpochStart(max((known for known, _ in entries if known <= epoch), default=epoch), higher[0])


@pytest.mark.parametrize(
    "entries", [[(0, 0)], [(0, 0), (1, 30)], [(3, 10)], [(3, 10), (7, 20), (9, 50)], [(0, 10), (2, 40)]]
)
async def test_the_epochs_of_a_live_log_are_read_from_the_last_one_down(
    entries: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def epoch_end(_: Any, __: Any, epoch: int) -> EpochStart:
        return kafka_epoch_end(entries, 50, epoch)

    monkeypatch.setattr(live_log, "epoch_end", epoch_end)
    for start in (entries[0][1], max(0, entries[0][1] - 5)):
        history = await epochs_of(NOTHING, PLACE, entries[-1][0], start)
        assert [one.epoch for one in history.entries] == [epoch for epoch, _ in entries]
        assert list(history.entries[1:]) == [EpochStart(*one) for one in entries[1:]]


def test_the_history_of_a_restored_log_has_the_epochs_of_both_parts() -> None:
    backup = EpochHistory((EpochStart(0, 0), EpochStart(2, 20)))
    replicas_have = EpochHistory((EpochStart(2, 25), EpochStart(5, 30), EpochStart(6, 40)))
    assert joined_history(backup, replicas_have, 25, 40).entries == (
        EpochStart(0, 0), EpochStart(2, 20), EpochStart(5, 30),
    )  # fmt: skip
