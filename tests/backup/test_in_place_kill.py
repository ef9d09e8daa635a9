"""A restore in place that is killed at every step: the next process continues, and producers lose nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from penstock.backup.archive import Archive
from penstock.backup.restore_steps import IN_PLACE_POINTS, InPlaceStep
from penstock.kafka.admin import offsets, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.link.source import log_range
from penstock.tier.format import id_text
from penstock.tier.store import Store, StoreSettings
from tests.backup.commands import run, start, write_settings
from tests.backup.live_topic import Writer, check_writers, records_of, writing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(900)]

WAIT_SECONDS = 60.0
KILLED = -signal.SIGKILL
PLACE = TopicPartition("orders", 0)
RECORDS = 2000
# A replica is dropped and rebuilt from the shadow first, then from a real leader.
FAULTS = [
    *IN_PLACE_POINTS.values(),
    f"{IN_PLACE_POINTS[InPlaceStep.DROPPED]}@2",
    f"{IN_PLACE_POINTS[InPlaceStep.REBUILT]}@2",
]


async def until_archived(archive: Archive, client: Client) -> int:
    """The end of the log now, once the backup has everything below."""
    deadline = time.monotonic() + WAIT_SECONDS
    topic = results_or_raise(await topics.describe(client, ["orders"]))["orders"]
    _, end = await log_range(client, PLACE)
    while True:
        await archive.load(id_text(topic.id))
        if (chain := await archive.chain(id_text(topic.id), 0)).end >= end:
            return end
        assert time.monotonic() < deadline, chain.end
        await asyncio.sleep(0.1)


def produce(fleet: Fleet) -> None:
    producer = Producer(fleet.client_config())
    for number in range(RECORDS):
        producer.produce("orders", value=b"old %d" % number)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("faults", [FAULTS[:4], FAULTS[4:]], ids=["first", "last"])
async def test_a_killed_restore_continues_and_producers_lose_nothing(
    faults: list[str], make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=3)
    path = str(write_settings(fleet, tmp_path))
    store = Store(StoreSettings("file", "east", tmp_path / "store"))
    async with Client(fleet.bootstrap, fleet.security()) as client:
        new = topics.NewTopic("orders", 1, 3, configs={"min.insync.replicas": "2"})
        results_or_raise(await topics.create(client, [new]))
        await asyncio.to_thread(fleet.wait_for_leaders, "orders")
        await asyncio.to_thread(produce, fleet)
        before = await asyncio.to_thread(records_of, fleet, "orders", 1)
        original = results_or_raise(await topics.describe(client, ["orders"]))["orders"].partitions[0]
        archive = Archive((await client.cluster()).id or "", [store])
        backup = start("backup", "run", "-s", path)
        writer = Writer("orders", "writer", fleet.client_config())
        restore = ("backup", "restore", "orders", "--in-place", "-s", path, "--yes", "-o", "json")
        try:
            with writing(writer):
                for fault in faults:
                    end = await until_archived(archive, client)
                    results_or_raise(await offsets.delete_before(client, {PLACE: end}))
                    code, printed = await asyncio.to_thread(run, *restore, fault=fault)
                    assert code == KILLED, f"{fault}: {printed}"
                    code, printed = await asyncio.to_thread(
                        run, "backup", "restore", "-s", path, "--resume", "-o", "json"
                    )
                    assert code == 0, f"{fault}: {printed}"
                    assert await log_range(client, PLACE) >= (0, end)
                    row = json.JSONDecoder().raw_decode(printed[printed.index("[") :])[0][0]
                    assert row["replicas_proved"] == 3, fault
                    now = results_or_raise(await topics.describe(client, ["orders"]))["orders"].partitions[0]
                    assert now.replicas == original.replicas, fault
                    print(fault, "longest gap so far", round(writer.gap_seconds, 2))
        finally:
            backup.terminate()
            await asyncio.to_thread(backup.communicate)
        after = await asyncio.to_thread(records_of, fleet, "orders", 1)
        assert {place: after.get(place) for place in before} == before
        check_writers(after, [writer])


async def test_a_broker_that_dies_meanwhile_costs_no_record(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=4)
    path = str(write_settings(fleet, tmp_path))
    store = Store(StoreSettings("file", "east", tmp_path / "store"))
    async with Client(fleet.bootstrap, fleet.security()) as client:
        new = topics.NewTopic("orders", replicas={0: [1, 2, 3]}, configs={"min.insync.replicas": "2"})
        results_or_raise(await topics.create(client, [new]))
        await asyncio.to_thread(fleet.wait_for_leaders, "orders")
        await asyncio.to_thread(produce, fleet)
        before = await asyncio.to_thread(records_of, fleet, "orders", 1)
        archive = Archive((await client.cluster()).id or "", [store])
        backup = start("backup", "run", "-s", path)
        writer = Writer("orders", "writer", fleet.client_config())
        restore = ("backup", "restore", "orders", "--in-place", "-s", path, "--yes")
        try:
            with writing(writer):
                # Each restore is stopped there, loses a broker, and continues.
                for step, broker in ((InPlaceStep.LEADS, "b2"), (InPlaceStep.RETURNED, "b1")):
                    end = await until_archived(archive, client)
                    results_or_raise(await offsets.delete_before(client, {PLACE: end}))
                    fault = IN_PLACE_POINTS[step]
                    code, printed = await asyncio.to_thread(run, *restore, fault=fault)
                    assert code == KILLED, printed
                    await asyncio.to_thread(fleet.kill, broker)
                    resumed = start("backup", "restore", "-s", path, "--resume")
                    await asyncio.sleep(0)
                    await asyncio.to_thread(fleet.start_node, broker)
                    out, err = await asyncio.to_thread(resumed.communicate)
                    assert resumed.returncode == 0, out + err
                    assert (await log_range(client, PLACE))[0] == 0
        finally:
            backup.terminate()
            await asyncio.to_thread(backup.communicate)
        after = await asyncio.to_thread(records_of, fleet, "orders", 1)
        assert {place: after.get(place) for place in before} == before
        check_writers(after, [writer])
