"""Failback between two real clusters: killed at each fault point, both sides are equal afterwards."""

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
from penstock.link.readiness import readiness
from penstock.link.runner import LinkRunner
from penstock.link.states import Action, State
from penstock.model.errors.link import LinkExists, LinkStateConflict, NotTheOldSource
from penstock.model.fault_points import FAULT_VARIABLE
from penstock.wire.records import batches, records
from tests.harness.shadow import controllers_of, shadow_settings
from tests.link.test_kills import login_of
from tests.link.test_with_kafka import differing, produce, read_values, until_mirrored

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from subprocess import Popen

    from tests.harness.fleet import Fleet
    from tests.harness.processes import Processes

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(900)]

WAIT_SECONDS = 240.0
NAMES = ["keyed", "idle"]
POINTS = ("link.reverse.saved", "link.reverse.truncated")


def link_file(active: Fleet, old: Fleet, directory: Path) -> Path:
    """Settings of a link from `active` to `old`."""
    settings = shadow_settings(old, directory / "shadow")
    node = next(node for node in old.nodes if node.spec.is_controller)

    def access(fleet: Fleet) -> dict[str, Any]:
        has_tls = fleet.local.clusters[0].cluster.spec.tls
        tls = {"tls": {"ca": str(fleet.local.access.ca)}} if has_tls else {}
        return {"bootstrap": fleet.bootstrap, "login": login_of(fleet), **tls}

    shadow: dict[str, Any] = {
        "directory": str(settings.directory), "host": "127.0.0.1", "admitted": [NODE_USER, PLATFORM_USER],
    }  # fmt: skip
    if settings.tls is not None:
        shadow["certificate"] = str(settings.directory / "keystore.pem")
    document = {
        "source": access(active),
        "destination": access(old) | {"controllers": node.cluster.spec.bootstrap(Listener.CONTROLLER)},
        "shadow": shadow,
        "tails": {"directory": str(directory / "tails")},
    }
    path = directory / "link.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


