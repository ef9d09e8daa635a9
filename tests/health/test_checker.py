"""What the checker counts against brokers, and what against itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from penstock.health import checker as checker_module
from penstock.health.checker import STALL_SECONDS, Checker, ProbedCluster
from penstock.health.probe_topics import ProbeLayout
from penstock.health.schedule import Due
from penstock.kafka.partition_log import FetchedRecords
from penstock.kafka.security import Security
from penstock.model.events import Probe, ProbeRole
from penstock.wire.records import Record

if TYPE_CHECKING:
    import pytest

    from penstock.model.events import HealthProbe

DUE = Due(1, ProbeRole.PATH, 0, 0.0)
KEY = (ProbeRole.PATH, 0)


class Fixture:
    """A checker whose broker acknowledges every probe at the end of a log that is 100 records long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.probes: list[HealthProbe] = []
        target = ProbedCluster("pkc-7hq2mz", "home", "b1:1", Security(), "lkc-3ba7x2", "g1:1", Security())
        self.checker = Checker(target, vantage="here", on_probe=self.probes.append)
        self.checker.layout = ProbeLayout(
            numbers={1: 0}, leaders={KEY: 1}, replicas={(ProbeRole.PAIR, 0): (1, 2)}
        )
        self.log: list[bytes] = []
        self.stall = 0.0  # seconds, while a probe is under way

        async def call(api: str, body: Any, **_: Any) -> dict[str, Any]:
            assert api == "Produce"
            if self.stall:
                time.sleep(self.stall)  # noqa: ASYNC251 - a loop that stands still
            self.log.append(b"")
            result = {"ErrorCode": 0, "BaseOffset": 99 + len(self.log)}
            return {"Responses": [{"PartitionResponses": [result]}]}

        self.checker.outer = cast("Any", SimpleNamespace(call=call))
        monkeypatch.setattr(checker_module, "LOST_SECONDS", 0.05)

    async def probe(self) -> list[tuple[Probe, str | None]]:
        await self.checker._probe(DUE, time.monotonic())
        return [(each.probe, each.error) for each in self.probes]

    def read_from(self, first: int, to: int) -> None:
        """The consumer began at an offset, and has read so far."""
        self.checker._first[KEY], self.checker._positions[KEY] = first, to


async def test_an_acknowledged_record_that_the_consumer_has_passed_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Fixture(monkeypatch)
    one.read_from(100, 101)

    assert await one.probe() == [(Probe.PRODUCE, None), (Probe.CONSUME, "LOST")]
    assert one.checker.counts.lost == 1


async def test_a_record_from_before_the_consumer_began_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the start, or after the consumer's offset was out of range."""
    one = Fixture(monkeypatch)
    one.read_from(105, 110)

    assert await one.probe() == [(Probe.PRODUCE, None)]
    assert one.checker.counts.lost == 0


async def test_a_consumer_begins_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Fixture(monkeypatch)

    async def bounds(*_: object) -> tuple[int, int]:
        return 3, 105

    async def read(_: object, __: object, position: int, **___: object) -> FetchedRecords:
        if position == 106:
            await asyncio.Event().wait()
        return FetchedRecords((Record(105, 0, b"another/1", b""),), 106, 106)

    monkeypatch.setattr(checker_module, "bounds", bounds)
    monkeypatch.setattr(checker_module, "read", read)
    task = asyncio.create_task(one.checker._consume(*KEY))
    while one.checker._positions.get(KEY) != 106:
        await asyncio.sleep(0)
    task.cancel()

    assert one.checker._first[KEY] == 105


async def test_a_probe_during_a_stall_of_the_checker_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its latency nor a failure of it counts against the broker, whichever task runs first."""
    one = Fixture(monkeypatch)
    one.read_from(100, 100)
    one.checker._wakes_at = time.monotonic() - STALL_SECONDS - 1  # the schedule is overdue

    assert await one.probe() == []
    assert one.checker.counts.disturbed == 1

    one.checker._wakes_at = time.monotonic() + 1
    assert (await one.probe())[0] == (Probe.PRODUCE, None)


async def test_probes_that_were_due_during_a_stall_are_not_sent_late(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Fixture(monkeypatch)
    clock = SimpleNamespace(now=1000.0)
    fake = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.now += 300.0 if len(pauses) == 2 else seconds
        if len(pauses) == 4:
            raise asyncio.CancelledError

    monkeypatch.setattr(checker_module, "time", fake)
    monkeypatch.setattr(checker_module, "asyncio", SimpleNamespace(sleep=sleep))
    started: list[Any] = []

    def start(work: Any) -> None:
        started.append(work)
        work.close()

    monkeypatch.setattr(one.checker, "_start", start)
    with contextlib.suppress(asyncio.CancelledError):
        await one.checker._send_probes()

    counts = one.checker.counts
    assert counts.due > 400
    assert counts.disturbed >= counts.due - 4
    assert len(started) == counts.due - counts.disturbed
    assert one.probes == [], "no probe has failed for it"
