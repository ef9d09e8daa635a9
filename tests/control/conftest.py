"""A small Kafka fleet for the control plane, and control planes on it in this process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest
from starlette.testclient import TestClient

from penstock.control import decisions
from penstock.control.api.app import make_api
from penstock.control.decisions import ClusterRequest
from penstock.control.home import Home
from penstock.control.physical.cluster_access import Clusters
from penstock.control.physical.local import provided_cluster
from penstock.control.service import CellWatch, ControlPlane, Role
from penstock.model.api_keys import hashed
from penstock.model.entities import ApiKey, LogicalCluster, Operation
from tests.control.in_memory_plane import Api, InMemoryPlane
from tests.harness.control_planes import Planes
from tests.harness.fleet import TINY, Fleet
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from fastapi import FastAPI

    from penstock.control.decisions import Decision, DecisionContext
    from penstock.control.physical.cluster_access import Provisioner
    from penstock.control.registry import Registry
    from penstock.model.entities import Entity
    from tests.harness.processes import Processes
    from tests.harness.secured_kafka import SecuredKafka

# A takeover takes a second, not six.
QUICK_SESSIONS = {"group.min.session.timeout.ms": "500"}
SESSION_SECONDS = 3.0  # a busy machine stops a process for a second or two
# Where no process is killed, a session only has to outlast delays of this process.
PATIENT_SESSION_SECONDS = 6.0
ROOT = "root-token-for-tests"


@pytest.fixture(scope="session")
def control_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    one = Fleet.start(tmp_path_factory.mktemp("control"), {**TINY, "config": QUICK_SESSIONS})
    yield one
    one.destroy()


@dataclass
class PlaneHarness:
    """A running control plane, and what tests do with it."""

    plane: ControlPlane
    task: asyncio.Task[None]
    stop: asyncio.Event

    async def decide(
        self, decision: Callable[[Registry, DecisionContext], Decision], kind: type[Entity]
    ) -> Decision:
        return await self.plane.decide(decision, kind, actor="test")

    async def create(self, name: str, **more: Any) -> LogicalCluster:
        committed = await self.decide(
            lambda r, a: decisions.create_cluster(r, a, ClusterRequest(name, **more)), LogicalCluster
        )
        await self.ended(committed.operation.id)
        return self.plane.registry.cluster(name)

    async def delete(self, name: str) -> Operation:
        committed = await self.decide(lambda r, a: decisions.delete_cluster(r, a, name, None), LogicalCluster)
        return await self.ended(committed.operation.id)

    async def key(self, cluster: str, key: str, secret: str, account: str | None = None) -> ApiKey:
        sha = hashed(secret)
        committed = await self.decide(
            lambda r, a: decisions.create_key(r, a, cluster, account, key, sha, ""), ApiKey
        )
        await self.ended(committed.operation.id)
        return self.plane.registry.need(ApiKey, key)

    async def ended(self, operation: str) -> Operation:
        async def over() -> Operation | None:
            current = self.plane.registry.need(Operation, operation)
            return current if current.ended else None

        return await eventually(over)

    async def as_declared(self) -> None:
        """Returns once brokers have applied everything and nothing differs."""

        async def agrees() -> bool:
            return await self.plane.check() == ()

        await eventually(agrees)

    async def active(self) -> None:
        async def is_active() -> bool:
            return self.plane.role is Role.ACTIVE

        await eventually(is_active)


@asynccontextmanager
async def run_control_plane(
    fleet: Fleet,
    *,
    url: str = "http://test",
    provisioner: Provisioner | None = None,
    watch: CellWatch | None = None,
    **more: Any,
) -> AsyncIterator[PlaneHarness]:
    provided_clusters = tuple(
        provided_cluster(fleet.local, cluster, **more) for cluster in fleet.local.clusters
    )
    clusters = Clusters(provided_clusters)
    root = hashed(ROOT)
    home = Home(provided_clusters[0].id, url, provided_clusters, root)
    plane = ControlPlane(
        home, clusters, provisioner=provisioner, session_seconds=PATIENT_SESSION_SECONDS, watch=watch
    )
    stop = asyncio.Event()
    task = asyncio.create_task(plane.run(stop))
    try:
        yield PlaneHarness(plane, task, stop)
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)
        await clusters.close()
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure


@pytest.fixture
async def harness(control_fleet: Fleet) -> AsyncIterator[PlaneHarness]:
    async with run_control_plane(control_fleet) as one:
        await one.active()
        yield one


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """One app for all tests: creating it takes longer than most of them."""
    with TestClient(make_api(), raise_server_exceptions=False) as one:
        yield one


@pytest.fixture
def api(client: TestClient) -> Api:
    plane = InMemoryPlane()
    cast("FastAPI", client.app).state.plane = plane  # the client types it as any ASGI application
    return Api(plane, client)


@pytest.fixture
def planes(secured_kafka: SecuredKafka, processes: Processes, tmp_path: Path) -> Planes:
    return Planes(secured_kafka, processes, tmp_path)