async def until(client: Client, child: Popen[Any], ready: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_SECONDS
    while not ready(row := await commands.show(client, "east")):
        assert child.poll() is None, f"the link ended: {child.returncode}, {row}"
        assert time.monotonic() < deadline, row
        await asyncio.sleep(0.2)
    return row


def mirrors(count: int) -> Callable[[dict[str, Any]], bool]:
    """Whether a link mirrors this many records of all its topics, and lags behind none."""

    def check(row: dict[str, Any]) -> bool:
        ends = sum(max(0, one["source_end"]) for one in row["progress"].values())
        return bool(row["state"] == State.MIRRORING and row["lag"] == 0 and ends >= count)

    return check


def saved_values(directory: Path) -> set[bytes]:
    """The values in the saved tails."""
    return {
        record.value or b""
        for path in directory.rglob("*.log")
        for batch in batches(path.read_bytes())
        for record in records(batch)
    }


async def test_a_reversed_link_saves_the_tail_truncates_the_old_source_and_makes_both_sides_equal(
    make_fleet: Callable[..., Fleet], processes: Processes, tmp_path: Path
) -> None:
    east = await asyncio.to_thread(make_fleet, brokers=2, zones=["a", "b"])
    west = await asyncio.to_thread(make_fleet, brokers=2, zones=["a", "b"], tls=True)
    log = (tmp_path / "link.log").open("wb")

    def start(file: Path, fault: str = "") -> Popen[Any]:
        command = [sys.executable, "-m", "penstock", "link", "run", "east", "--settings", str(file)]
        environment = {**os.environ, FAULT_VARIABLE: fault} if fault else dict(os.environ)
        return processes.start(command, env=environment, stdout=log, stderr=log)

    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(Client(east.bootstrap, east.security()))
        active = await stack.enter_async_context(Client(west.bootstrap, west.security()))
        controllers = await stack.enter_async_context(controllers_of(west))
        await fail_over(east, old, active, controllers, west, tmp_path)

        # Both sides have what the other one has not.
        await asyncio.to_thread(produce, west, "keyed", 1000, 60)
        await asyncio.to_thread(produce, east, "keyed", 540, 10)
        with pytest.raises(NotTheOldSource):
            await commands.reverse(active, active, "east")
        await commands.reverse(active, old, "east")
        with pytest.raises(LinkExists):
            await commands.reverse(active, old, "east")
        (tmp_path / "back").mkdir()
        back = link_file(west, east, tmp_path / "back")
        await die_at_each_point(old, lambda point: start(back, point))
        child = start(back)
        row = await until(old, child, mirrors(560))
        assert await differing(active, old, ["keyed"]) == []
        tail = {b"value %d" % number for number in range(500, 550)}
        assert saved_values(tmp_path / "back" / "tails") == tail
        lost = [one for place, one in row["tails"].items() if place.startswith("keyed")]
        assert sum(one["end"] - one["start"] for one in lost) == len(tail)

        # It is a mirror as any other one: it follows, and is promoted.
        await asyncio.to_thread(produce, west, "keyed", 1060, 40)
        await asyncio.to_thread(produce, west, "idle", 0, 5)
        await until(old, child, mirrors(605))
        row = await commands.request(old, "east", Action.PROMOTE, seconds=WAIT_SECONDS)
        await asyncio.to_thread(child.wait, WAIT_SECONDS)
        assert (row["state"], child.returncode) == (State.ACTIVE, 0)
        assert await differing(active, old, NAMES) == []
        rest = await asyncio.to_thread(read_values, east, "billing", "keyed", 400)
        values = {value for _, _, value in rest}
        assert len(values) == 400, "nothing is read twice"
        assert not values & tail
        # One that had read all of the tail continues at the new records.
        late = await asyncio.to_thread(read_values, east, "reader-of-tail", "keyed", 100)
        assert {value for _, _, value in late} == {b"value %d" % n for n in range(1000, 1100)}

        # And in the first direction again.
        await asyncio.to_thread(produce, east, "keyed", 2000, 30)
        (tmp_path / "again").mkdir()
        again = link_file(east, west, tmp_path / "again")
        await commands.reverse(old, active, "east")
        child = start(again)
        await until(active, child, mirrors(635))
        assert await differing(old, active, NAMES) == []
    log.close()


async def shows_what_a_promotion_would_find(source: Client, client: Client) -> None:
    ready = await readiness(source, client, await commands.show(client, "east"))
    assert ready.blockers == ()
    assert [(one.topic, one.partitions, one.lag) for one in ready.topics] == [("idle", 1, 0), ("keyed", 2, 0)]
    assert [one.last_record_seconds is None for one in ready.topics] == [True, False]
    assert [(one.group, one.state, one.unread, one.blocked) for one in ready.groups] == [
        ("billing", "Empty", 300, False)
    ]


async def die_at_each_point(old: Client, start: Callable[[str], Popen[Any]]) -> None:
    for point in POINTS:
        armed = start(point)
        await asyncio.to_thread(armed.wait, WAIT_SECONDS)
        assert armed.returncode == -9, f"{point}: the process ended with {armed.returncode}"
        assert closing_acl("keyed") in await acls.describe(old, AclFilter())


async def fail_over(
    east: Fleet, source: Client, client: Client, controllers: Client, west: Fleet, directory: Path
) -> None:
    """500 records are mirrored, 40 are not, and the group `billing` has read 100."""
    replicas = [node.spec.id for node in east.brokers]
    created = [
        topics.NewTopic("keyed", replicas={0: replicas, 1: replicas[::-1]}),
        topics.NewTopic("idle", 1, 2),
    ]
    results_or_raise(await topics.create(source, created))
    for name in NAMES:
        await asyncio.to_thread(east.wait_for_leaders, name)
    await asyncio.to_thread(produce, east, "keyed", 0, 500, **{"compression.type": "zstd"})
    await asyncio.to_thread(read_values, east, "billing", "keyed", 200)
    await commands.create(source, client, "east", NAMES)
    settings = shadow_settings(west, directory / "shadow")
    task = asyncio.create_task(LinkRunner("east", source, client, controllers, settings).run())
    await until_mirrored(client, task, 500)
    with pytest.raises(LinkStateConflict):
        await commands.reverse(client, source, "east")
    await shows_what_a_promotion_would_find(source, client)
    await commands.request(client, "east", Action.PAUSE)
    await asyncio.to_thread(produce, east, "keyed", 500, 40)
    await asyncio.to_thread(read_values, east, "reader-of-tail", "keyed", 540)
    await commands.request(client, "east", Action.FAILOVER)
    await task
