"""History and a backup in SeaweedFS, an S3 server: written, read, archived, marked and swept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from penstock.backup.archive import Archive
from penstock.backup.archiver import Archiver
from penstock.backup.catalogue import Catalogue
from penstock.backup.cataloguer import Cataloguer
from penstock.backup.verification import verify
from penstock.fleet.jars import cache_directory
from penstock.fleet.runtime import obtain_runtime
from penstock.kafka.client import Client
from penstock.tier.format import LOG, MANIFEST, TOMBSTONE
from penstock.tier.s3_jars import fetch_s3
from penstock.tier.store import Store
from penstock.tier.sweeper import SweepSettings, carry_out, plan_sweep, stored_segments
from tests.harness.fleet import wait_for
from tests.harness.seaweedfs import SeaweedServer
from tests.harness.tiering import (
    FAST,
    create_tiered,
    produce,
    read_kafka_python,
    read_librdkafka,
    wait_tiered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.fleet import Fleet

pytestmark = [pytest.mark.peers, pytest.mark.kafka, pytest.mark.timeout(900)]

RECORDS = 1200  # of 10 kB: about twelve segments
PREFIX = "tier"
WAIT_SECONDS_MAX = 120.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SeaweedServer]:
    fetch_s3(cache_directory(), asyncio.run(obtain_runtime()))
    with SeaweedServer.start(tmp_path / "seaweed") as started:
        yield started


def test_history_in_s3_reads_as_if_it_were_on_disk(
    server: SeaweedServer, make_fleet: Callable[..., Fleet], unique: Callable[[str], str]
) -> None:
    fleet = make_fleet(combined=True, brokers=1, zones=["a"], config=FAST, tier=server.tier("history"))
    topic = unique("orders")
    create_tiered(fleet, topic)
    produce(fleet, topic, RECORDS, transactional=True)
    before = {i: read_librdkafka(fleet, topic, isolation=i) for i in ("read_uncommitted", "read_committed")}

    wait_tiered(fleet, topic, RECORDS * 3 // 4)

    for isolation, expected in before.items():
        assert read_librdkafka(fleet, topic, isolation=isolation) == expected
        assert read_kafka_python(fleet, topic, isolation=isolation) == expected
    asyncio.run(_archived(fleet, Store(server.settings("backups", "east")), topic))

    history = Store(server.settings("history", PREFIX))
    stored = asyncio.run(stored_segments(history, fleet.kafka_id))
    assert all({LOG, MANIFEST} <= one.suffixes for one in stored)
    admin = AdminClient(fleet.client_config())
    admin.delete_topics([topic])[topic].result(60)
    wait_for(lambda: asyncio.run(_marked(history, fleet)), what="tombstones of all segments")
    asyncio.run(_swept(fleet, history))


async def _archived(fleet: Fleet, store: Store, topic: str) -> None:
    """What is not tiered is archived to another bucket, and every byte of it verified."""
    await store.probe()
    async with Client(fleet.bootstrap, fleet.security()) as client:
        archiver = Archiver(client, store, selects=lambda name: name == topic)
        await archiver.resume()
        await archiver.round()
        catalogue = Catalogue(store, archiver.cluster)
        await Cataloguer(client, catalogue, archiver, interval_ms=60_000).round()
    assert archiver.totals.segments
    assert not archiver.totals.failures
    result = await verify(Archive(archiver.cluster, [store]), catalogue, sample=1.0, seed=1)
    assert not result.problems
    assert result.read == archiver.totals.segments


async def _marked(history: Store, fleet: Fleet) -> bool:
    return all(TOMBSTONE in one.suffixes for one in await stored_segments(history, fleet.kafka_id))


async def _always() -> bool:
    return True


async def _swept(fleet: Fleet, history: Store) -> None:
    """Nothing goes before its time; then a few segments a run."""
    async with Client(fleet.bootstrap, fleet.security()) as client:
        early = await plan_sweep(client, history, SweepSettings(keep_days=1))
        assert not early.delete
        count = len(await stored_segments(history, fleet.kafka_id))
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not (plan := await plan_sweep(client, history, SweepSettings(keep_days=0))).delete:
                await asyncio.sleep(0.1)  # Kafka's metadata ends an entry a moment after its tombstone
        assert not plan.missing
        await carry_out(history, plan, may_delete=_always)
    left = await stored_segments(history, fleet.kafka_id)
    assert len(left) == count - len(plan.delete)
