"""A link's process is killed at each fault point, under load; its successor continues, and both sides agree.

Each point is one promotion of a fresh topic: mirror while producers write, die at the point, start again,
promote it, and compare every batch of both clusters.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from penstock.fleet.credentials.passwords import NODE_USER, PLATFORM_USER
from penstock.fleet.spec import Listener
from penstock.kafka.admin import acls, topics
from penstock.kafka.admin.acls import AclFilter
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.link import commands
from penstock.link.mirror_topics import closing_acl
from penstock.link.runner import RECORDED, STEP_POINTS
from penstock.link.states import Action, State
from penstock.model.fault_points import FAULT_VARIABLE, points
from penstock.shadow.broker import STEPPING_DOWN
from tests.harness.shadow import shadow_settings
from tests.link.test_with_kafka import differing, produce, read_values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from subprocess import Popen

    from tests.harness.fleet import Fleet
    from tests.harness.processes import Processes

# About 20 s for each of the points, on an idle machine.
pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(1800)]

WAIT_SECONDS = 240.0
RECORDS = 200
# Reached only when a source truncates, a follower returns or a link is reversed: test_source_failures,
# tests/shadow, test_reversal_with_kafka.
ELSEWHERE = (
    "link.truncation.written", "shadow.isr-requested", "link.reverse.saved", "link.reverse.truncated",
)  # fmt: skip
POINTS = [point for area in ("shadow", "link") for point in points(area) if point not in ELSEWHERE]
OF_PROMOTION = (*STEP_POINTS.values(), RECORDED, STEPPING_DOWN)


def link_file(there: Fleet, here: Fleet, directory: Path) -> Path:
    settings = shadow_settings(here, directory / "shadow")
    node = next(node for node in here.nodes if node.spec.is_controller)
    document: dict[str, Any] = {
        "source": {"bootstrap": there.bootstrap, "login": login_of(there)},
        "destination": {
            "bootstrap": here.bootstrap,
            "controllers": node.cluster.spec.bootstrap(Listener.CONTROLLER),
            "tls": {"ca": str(here.local.access.ca)},
            "login": login_of(here),
        },
        "shadow": {
            "directory": str(settings.directory), "host": "127.0.0.1",
            "certificate": str(settings.directory / "keystore.pem"), "admitted": [NODE_USER, PLATFORM_USER],
        },
    }  # fmt: skip
    path = directory / "link.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def login_of(fleet: Fleet) -> dict[str, str]:
    return {"user": PLATFORM_USER, "password": fleet.local.access.credentials.platform}


async def until_state(client: Client, link: str, child: Popen[Any], *, end: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        row = await commands.show(client, link)
        ends = [one["end"] for one in row["progress"].values()]
        if row["state"] == State.MIRRORING and row["lag"] == 0 and ends and min(ends) >= end:
            return
        assert child.poll() is None, f"the link ended: {child.returncode}"
        assert time.monotonic() < deadline, row
        await asyncio.sleep(0.2)


async def test_a_link_that_is_killed_anywhere_is_continued_and_both_sides_agree(
    make_fleet: Callable[..., Fleet], processes: Processes, tmp_path: Path
) -> None:
    there = await asyncio.to_thread(make_fleet)
    here = await asyncio.to_thread(make_fleet, brokers=2, zones=["a", "b"], tls=True)
    file = link_file(there, here, tmp_path)
    log = (tmp_path / "link.log").open("wb")

    def start(link: str, fault: str = "") -> Popen[Any]:
        command = [sys.executable, "-m", "penstock", "link", "run", link, "--settings", str(file)]
        environment = {**os.environ, FAULT_VARIABLE: fault} if fault else dict(os.environ)
        return processes.start(command, env=environment, stdout=log, stderr=log)

    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(Client(there.bootstrap, there.security()))
        client = await stack.enter_async_context(Client(here.bootstrap, here.security()))
        for number, point in enumerate(POINTS):
            topic, link = f"orders-{number}", f"link-{number}"
            results_or_raise(await topics.create(source, [topics.NewTopic(topic, 1, 1)]))
            await asyncio.to_thread(there.wait_for_leaders, topic)
            await asyncio.to_thread(produce, there, topic, 0, RECORDS)
            await asyncio.to_thread(read_values, there, f"group-{number}", topic, 50)
            await commands.create(source, client, link, [topic])
            armed = start(link, point)
            action = Action.PROMOTE  # it commits the latest group offsets; a failover may be seconds behind
            if point in OF_PROMOTION:
                await until_state(client, link, armed, end=RECORDS)
                request = asyncio.create_task(commands.request(client, link, action, seconds=WAIT_SECONDS))
            else:
                request = None
            await asyncio.to_thread(armed.wait, WAIT_SECONDS)
            assert armed.returncode == -9, f"{point}: the process ended with {armed.returncode}"
            # While the shadow is dead, the mirror is closed, unless the promotion had opened it.
            described = (await topics.describe(client, [topic]))[topic]
            row = await commands.show(client, link)
            if isinstance(described, topics.Topic) and row["step"] not in ("aborted", "opened", "removed"):
                assert closing_acl(topic) in await acls.describe(client, AclFilter())
            successor = start(link)
            if request is None:
                await asyncio.to_thread(produce, there, topic, RECORDS, 50)
                await until_state(client, link, successor, end=RECORDS + 50)
                row = await commands.request(client, link, action, seconds=WAIT_SECONDS)
            else:
                row = await request
            await asyncio.to_thread(successor.wait, WAIT_SECONDS)
            assert (row["state"], successor.returncode) == (State.ACTIVE, 0), point
            assert await differing(source, client, [topic]) == [], point
            total = RECORDS if request is not None else RECORDS + 50
            rest = await asyncio.to_thread(read_values, here, f"group-{number}", topic, total - 50)
            assert [value for _, _, value in rest] == [b"value %d" % n for n in range(50, total)], point
            await asyncio.to_thread(produce, here, topic, total, 1)
    log.close()
