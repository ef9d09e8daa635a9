"""A cluster is lost with all its disks: another one gets its topics, offsets and ACLs from the store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.backup.archiver import Archiver
from penstock.backup.catalogue import Catalogue
from penstock.backup.cataloguer import Cataloguer
from penstock.kafka.admin import acls, topics
from penstock.kafka.admin.acls import Acl, AclFilter, Operation, ResourceType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.tier.store import Store, StoreSettings
from tests.backup.commands import run, write_settings
from tests.backup.test_with_kafka import archived, produce, produce_transactions, read_values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet

pytestmark = [pytest.mark.kafka, pytest.mark.soak]

NAMES = ["keyed", "payments"]


async def test_a_lost_cluster_comes_back_on_another_one(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    lost = await asyncio.to_thread(make_fleet, brokers=2)
    store = Store(StoreSettings("file", "east", tmp_path / "store"))
    allow = Acl("User:app", Operation.READ, ResourceType.TOPIC, "keyed")
    async with Client(lost.bootstrap, lost.security()) as client:
        results_or_raise(await topics.create(client, [topics.NewTopic(name, 2, 2) for name in NAMES]))
        for name in NAMES:
            await asyncio.to_thread(lost.wait_for_leaders, name)
        assert not any((await acls.create(client, [allow])).values())
        await asyncio.to_thread(produce, lost, "keyed", 0, 300)
        await asyncio.to_thread(produce_transactions, lost, "payments")
        before = await asyncio.to_thread(read_values, lost, "billing", "keyed", 100)
        archiver = Archiver(client, store, selects=lambda name: name in NAMES)
        await archiver.resume()
        await archived(client, archiver)
        catalogue = Catalogue(store, archiver.cluster)
        assert await Cataloguer(client, catalogue, archiver, interval_ms=60_000).round()
    await asyncio.to_thread(lost.stop)

    fleet = await asyncio.to_thread(make_fleet, brokers=2)
    path = str(write_settings(fleet, tmp_path))
    words = ("backup", "restore", "--all", "-s", path, "--from", archiver.cluster, "--yes")
    code, printed = await asyncio.to_thread(run, *words)
    assert code == 0, printed
    async with Client(fleet.bootstrap, fleet.security()) as client:
        assert allow in await acls.describe(client, AclFilter())
    rest = await asyncio.to_thread(read_values, fleet, "billing", "keyed", 200)
    assert {value for *_, value in before + rest} == {b"value %d" % n for n in range(300)}
    committed = await asyncio.to_thread(read_values, fleet, "audit", "payments", 5)
    assert sorted(value for *_, value in committed) == [b"0-%d" % row for row in range(5)]
    # Producer ids of the lost cluster are not given out again.
    await asyncio.to_thread(produce_transactions, fleet, "payments")
    await asyncio.to_thread(produce, fleet, "keyed", 300, 10, **{"enable.idempotence": True})
    again = await asyncio.to_thread(read_values, fleet, "billing", "keyed", 10)
    assert {value for *_, value in again} == {b"value %d" % n for n in range(300, 310)}
