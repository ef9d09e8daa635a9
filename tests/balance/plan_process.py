"""Plans run as in a control plane, also in a separate process that a test can kill:

python -m tests.balance.plan_process JSON
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock.balance.execute import Executor
from penstock.balance.plan_document import PlanDocument, PlanHeader, PlannedMove
from penstock.control.load.plan_service import PlanService
from penstock.control.load.plan_store import PlanStore, PlanWriter
from penstock.control.physical.cluster_access import Clusters
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Security
from penstock.model import fault_points
from penstock.model.entities import Operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from penstock.balance.executing import Budget

CLUSTER = "pkc-000001"


class OneCluster(Clusters):
    def __init__(self, client: Client) -> None:
        super().__init__(())
        self._clients[CLUSTER] = client

    def has(self, cluster: str) -> bool:
        return cluster == CLUSTER


class Plans:
    """The plans of an active control plane."""

    def __init__(self, client: Client, budget: Budget | None = None) -> None:
        self.executor = Executor(client, budget=budget, poll_seconds=0.1)
        self.store = PlanStore(client)
        writer = PlanWriter(client, self.store)
        self.service = PlanService(self.store, writer, OneCluster(client), lambda _: self.executor)

    @classmethod
    @asynccontextmanager
    async def running(cls, client: Client, budget: Budget | None = None) -> AsyncIterator[Plans]:
        plans = cls(client, budget)
        tasks = [asyncio.create_task(plans.store.run())]
        try:
            await plans.store.follower.wait_until_caught_up()
            tasks.append(asyncio.create_task(plans.service.run()))
            yield plans
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def propose(self, moves: Sequence[PlannedMove]) -> PlanDocument:
        return await self.service.propose_moves(moves, cluster=CLUSTER, actor="test", purpose="balance")

    async def change(self, plan: str, action: str, **arguments: object) -> None:
        await self.service.change(Operation(id="op-1", action=action, subject=plan, arguments=arguments))

    async def until_ended(self, plan: str) -> PlanHeader:
        while not (header := self.store.need(plan).header).state.ended:
            await asyncio.sleep(0.1)
        return header


async def main(facts: dict[str, Any]) -> None:
    fault_points.check_armed()
    async with (
        Client(facts["bootstrap"], Security(Login(facts["user"], facts["password"]))) as client,
        Plans.running(client) as plans,
    ):
        moves = [
            PlannedMove(**{**m, "before": tuple(m["before"]), "after": tuple(m["after"])})
            for m in facts["moves"]
        ]
        plan = (await plans.propose(moves)).id
        await plans.change(plan, "plan.pace", rate=facts["rate"])
        await plans.change(plan, "plan.run")
        if facts["cancels"]:
            while not plans.store.need(plan).header.progress.copying:
                await asyncio.sleep(0.1)
            await plans.change(plan, "plan.cancel", roll_back=True)
        await plans.until_ended(plan)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
