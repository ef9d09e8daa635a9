"""Clusters beside the home cluster, which may be slow or down: leadership does not wait for them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from penstock.control import service
from penstock.control.home import Home
from penstock.control.leadership import OPERATIONS_MAX, LeadershipTerm
from penstock.control.physical.cluster_access import Clusters, ProvidedCluster
from penstock.control.registry import Put
from penstock.control.service import ControlPlane, Role
from penstock.control.step_outcome import Pending
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.model.entities import Operation
from penstock.model.errors.wire import BrokerUnreachable
from penstock.model.ids import LogicalClusterId, PhysicalClusterId
from tests.control.in_memory_control import physical

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.control.load.plan_store import PlanStore
    from penstock.control.physical.cluster_access import Provisioner
    from penstock.kafka.client import Client
    from penstock.kafka.compacted_topic import CompactedTopicReader
    from penstock.kafka.ownership import Ownership
    from penstock.model.entities import PhysicalCluster

HOME, SLOW, OTHER = "pkc-000000", "pkc-000001", "pkc-000002"

pytestmark = pytest.mark.timeout(30)  # what waits for a cluster that is down waits for ever


def provided(cluster: str) -> ProvidedCluster:
    return ProvidedCluster(
        PhysicalClusterId(cluster), cluster, "local", "127.0.0.1:1", PlatformKey(b"k" * 32)
    )


class Provider:
    """Resumes clusters; `SLOW` takes until the end of the test."""

    def __init__(self) -> None:
        self.resumed: list[str] = []

    def fleet(self) -> tuple[ProvidedCluster, ...]:
        return ()

    async def resume(self, cluster: PhysicalCluster) -> ProvidedCluster:
        self.resumed.append(cluster.id)
        if cluster.id == SLOW:
            await asyncio.Event().wait()
        return provided(cluster.id)


class Term:
    """A leadership term that is ready at once. The first cluster that is added is not reached."""

    def __init__(self, *_: object, failures: int = 0) -> None:
        self.ready = asyncio.Event()
        self.effects = SimpleNamespace(resize=SimpleNamespace(maker=None), released=set[str]())
        self.added: list[str] = []
        self.failures = failures

    async def run(self) -> None:
        self.ready.set()
        await asyncio.Event().wait()

    async def add_cluster(self, added: ProvidedCluster) -> None:
        self.added.append(added.id)
        if len(self.added) <= self.failures:
            raise BrokerUnreachable(address=added.id, reason="refused")


def plane_with(*clusters: str, provider: Provider | None = None) -> ControlPlane:
    """The registry has these clusters beside its home; a predecessor provisioned them."""
    home = provided(HOME)
    plane = ControlPlane(
        Home(HOME, "http://test", (home,)),
        Clusters((home,)),
        provisioner=cast("Provisioner | None", provider),
    )
    for cluster in clusters:
        plane._registry.accept([Put(replace(physical(), id=cluster))])
    return plane


@asynccontextmanager
async def reconnecting(plane: ControlPlane, term: Term) -> AsyncIterator[None]:
    plane._term = cast("LeadershipTerm", term)
    running = asyncio.create_task(plane._reconnect())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until_known(plane: ControlPlane, cluster: str) -> None:
    while not plane.clusters.has(cluster):
        await asyncio.sleep(0)


async def caught_up() -> None:
    return


async def test_a_control_plane_is_active_before_it_has_reached_what_its_predecessor_provisioned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plane = plane_with(SLOW, provider=Provider())
    plane._follower = cast("CompactedTopicReader", SimpleNamespace(wait_until_caught_up=caught_up))
    monkeypatch.setattr(service, "LeadershipTerm", Term)
    plane._owner_changed(True)

    leading = asyncio.create_task(
        plane._lead_while_owner(cast("Ownership", SimpleNamespace(is_owner=lambda: True)))
    )

    while plane.role is not Role.ACTIVE:
        await asyncio.sleep(0)
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_a_cluster_that_is_slow_to_respond_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FOLLOW_SECONDS", 0.0)
    provider, term = Provider(), Term()
    plane = plane_with(SLOW, OTHER, provider=provider)

    async with reconnecting(plane, term):
        await until_known(plane, OTHER)

    assert provider.resumed == [SLOW, OTHER]
    assert term.added == [OTHER]
    assert not plane.clusters.has(SLOW)


async def test_a_cluster_that_could_not_be_prepared_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FOLLOW_SECONDS", 0.0)
    term = Term(failures=2)
    plane = plane_with(OTHER, provider=Provider())

    async with reconnecting(plane, term):
        while len(term.added) < 3:
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    assert plane.clusters.has(OTHER)


async def test_a_cluster_that_is_being_released_is_not_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FOLLOW_SECONDS", 0.0)
    provider, term = Provider(), Term()
    term.effects.released.add(SLOW)
    plane = plane_with(SLOW, OTHER, provider=provider)

    async with reconnecting(plane, term):
        await until_known(plane, OTHER)

    assert provider.resumed == [OTHER]


async def test_clusters_are_prepared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: set[str] = set()
    all_begun = asyncio.Event()

    async def prepare(self: Home, client: Client, each: ProvidedCluster) -> None:
        del self, client
        if each.id == HOME:
            return
        begun.add(each.id)
        if begun == {SLOW, OTHER}:
            all_begun.set()
        await all_begun.wait()
        raise BrokerUnreachable(address=each.id, reason="refused")

    monkeypatch.setattr(Home, "prepare", prepare)
    plane = plane_with()
    plane.clusters.add(provided(SLOW))
    plane.clusters.add(provided(OTHER))

    await plane._prepare_clusters()

    assert begun == {SLOW, OTHER}


async def test_a_cluster_is_left_to_the_next_term_once_a_term_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def prepare(self: Home, client: Client, each: ProvidedCluster) -> None:
        del self, client, each

    monkeypatch.setattr(Home, "prepare", prepare)
    plane = plane_with()
    plane.clusters.add(provided(OTHER))
    term = term_of(plane)
    async with asyncio.TaskGroup() as group:
        term._group = group

    await term.add_cluster(provided(OTHER))

    assert term.publishers == {}


def term_of(plane: ControlPlane) -> LeadershipTerm:
    follower = cast("CompactedTopicReader", None)  # not used
    plans = cast("PlanStore", None)
    return LeadershipTerm(
        plane._home, plane.clusters, follower, plane._registry.copy, None, lambda: True, plans
    )


async def test_many_operations_of_one_tenant_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    term = term_of(plane_with())
    hanging = asyncio.Event()

    async def perform(operation: Operation, report: object) -> Pending:
        del report
        if operation.tenant == "lkc-000001":
            await hanging.wait()
        return Pending(0.0, "")

    monkeypatch.setattr(term.effects, "perform", perform)
    one = Operation(id="op-1", action="", subject="", tenant=LogicalClusterId("lkc-000001"))
    lock = asyncio.Lock()
    async with asyncio.TaskGroup() as group:
        for _ in range(OPERATIONS_MAX):
            group.create_task(term._attempt_step(one, lock))
        await asyncio.sleep(0)

        await term._attempt_step(replace(one, tenant=LogicalClusterId("lkc-000002")), asyncio.Lock())
        hanging.set()
