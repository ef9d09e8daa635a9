"""The writer of ack evidence while its topic cannot be written, and when it can be written again."""

from __future__ import annotations

import asyncio
import secrets
import socket
from typing import TYPE_CHECKING, Any

import pytest

from penstock.gateway.limits.ack_ranges import Acks
from penstock.gateway.process import ack_writer
from penstock.gateway.process.ack_writer import WAITING_BYTES_MAX, AckWriter
from penstock.kafka.client import Client
from penstock.kafka.partition_log import bounds, read
from penstock.model.ack_evidence import step
from penstock.model.events import AckRanges
from penstock.model.ids import PhysicalClusterId
from penstock.quota.topics import acks_partition, ensure_acks_topic

if TYPE_CHECKING:
    from penstock.model.ack_evidence import GatewayRun
    from tests.harness.fleet import Fleet

RANGES = 1_000  # of a record
SECONDS = 60.0


def record(incarnation: str, sequence: int, ranges: int = 1) -> AckRanges:
    rows = tuple((0, -1, 10 * n, 5, 5, 100, 1_800_000_000_000, 0) for n in range(ranges))
    return AckRanges(PhysicalClusterId("pkc-000000"), "gw", incarnation, sequence, 0, 0, {"t" * 22: rows})


def filled(incarnation: str) -> tuple[AckWriter, int]:
    """A writer that was given one record more than fits, and the number of that record."""
    writer = AckWriter()
    writer.acks = Acks()
    for sequence in range(10_000):
        writer([record(incarnation, sequence, RANGES)])
        if writer.acks.lost:
            return writer, sequence
    raise AssertionError("it has no bound")


def test_the_oldest_records_are_dropped_and_their_ranges_counted_as_lost() -> None:
    writer, last = filled("run")
    assert writer.acks is not None
    assert writer.acks.lost == RANGES
    before = writer.waiting_bytes

    for sequence in range(last + 1, last + 4):
        writer([record("run", sequence, RANGES)])

    assert writer.acks.lost == 4 * RANGES
    assert writer.waiting_bytes <= WAITING_BYTES_MAX
    assert abs(writer.waiting_bytes - before) < before / 10
    assert writer.ranges_written == 0


def test_other_events_are_not_kept() -> None:
    writer = AckWriter()

    writer([])

    assert writer.waiting_bytes == 0


async def written(fleet: Fleet, incarnation: str) -> tuple[GatewayRun | None, list[int]]:
    """What the topic shows of a run, and the numbers of its records in their order.

    A produce that is sent again repeats records. Readers ignore repeats, and so does this.
    """
    run: GatewayRun | None = None
    numbers: dict[int, None] = {}
    partition = acks_partition(incarnation.encode())
    async with Client(fleet.bootstrap, fleet.security()) as client:
        position, end = await bounds(client, partition)
        while position < end:
            chunk = await read(client, partition, position, wait_ms=100)
            position = chunk.position
            for each in chunk.records:
                evidence = AckRanges.from_bytes(each.value)
                if evidence.incarnation == incarnation:
                    run, _ = step(run, evidence)
                    numbers[evidence.sequence] = None
    return run, list(numbers)


async def until_written(writer: AckWriter) -> None:
    async with asyncio.timeout(SECONDS):
        while writer.waiting_bytes:
            await asyncio.sleep(0.01)


class Impatient(Client):
    """Reports an unreachable broker after a second instead of half a minute."""

    async def call(self, *arguments: Any, **more: Any) -> dict[str, Any]:
        return await super().call(*arguments, **{"timeout": 1.0, **more})


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@pytest.mark.kafka
async def test_records_are_written_in_order_once_the_brokers_can_be_reached(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_writer, "RETRY_SECONDS", 0.05)
    async with Client(fleet.bootstrap, fleet.security()) as platform:
        await ensure_acks_topic(platform)
    incarnation = secrets.token_hex(8)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    host, broker_port = fleet.bootstrap.split(",")[0].split(":")
    writer = AckWriter()
    writer.acks = Acks()

    async def forward(reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(host, int(broker_port))
        await asyncio.gather(relay(reader, to_broker), relay(from_broker, client))

    async with Impatient(f"127.0.0.1:{port}", fleet.security()) as client:
        running = asyncio.create_task(writer.run(client))
        writer([record(incarnation, n) for n in range(20)])
        async with asyncio.timeout(SECONDS):
            while not writer._failing:
                await asyncio.sleep(0.01)
        assert (writer.ranges_written, writer.waiting_bytes > 0) == (0, True)

        async with await asyncio.start_server(forward, "127.0.0.1", port):
            await until_written(writer)
            writer([record(incarnation, 20)])
            await until_written(writer)
        running.cancel()

    run, numbers = await written(fleet, incarnation)
    assert numbers == list(range(21))
    assert run is not None
    assert (run.missing, run.lost) == ((), 0)
    assert writer.ranges_written == 21


@pytest.mark.kafka
async def test_after_an_overflow_later_records_carry_what_was_lost(fleet: Fleet) -> None:
    incarnation = secrets.token_hex(8)
    writer, last = filled(incarnation)
    async with Client(fleet.bootstrap, fleet.security()) as client:
        await ensure_acks_topic(client)
        async with asyncio.timeout(SECONDS):
            while writer.waiting_bytes:
                await writer.flush(client)

    run, numbers = await written(fleet, incarnation)
    assert numbers == list(range(1, last + 1))
    assert run is not None
    assert run.lost == RANGES
    assert run.missing == ((0, 0),)
