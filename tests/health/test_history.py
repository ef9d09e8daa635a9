"""Probes are written to whichever partition works, and read from all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from penstock.health import history
from penstock.health.history import ProbeReader, ProbeWriter
from penstock.health.slo import MINUTE_MS, Ledger
from penstock.kafka.partition_log import FetchedRecords
from penstock.model.errors.health import HistoryUnreadable, HistoryUnwritable
from penstock.model.errors.wire import CallTimedOut
from penstock.wire.records import Record, batches, records
from tests.health.test_detector import probe
from tests.health.test_slo import probe as slo_probe
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.model.events import HealthProbe


class Broker:
    """Accepts writes to all partitions but those that hang."""

    def __init__(self, *hanging: int) -> None:
        self.hanging = set(hanging)
        self.written: list[tuple[int, int]] = []  # partition, probes

    async def call(self, api: str, body: Any, **_: Any) -> dict[str, Any]:
        assert api == "Produce"
        (row,) = body["TopicData"][0]["PartitionData"]
        if row["Index"] in self.hanging:
            raise CallTimedOut(api=api, address="b2", seconds=2)
        (batch,) = batches(row["Records"])
        self.written.append((row["Index"], len(records(batch))))
        return {"Responses": [{"PartitionResponses": [{"ErrorCode": 0}]}]}


async def test_a_partition_that_hangs_is_avoided() -> None:
    broker = Broker(0)
    writer = ProbeWriter(cast("Client", broker))
    for sequence in range(3):
        writer.add(probe(1, sequence=sequence))
    assert await writer._flush()
    writer.add(probe(1, sequence=9))
    assert await writer._flush()
    assert broker.written == [(1, 3), (1, 1)]
    assert (writer.written, writer.waiting, writer.last_error) == (4, 0, "")


async def test_what_cannot_be_written_waits_within_a_bound() -> None:
    broker = Broker(0, 1, 2)
    writer = ProbeWriter(cast("Client", broker))
    for sequence in range(history.BUFFERED_MAX + 5):
        writer.add(probe(1, sequence=sequence))
    assert not await writer._flush()
    assert (writer.waiting, writer.dropped) == (history.BUFFERED_MAX, 5)
    assert "no response" in writer.last_error
    assert HistoryUnwritable(reason=writer.last_error).code == "PEN-5612"
    assert HistoryUnreadable(reason="").code == "PEN-5613"
    broker.hanging.clear()
    assert await writer._flush()
    assert broker.written == [(0, history.BATCH_MAX)]


async def test_a_reader_skips_what_it_does_not_understand() -> None:
    reader = ProbeReader(cast("Client", None), lambda probes: None)
    rows = [Record(0, 0, b"", probe(1).to_bytes()), Record(1, 0, b"", b"{}"), Record(2, 0, b"", None)]
    assert reader._parsed(rows) == [probe(1)]
    assert (reader.skipped, reader.caught_up) == (2, False)


async def test_a_restart_gives_the_same_budget_however_probes_are_spread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a fault are in another partition, which is read much faster."""
    sent = [
        slo_probe(minute, sequence, failed=minute in range(20, 60) and sequence == 1)
        for minute in range(100)
        for sequence in range(1, 5)
    ]
    expected = Ledger(0.999)
    for each in sent:
        expected.add(each)
    logs = {0: [p for p in sent if p.succeeded], 1: [p for p in sent if not p.succeeded], 2: []}

    async def read(_: object, partition: TopicPartition, position: int, **__: object) -> FetchedRecords:
        await asyncio.sleep(0)
        log = logs[partition.partition]
        some = log[position : position + 30]
        if not some and position == len(log) and reader.caught_up:
            await asyncio.Event().wait()
        rows = tuple(Record(0, 0, b"", each.to_bytes()) for each in some)
        return FetchedRecords(rows, position + len(some), len(log))

    async def start(*_: object) -> int:
        return 0

    ledger = Ledger(0.999)

    def add(probes: Sequence[HealthProbe]) -> None:
        for each in probes:
            ledger.add(each)

    reader = ProbeReader(cast("Client", None), add)
    monkeypatch.setattr(history, "read", read)
    monkeypatch.setattr(reader, "_start", start)
    task = asyncio.create_task(reader.run(0))

    async def caught_up() -> bool:
        return reader.caught_up

    await eventually(caught_up)
    task.cancel()

    assert ledger.window(100 * MINUTE_MS, 100) == expected.window(100 * MINUTE_MS, 100)
    assert ledger.failures == expected.failures


async def test_a_directory_is_probed_by_a_child_that_may_hang(tmp_path: Any) -> None:
    from penstock.health.directory_probe import FILE, DirectoryProbe

    probe = DirectoryProbe(tmp_path)
    try:
        assert await probe.probe(60.0) == ""
        assert (tmp_path / FILE).exists()
        assert probe._child is not None
        probe._child.send_signal(19)  # SIGSTOP, as a write that hangs
        assert await probe.probe(0.05) == "no write within 0.05 s"
        assert await probe.probe(0.05) == "no write within 0.05 s"
        probe._child.send_signal(18)
        await eventually(lambda: _is_well(probe))
    finally:
        await probe.close()
    missing = DirectoryProbe(tmp_path / "missing")
    assert await missing.probe(60.0) == "No such file or directory"
    await missing.close()


async def _is_well(probe: Any) -> bool:
    await asyncio.sleep(0)
    return not await probe.probe(1.0)
