"""A small Kafka of the control plane's own, and control planes on it, in this process."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from penstock.control import decisions
from penstock.control.decisions import ClusterAsk
from penstock.control.local import reach_of
from penstock.control.reach import Clusters
from penstock.control.service import ControlPlane, Home, Role, Watch
from penstock.model.entities import ApiKey, LogicalCluster, Operation
from tests.ground.fleet import TINY, Fleet
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from penstock.control.decisions import Ask, Decided
    from penstock.control.reach import Provisioner
    from penstock.control.registry import Registry
    from penstock.model.entities import Entity

# So that a take-over takes a second, not six.
QUICK_SESSIONS = {"group.min.session.timeout.ms": "500"}
SESSION_SECONDS = 1.5
# Where nobody is killed a session only has to outlast whatever holds this process up.
PATIENT_SESSION_SECONDS = 6.0
ROOT = "root-token-for-tests"


@pytest.fixture(scope="session")
def control_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    one = Fleet.start(tmp_path_factory.mktemp("control"), {**TINY, "config": QUICK_SESSIONS})
    yield one
    one.destroy()


@dataclass
class Office:
    """A control plane, and what a person would do with it."""

    plane: ControlPlane
    task: asyncio.Task[None]
    stop: asyncio.Event

    async def decide(self, decision: Callable[[Registry, Ask], Decided], kind: type[Entity]) -> Decided:
        return await self.plane.decide(decision, kind, actor="test")

    async def create(self, name: str, **more: Any) -> LogicalCluster:
        decided = await self.decide(
            lambda r, a: decisions.create_cluster(r, a, ClusterAsk(name, **more)), LogicalCluster
        )
        await self.ended(decided.operation.id)
        return self.plane.registry.cluster(name)

    async def delete(self, name: str) -> Operation:
        decided = await self.decide(lambda r, a: decisions.delete_cluster(r, a, name, None), LogicalCluster)
        return await self.ended(decided.operation.id)

    async def key(self, cluster: str, key: str, secret: str, account: str | None = None) -> ApiKey:
        sha = hashlib.sha256(secret.encode()).hexdigest()
        decided = await self.decide(
            lambda r, a: decisions.create_key(r, a, cluster, account, key, sha, ""), ApiKey
        )
        await self.ended(decided.operation.id)
        return self.plane.registry.need(ApiKey, key)

    async def ended(self, operation: str) -> Operation:
        async def over() -> Operation | None:
            found = self.plane.registry.need(Operation, operation)
            return found if found.ended else None

        return await eventually(over)

    async def as_declared(self) -> None:
        """Nothing differs, once brokers have heard of what was committed."""

        async def agrees() -> bool:
            return await self.plane.check() == ()

        await eventually(agrees)

    async def active(self) -> None:
        async def reigns() -> bool:
            return self.plane.role is Role.ACTIVE

        await eventually(reigns)


@asynccontextmanager
async def open_office(
    fleet: Fleet,
    *,
    url: str = "http://test",
    provisioner: Provisioner | None = None,
    watch: Watch | None = None,
    **more: Any,
) -> AsyncIterator[Office]:
    reaches = tuple(reach_of(fleet.local, cluster, **more) for cluster in fleet.local.clusters)
    clusters = Clusters(reaches)
    root = hashlib.sha256(ROOT.encode()).hexdigest()
    home = Home(reaches[0].id, url, reaches, root)
    plane = ControlPlane(
        home, clusters, provisioner=provisioner, session_seconds=PATIENT_SESSION_SECONDS, watch=watch
    )
    stop = asyncio.Event()
    task = asyncio.create_task(plane.run(stop))
    try:
        yield Office(plane, task, stop)
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)
        await clusters.close()
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure


@pytest.fixture
async def office(control_fleet: Fleet) -> AsyncIterator[Office]:
    async with open_office(control_fleet) as one:
        await one.active()
        yield one
