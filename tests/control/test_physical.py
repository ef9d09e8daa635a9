"""Where logical clusters live: moved between cells under their clients, or alone on dedicated brokers."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from penstock.control import decisions
from penstock.control.cluster_placement import brokers_of
from penstock.control.physical.gateway_files import advertised_bootstrap
from penstock.control.physical.local import LocalProvisioner, cells_of
from penstock.control.service import CellWatch
from penstock.fleet.layout import Layout
from penstock.kafka.admin import topics
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.entities import (
    BrokerEndpoint,
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
from tests.control.conftest import QUICK_SESSIONS, run_control_plane
from tests.control.test_gateway_files import SECRET, new_key, started
from tests.harness.fleet import TINY, Fleet
from tests.harness.propagation import wait_for_leaders
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECORDS_BETWEEN = 50


class Tenant:
    """Produces and consumes through the gateway until stopped, and collects every error."""

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

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.errors.append(str(error))
            else:
                self.acknowledged.add(message.value() or b"")

        while not self.end.is_set():
            producer.produce("orders", str(number).encode(), on_delivery=on_delivery)
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
    async with run_control_plane(fleet, cell_brokers=1) as harness:
        await harness.active()
        cluster = await harness.create(unique("shop"), zones=Zones.SINGLE)
        await harness.key(cluster.id, key, SECRET)
        gateway = await started(fleet)
        await _topic(gateway.bootstrap, key)
        tenant = Tenant(gateway.bootstrap, key)
        try:
            await _more(tenant)
            moved = await harness.decide(
                lambda r, a: decisions.move_cluster(r, a, cluster.id, None), LogicalCluster
            )
            operation = await harness.ended(moved.operation.id)
            await _more(tenant)
        finally:
            await asyncio.to_thread(tenant.stop)
            await gateway.close()

        after = harness.plane.registry.cluster(cluster.id)
        physical = harness.plane.registry.need(PhysicalCluster, after.cluster)
        assert operation.state is OperationState.DONE
        assert (after.cell != cluster.cell, after.moving_from, after.state) == (True, "", ClusterState.READY)
        assert len(brokers_of(after, physical)) == 1
        assert tenant.errors == []
        assert tenant.consumed >= tenant.acknowledged
        await harness.as_declared()


async def _topic(bootstrap: str, key: str) -> None:
    async with Client(bootstrap, Security(Login(key, SECRET, Mechanism.PLAIN))) as client:
        made = await topics.create(client, [topics.NewTopic("orders", 3, 1)])
        assert not isinstance(made["orders"], PenstockError), made
        await wait_for_leaders(bootstrap, Security(Login(key, SECRET, Mechanism.PLAIN)), "orders", 3)


async def _more(tenant: Tenant) -> None:
    """Returns when so many more records have been written and read."""
    before = len(tenant.acknowledged), len(tenant.consumed)

    async def worked() -> bool:
        written, read = len(tenant.acknowledged) - before[0], len(tenant.consumed) - before[1]
        return written > RECORDS_BETWEEN and read > RECORDS_BETWEEN

    await eventually(worked)


@pytest.mark.kafka
async def test_a_dedicated_cluster_gets_dedicated_brokers_and_releases_them(
    control_fleet: Fleet, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    provisioner = LocalProvisioner(Layout(tmp_path), gateways=False)
    often = CellWatch(seconds=0.05)  # also polls while this cluster is released

    async def gone() -> bool:  # threads may outlive the main process for a moment
        return not _processes(str(tmp_path))

    async with run_control_plane(control_fleet, provisioner=provisioner, watch=often) as harness:
        await harness.active()

        cluster = await harness.create(unique("alone"), tenancy=Tenancy.DEDICATED)

        physical = harness.plane.registry.need(PhysicalCluster, cluster.cluster)
        brokers = _processes(str(tmp_path))
        assert (physical.tenancy, physical.state) == (Tenancy.DEDICATED, ClusterState.READY)
        assert physical.kafka_id != control_fleet.kafka_id
        assert brokers, "no broker process was found"
        assert cluster.cell == physical.cells[0].id
        await harness.as_declared()
        deleted = await harness.delete(cluster.id)
        assert deleted.state is OperationState.DONE
        assert harness.plane.registry.get(PhysicalCluster, cluster.cluster) is None
        await eventually(gone)
        assert not (tmp_path / "dedicated" / physical.id).exists()


@pytest.mark.kafka
async def test_tenants_work_and_gateways_start_while_home_cluster_and_control_plane_are_down(
    make_fleet: Callable[..., Fleet], tmp_path: Path, unique: Callable[[str], str]
) -> None:
    home = await asyncio.to_thread(make_fleet, **TINY, config=QUICK_SESSIONS)
    provisioner = LocalProvisioner(Layout(tmp_path), gateways=False)
    key = new_key(unique)
    async with run_control_plane(home, provisioner=provisioner) as harness:
        await harness.active()
        cluster = await harness.create(unique("alone"), tenancy=Tenancy.DEDICATED)
        await harness.key(cluster.id, key, SECRET)
    elsewhere = Fleet(provisioner._supervised[cluster.cluster].supervisor.fleet)
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
    """Java processes with a path below this one in their arguments."""
    pids = []
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        if "java" in (process.info["name"] or "") and any(below in word for word in words):
            pids.append(process.pid)
    return pids


def test_cells_are_planned_over_zones_or_there_is_one() -> None:
    brokers = [BrokerEndpoint(BrokerId(n), Zone("abc"[n % 3]), "h", 1) for n in range(6)]

    assert [cell.brokers for cell in cells_of(brokers, 0)] == [(0, 1, 2, 3, 4, 5)]
    assert [cell.brokers for cell in cells_of(brokers, 3)] == [(0, 1, 2), (3, 4, 5)]
    with pytest.raises(CellSizeUneven):
        cells_of(brokers, 4)


def test_without_a_gateway_there_is_no_address_for_tenants(tmp_path: Path) -> None:
    assert advertised_bootstrap(tmp_path / "gateway.yaml") == ""
