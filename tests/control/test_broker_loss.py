"""The control plane and the quota coordinator survive the loss of any broker.

That includes the one that coordinates their group: its successor still knows the members, and confirms
heartbeats of a member that has given up what it owned."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from penstock.kafka.client import Client
from penstock.model.errors import PenstockError
from penstock.model.key_names import CONTROL_GROUP, COORDINATORS_GROUP
from penstock.quota.coordinator import Coordinator
from penstock.quota.topics import USAGE_PARTITIONS
from tests.control.conftest import run_control_plane
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.control.conftest import PlaneHarness
    from tests.harness.fleet import Fleet

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

CHANGE_SECONDS_MAX: Final = 30.0  # after the loss of a broker, until the next change succeeds
SOAK_SECONDS: Final = 600.0


@asynccontextmanager
async def run_coordinator(client: Client) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(client)
    running = asyncio.create_task(coordinator.run())
    try:
        yield coordinator
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def owns_all(coordinator: Coordinator) -> None:
    async def owned() -> bool:
        return coordinator.owned == frozenset(range(USAGE_PARTITIONS))

    await eventually(owned)


async def created(harness: PlaneHarness, name: str) -> float:
    """Create a logical cluster, again while no control plane is active; the seconds it took."""
    began = time.monotonic()
    while True:
        try:
            await harness.create(name)
        except PenstockError as failure:
            if not failure.retriable or time.monotonic() - began > 2 * CHANGE_SECONDS_MAX:
                raise
            await asyncio.sleep(0.1)
        else:
            return time.monotonic() - began


async def coordinator_of(client: Client, group: str) -> str:
    """The name of the node that coordinates a group now, for the nodes that are up.

    A broker that was frozen still names itself until it has read what it missed."""
    names: list[str] = []

    async def resolved() -> bool:
        response = await client.call("FindCoordinator", {"KeyType": 0, "CoordinatorKeys": [group]})
        node = response["Coordinators"][0]["NodeId"]
        nodes = (await client.cluster(refresh=True)).nodes
        names[:] = [f"b{node}"] * (node in nodes)
        return bool(names)

    await eventually(resolved)
    return names[0]


async def bring_back(fleet: Fleet, name: str) -> None:
    if fleet.node(name).running() is None:
        await asyncio.to_thread(fleet.start_node, name)
    else:
        fleet.resume(name)
        await asyncio.to_thread(fleet.wait_ready, [fleet.node(name)])


async def test_services_act_again_after_their_groups_coordinator_is_killed_or_freezes(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=3)
    losses = itertools.product((CONTROL_GROUP, COORDINATORS_GROUP), (fleet.kill, fleet.pause))
    async with (
        Client(fleet.bootstrap, fleet.security()) as client,
        run_control_plane(fleet) as harness,
        run_coordinator(client) as coordinator,
    ):
        await harness.active()
        await owns_all(coordinator)
        for number, (group, lose) in enumerate(losses):
            async with Client(fleet.bootstrap, fleet.security()) as observer:
                broker = await coordinator_of(observer, group)
            await asyncio.to_thread(lose, broker)

            await created(harness, f"after-{number}")
            await owns_all(coordinator)

            await bring_back(fleet, broker)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_changes_succeed_within_half_a_minute_while_random_brokers_are_killed(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=3)
    chance = random.Random(4)
    slowest, losses = 0.0, 0
    async with (
        Client(fleet.bootstrap, fleet.security()) as client,
        run_control_plane(fleet) as harness,
        run_coordinator(client) as coordinator,
    ):
        await harness.active()
        ends = time.monotonic() + SOAK_SECONDS
        while time.monotonic() < ends:
            broker = chance.choice(fleet.brokers).name
            await asyncio.to_thread(fleet.kill, broker)
            slowest = max(slowest, await created(harness, f"soak-{losses}"))
            losses += 1
            await owns_all(coordinator)
            await bring_back(fleet, broker)
            await harness.delete(f"soak-{losses - 1}")
    print(f"{losses} brokers killed; the slowest change took {slowest:.1f} s")
    assert slowest <= CHANGE_SECONDS_MAX
