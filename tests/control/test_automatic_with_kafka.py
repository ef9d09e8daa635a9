"""A cluster in mode `auto` grows when its work rises, and shrinks once when it falls, on a real fleet.

Only the weeks of load are the test's: brokers start, are filled, emptied and stopped."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from penstock.balance.advice import Verdict
from penstock.control.load.load_hours import hour_now
from penstock.control.physical.local import LocalProvisioner
from penstock.control.size.sizing import SizingFiles, set_sizing
from penstock.model.entities import ConditionKind, Operation, OperationState, PhysicalCluster
from penstock.model.events import LoadHour
from penstock.model.ids import PhysicalClusterId
from tests.control.conftest import QUICK_SESSIONS, PlaneHarness, run_control_plane
from tests.control.in_memory_plane import InMemoryHours
from tests.harness.command import Penstock
from tests.harness.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(900)]

WEEKS_HOURS = 28 * 24


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Platform]:
    """Three brokers in three zones with a supervisor; the control plane is the test's."""
    penstock = Penstock(home=tmp_path / "home", directory=tmp_path)
    platform = Platform(penstock)
    shape = {"port": 0, "zones": ["a", "b", "c"], "brokers": 3, "config": QUICK_SESSIONS}
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump({"clusters": [shape]}))
    platform.up("--fleet", str(tmp_path / "fleet.yaml"))
    yield platform
    penstock("down")
    penstock.end_everything()


def cluster_of(harness: PlaneHarness) -> PhysicalCluster:
    (one,) = harness.plane.registry.all(PhysicalCluster)
    return one


def observe(hours: InMemoryHours, cluster: PhysicalCluster, work: float, *, last_hours: int) -> None:
    """The last hours saw so much work on the cluster's brokers."""
    now, brokers = hour_now(), len(cluster.brokers)
    for hour in range(now - last_hours + 1, now + 1):
        hours.known[hour] = LoadHour(PhysicalClusterId(cluster.id), hour, brokers, work, 1.0, 360)


async def round_of(harness: PlaneHarness) -> list[Operation]:
    """One round of sizing, to the end of what it began."""
    before = {one.id for one in harness.plane.registry.all(Operation)}
    await harness.plane.sizing.run_round(cluster_of(harness).id)
    begun = [
        one
        for one in harness.plane.registry.all(Operation)
        if one.id not in before and one.action.startswith("fleet.")
    ]
    return [await ended(harness, one.id) for one in begun]


async def ended(harness: PlaneHarness, operation: str) -> Operation:
    async with asyncio.timeout(300):
        while not (current := harness.plane.registry.need(Operation, operation)).ended:
            await asyncio.sleep(0.1)
    return current


async def test_rising_work_grows_a_cluster_and_falling_work_shrinks_it_once(home: Platform) -> None:
    fleet: Any = SimpleNamespace(local=home.fleet)
    provisioner = LocalProvisioner(home.layout, gateways=False)
    async with run_control_plane(fleet, provisioner=provisioner) as harness:
        await harness.active()
        hours = InMemoryHours()
        harness.plane.sizing.history = hours
        bounds: dict[str, str | float | None] = {"mode": "auto", "brokers_min": 3.0, "brokers_max": 6.0}
        await harness.decide(
            partial(set_sizing, physical_id=cluster_of(harness).id, changes=bounds, files=SizingFiles()),
            PhysicalCluster,
        )

        observe(hours, cluster_of(harness), 2.4, last_hours=48)
        (growth,) = await round_of(harness)

        assert (growth.action, growth.state, growth.actor) == ("fleet.grow", OperationState.DONE, "sizing")
        assert [broker.id for broker in cluster_of(harness).brokers] == [1, 2, 3, 4, 5, 6]
        assert await round_of(harness) == []  # the load of six brokers is not known yet

        observe(hours, cluster_of(harness), 2.4, last_hours=1)
        advice = await harness.plane.sizing.advice(cluster_of(harness).id)
        assert advice.verdict is Verdict.RIGHT_SIZED, advice
        assert await round_of(harness) == []
        assert cluster_of(harness).condition(ConditionKind.SIZE_ADVISED) is None

        observe(hours, cluster_of(harness), 0.4, last_hours=WEEKS_HOURS)
        (shrinking,) = await round_of(harness)

        assert (shrinking.action, shrinking.state) == ("fleet.shrink", OperationState.DONE)
        assert [broker.id for broker in cluster_of(harness).brokers] == [1, 2, 3]
        observe(hours, cluster_of(harness), 0.4, last_hours=1)
        assert await round_of(harness) == []
        await asyncio.to_thread(home.wait_ready)
