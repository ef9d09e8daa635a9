"""A move in a separate process, so that a test can kill it: `python -m tests.balance.move_process JSON`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from penstock.balance.cells import Broker
from penstock.balance.execute import move_tenant
from penstock.balance.tenant_move import Target
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Security
from penstock.model import fault_points
from penstock.model.ids import BrokerId, LogicalClusterId, Zone


async def main(plan: dict[str, Any]) -> None:
    fault_points.check_armed()
    brokers = tuple(Broker(BrokerId(number), Zone(zone)) for number, zone in plan["brokers"])
    async with Client(plan["bootstrap"], Security(Login(plan["user"], plan["password"]))) as client:
        target = Target(LogicalClusterId(plan["tenant"]), brokers)
        await move_tenant(client, target, rate=plan["rate"], poll_seconds=0.1)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
