"""Processes killed at every fault point: the next one continues, and the result is the same."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from penstock.backup.archive import Archive
from penstock.backup.archiver import UPLOADED
from penstock.backup.catalogue import WRITTEN
from penstock.backup.proof import expected_log, prove
from penstock.backup.restore_steps import POINTS
from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.tier.format import id_text
from penstock.tier.store import Store, StoreSettings
from tests.backup.commands import run, start, write_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet

pytestmark = [pytest.mark.kafka, pytest.mark.soak]

RECORDS = 2000
WAIT_SECONDS = 200.0
KILLED = -signal.SIGKILL


def produce(fleet: Fleet, first: int) -> None:
    producer = Producer(fleet.client_config())
    for number in range(first, first + RECORDS):
        producer.produce("orders", key=b"%d" % number, value=b"value %d" % number)
    assert producer.flush(60) == 0


async def until_archived(archive: Archive, client: Client) -> str:
    """The topic's id, once the backup has every record."""
    deadline = time.monotonic() + WAIT_SECONDS
    topic = results_or_raise(await topics.describe(client, ["orders"]))["orders"]
    topic_id = id_text(topic.id)
    while True:
        await archive.load(topic_id)
        chains = [await archive.chain(topic_id, partition.index) for partition in topic.partitions]
        if sum(chain.end for chain in chains) >= 2 * RECORDS:
            return topic_id
        assert time.monotonic() < deadline, [chain.end for chain in chains]
        await asyncio.sleep(0.1)


async def test_every_process_continues_what_a_killed_one_began(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=2)
    path = str(write_settings(fleet, tmp_path))
    store = Store(StoreSettings("file", "east", tmp_path / "store"))
    async with Client(fleet.bootstrap, fleet.security()) as client:
        results_or_raise(await topics.create(client, [topics.NewTopic("orders", 2, 2)]))
        await asyncio.to_thread(fleet.wait_for_leaders, "orders")
        for number, point in enumerate((UPLOADED, WRITTEN)):
            await asyncio.to_thread(produce, fleet, number * RECORDS)
            code, printed = await asyncio.to_thread(run, "backup", "run", "-s", path, fault=point)
            assert code == KILLED, printed
        running = start("backup", "run", "-s", path)
        try:
            archive = Archive((await client.cluster()).id or "", [store])
            topic_id = await until_archived(archive, client)
        finally:
            running.terminate()
            await asyncio.to_thread(running.communicate)
        code, printed = await asyncio.to_thread(run, "backup", "verify", "-s", path, "--deep")
        assert code == 0, printed

        original = results_or_raise(await topics.describe(client, ["orders"]))["orders"]
        expected = {
            p.index: await expected_log(archive, await archive.chain(topic_id, p.index))
            for p in original.partitions
        }
        assert all(one.same for one in await prove(client, original, expected))
        for step, point in POINTS.items():
            target = f"orders-{step}"
            words = ("backup", "restore", "orders", "-s", path, "--as", target, "--yes")
            code, printed = await asyncio.to_thread(run, *words, fault=point)
            assert code == KILLED, f"{step}: {printed}"
            code, printed = await asyncio.to_thread(run, "backup", "restore", "-s", path, "--resume")
            assert code == 0, f"{step}: {printed}"
            restored = results_or_raise(await topics.describe(client, [target]))[target]
            proofs = await prove(client, restored, expected)
            assert len(proofs) == 4
            assert all(one.same for one in proofs), f"{step}: {proofs}"
        await asyncio.to_thread(check_other_commands, path)


def check_other_commands(path: str) -> None:
    """What needs no kill: a drill, and what operators look at."""
    code, printed = run("backup", "drill", "orders", "-s", path, "-o", "json")
    assert code == 0, printed
    assert '"replicas_proved": 4' in printed
    for words in (("status",), ("list",), ("hold", "audit", "--topic", "orders"), ("release", "audit")):
        code, printed = run("backup", *words, "-s", path, "-o", "json")
        assert code == 0, printed
    code, printed = run("backup", "plan", "orders", "-s", path)
    assert code == 1
    assert "a topic 'orders' exists" in printed
    code, printed = run("backup", "restore", "orders", "-s", path, "--yes")
    assert "PEN-9112" in printed
    code, printed = run("backup", "restore", "others", "-s", path, "--yes")
    assert (code, "PEN-9110" in printed) == (3, True)
    code, printed = run("tier", "sweep", "-s", path)
    assert "PEN-9117" in printed
