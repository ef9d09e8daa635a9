"""Where logical clusters live: moved between cells under their clients, or alone on brokers of their own."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from penstock.control import decisions
from penstock.control.gateways import offered_bootstrap
from penstock.control.local import LocalProvisioner, cells_of
from penstock.control.placing import brokers_of
from penstock.control.service import Watch
from penstock.fleet.layout import Layout
from penstock.kafka import topics
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.entities import (
    BrokerPlace,
    ClusterState,
    LogicalCluster,
    OperationState,
    PhysicalCluster,
    Tenancy,
    Zones,
)
from penstock.model.errors import PenstockError
from penstock.model.errors.balance import CellSizeUneven
from penstock.model.ids import BrokerId, Zone
from tests.control.conftest import QUICK_SESSIONS, open_office
from tests.control.test_gateways import SECRET, new_key, started
from tests.ground.fleet import TINY, Fleet
from tests.ground.topics import led_everywhere
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECORDS_BETWEEN = 50


class Tenant:
    """Produces and consumes through the gateway until told to stop, and remembers every error."""

    def __init__(self, bootstrap: str, key: str) -> None:
        self.settings = {
            "bootstrap.servers": bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": key, "sasl.password": SECRET,
        }  # fmt: skip
        self.acknowledged: set[bytes] = set()
        self.consumed: set[bytes] = set()
        self.errors: list[str] = []
        self.end = threading.Event()
        self.flushed = threading.Event()  # nothing is acknowledged after this
        self.threads = [threading.Thread(target=work) for work in (self._produce, self._consume)]
        for thread in self.threads:
            thread.start()

    def _produce(self) -> None:
        producer = Producer({**self.settings, "acks": "all", "linger.ms": 5})
        number = 0

        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.errors.append(str(error))
            else:
                self.acknowledged.add(message.value() or b"")

        while not self.end.is_set():
            producer.produce("orders", str(number).encode(), on_delivery=told)
            number += 1
            producer.poll(0.01)
        producer.flush(30)
        self.flushed.set()

    def _consume(self) -> None:
        consumer = Consumer({**self.settings, "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        while not (self.flushed.is_set() and self.consumed >= self.acknowledged):
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.consumed.add(message.value() or b"")
        consumer.close()

    def stop(self) -> None:
        self.end.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.kafka
async def test_a_cluster_moves_to_another_cell_while_its_clients_work(
    make_fleet: Callable[..., Fleet], unique: Callable[[str], str]
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=2, zones=["a"], config=QUICK_SESSIONS)
    key = new_key(unique)
    async with open_office(fleet, cell_brokers=1) as office:
        await office.active()
        cluster = await office.create(unique("shop"), zones=Zones.SINGLE)
        await office.key(cluster.id, key, SECRET)
        gateway = await started(fleet)
        await _topic(gateway.bootstrap, key)
        tenant = Tenant(gateway.bootstrap, key)
        try:
            await _more(tenant)
            moved = await office.decide(
                lambda r, a: decisions.move_cluster(r, a, cluster.id, None), LogicalCluster
            )
            operation = await office.ended(moved.operation.id)
            await _more(tenant)
        finally:
            await asyncio.to_thread(tenant.stop)
            await gateway.close()

        after = office.plane.registry.cluster(cluster.id)
        physical = office.plane.registry.need(PhysicalCluster, after.cluster)
        assert operation.state is OperationState.DONE
        assert (after.cell != cluster.cell, after.moving_from, after.state) == (True, "", ClusterState.READY)
        assert len(brokers_of(after, physical)) == 1
        assert tenant.errors == []
        assert tenant.consumed >= tenant.acknowledged
        await office.as_declared()


async def _topic(bootstrap: str, key: str) -> None:
    async with Client(bootstrap, Security(Login(key, SECRET, Mechanism.PLAIN))) as client:
        made = await topics.create(client, [topics.NewTopic("orders", 3, 1)])
        assert not isinstance(made["orders"], PenstockError), made
        await led_everywhere(bootstrap, Security(Login(key, SECRET, Mechanism.PLAIN)), "orders", 3)


async def _more(tenant: Tenant) -> None:
    """Until so many more records were written and read."""
    before = len(tenant.acknowledged), len(tenant.consumed)

    async def worked() -> bool:
        written, read = len(tenant.acknowledged) - before[0], len(tenant.consumed) - before[1]
        return written > RECORDS_BETWEEN and read > RECORDS_BETWEEN

    await eventually(worked)


@pytest.mark.kafka
async def test_a_dedicated_cluster_gets_brokers_of_its_own_and_gives_them_back(
    control_fleet: Fleet, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    provisioner = LocalProvisioner(Layout(tmp_path), gateways=False)
    often = Watch(seconds=0.05)  # looks for clusters to be reached while this one is ended

    async def gone() -> bool:  # its last threads take a moment longer than a process
        return not _processes(str(tmp_path))

    async with open_office(control_fleet, provisioner=provisioner, watch=often) as office:
        await office.active()

        cluster = await office.create(unique("alone"), tenancy=Tenancy.DEDICATED)

        physical = office.plane.registry.need(PhysicalCluster, cluster.cluster)
        mine = _processes(str(tmp_path))
        assert (physical.tenancy, physical.state) == (Tenancy.DEDICATED, ClusterState.READY)
        assert physical.kafka_id != control_fleet.kafka_id
        assert mine, "no broker process was found"
        assert cluster.cell == physical.cells[0].id
        await office.as_declared()
        deleted = await office.delete(cluster.id)
        assert deleted.state is OperationState.DONE
        assert office.plane.registry.get(PhysicalCluster, cluster.cluster) is None
        await eventually(gone)
        assert not (tmp_path / "dedicated" / physical.id).exists()


@pytest.mark.kafka
async def test_tenants_work_and_gateways_start_while_home_and_control_plane_are_down(
    make_fleet: Callable[..., Fleet], tmp_path: Path, unique: Callable[[str], str]
) -> None:
    home = await asyncio.to_thread(make_fleet, **TINY, config=QUICK_SESSIONS)
    provisioner = LocalProvisioner(Layout(tmp_path), gateways=False)
    key = new_key(unique)
    async with open_office(home, provisioner=provisioner) as office:
        await office.active()
        cluster = await office.create(unique("alone"), tenancy=Tenancy.DEDICATED)
        await office.key(cluster.id, key, SECRET)
    elsewhere = Fleet(provisioner._kept[cluster.cluster].supervisor.fleet)
    await provisioner.close()
    try:
        await asyncio.to_thread(home.destroy)

        gateway = await started(elsewhere)

        await _topic(gateway.bootstrap, key)
        tenant = Tenant(gateway.bootstrap, key)
        await _more(tenant)
        await asyncio.to_thread(tenant.stop)
        await gateway.close()
        assert tenant.errors == []
    finally:
        await asyncio.to_thread(elsewhere.destroy)


def _processes(below: str) -> list[int]:
    """Java processes that were given a path below this one."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        if "java" in (process.info["name"] or "") and any(below in word for word in words):
            found.append(process.pid)
    return found


def test_cells_are_planned_over_zones_or_are_one() -> None:
    brokers = [BrokerPlace(BrokerId(n), Zone("abc"[n % 3]), "h", 1) for n in range(6)]

    assert [cell.brokers for cell in cells_of(brokers, 0)] == [(0, 1, 2, 3, 4, 5)]
    assert [cell.brokers for cell in cells_of(brokers, 3)] == [(0, 1, 2), (3, 4, 5)]
    with pytest.raises(CellSizeUneven):
        cells_of(brokers, 4)


def test_without_a_gateway_there_is_no_address_for_tenants(tmp_path: Path) -> None:
    assert offered_bootstrap(tmp_path / "gateway.yaml") == ""
