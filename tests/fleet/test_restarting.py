"""Orders about single nodes: restart, hold, start; and what the supervisor makes of them."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.fleet import restarting
from penstock.fleet.local_fleet import save_fleet_document
from penstock.fleet.node_watch import NodeState
from penstock.fleet.readiness import Prober, ProbeResult
from penstock.fleet.restarting import (
    LocalRestarter,
    Order,
    OrderState,
    follows,
    load_document,
    read_order,
    save_document,
    wait_for_order,
    write_order,
)
from penstock.fleet.status import fleet_status
from penstock.fleet.supervisor import Supervisor, sole_supervisor
from penstock.model.errors.fleet import NodeUnknown, OrderNotFollowed
from penstock.model.errors.settings import SettingsUnreadable
from tests.harness.fleet import wait_gone
from tests.harness.java import fake_fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from penstock.fleet.local_fleet import LocalFleet

DOCUMENT = {"clusters": [{"port": 0, "brokers": 1}]}
CHANGED = {"clusters": [{"port": 0, "brokers": 1, "heap": 300, "config": {"num.partitions": 5}}]}
BROKER = 1


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalFleet]:
    async def probe(prober: Prober) -> ProbeResult:
        console = prober.node.layout.console
        up = prober.node.running() is not None and console.exists() and console.read_text() == "up\n"
        return ProbeResult(ready=up, reason="down")

    monkeypatch.setattr(Prober, "probe", probe)
    fleet = fake_fleet(tmp_path)
    save_fleet_document(fleet.layout, DOCUMENT)
    yield fleet
    for node in fleet.nodes:
        if (identity := node.running()) is not None:
            identity.signal(signal.SIGKILL)
            wait_gone(node)


@pytest.fixture
def restarter(local: LocalFleet) -> LocalRestarter:
    return LocalRestarter(local.layout, "home")


@asynccontextmanager
async def supervised(local: LocalFleet) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(local)
    await supervisor.start()
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    try:
        yield supervisor
    finally:
        stop.set()
        await running


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def pid(local: LocalFleet) -> int | None:
    identity = local.node("b1").running()
    return None if identity is None else identity.pid


async def test_a_node_is_restarted_once_for_a_request_however_often_it_is_repeated(
    local: LocalFleet, restarter: LocalRestarter
) -> None:
    async with supervised(local) as supervisor:
        before = pid(local)
        await restarter.restart(BROKER, "roll-1")
        state = await wait_for_order(restarter, BROKER, Order(OrderState.RUN, "roll-1"))
        restarted = pid(local)
        await restarter.restart(BROKER, "roll-1")
        await until(lambda: supervisor.watched[1].watch.state is NodeState.READY)
        await asyncio.sleep(1)  # several rounds of the supervisor

    assert pid(local) == restarted != before
    assert state.request == "roll-1"
    assert supervisor.watched[1].watch.crashes == ()


async def test_a_held_node_stays_stopped_until_it_is_started(
    local: LocalFleet, restarter: LocalRestarter
) -> None:
    async with supervised(local) as supervisor:
        await restarter.hold(BROKER, "health-1")
        await until(lambda: supervisor.watched[1].watch.state is NodeState.HELD)
        held = await restarter.state(BROKER)
        with sole_supervisor(local.layout):
            status = await fleet_status(local)
        await restarter.start(BROKER, "health-2")
        await until(lambda: supervisor.watched[1].watch.state is NodeState.READY)

    assert (held.alive, held.held) == (False, True)
    assert [node.state for node in status.nodes if node.node == "b1"] == [NodeState.HELD]
    assert (await restarter.state(BROKER)).request == "health-2"


async def test_a_hold_lapses(
    local: LocalFleet, restarter: LocalRestarter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarting, "HOLD_SECONDS_MAX", 2.0)
    async with supervised(local) as supervisor:
        await restarter.hold(BROKER, "health-1")
        await until(lambda: supervisor.watched[1].watch.state is NodeState.HELD)

        await until(lambda: supervisor.watched[1].watch.state is NodeState.READY)


async def test_a_held_node_stays_stopped_when_the_supervisor_is_replaced(
    local: LocalFleet, restarter: LocalRestarter, tmp_path: Path
) -> None:
    async with supervised(local) as first:
        await restarter.hold(BROKER, "health-1")
        await until(lambda: first.watched[1].watch.state is NodeState.HELD)

    async with supervised(fake_fleet(tmp_path)) as second:
        await until(lambda: second.watched[1].watch.state is NodeState.HELD)

    assert pid(local) is None


async def test_a_start_of_the_whole_fleet_ends_all_orders(
    local: LocalFleet, restarter: LocalRestarter, tmp_path: Path
) -> None:
    async with supervised(local) as first:
        await restarter.hold(BROKER, "health-1")
        await until(lambda: first.watched[1].watch.state is NodeState.HELD)
    for node in local.nodes:
        await node.stop()

    async with supervised(fake_fleet(tmp_path)) as second:
        assert (await restarter.state(BROKER)).alive
    await second.stop()

    assert read_order(local.node("b1").layout) is None


async def test_a_node_starts_with_the_document_of_its_order_also_after_a_crash(
    local: LocalFleet, restarter: LocalRestarter
) -> None:
    changed = save_document(local.layout, CHANGED)
    async with supervised(local):
        before = await restarter.state(BROKER)
        await restarter.restart(BROKER, "roll-1", changed)
        after = await wait_for_order(restarter, BROKER, Order(OrderState.RUN, "roll-1"))
        first = pid(local)
        identity = local.node("b1").running()
        assert identity is not None
        identity.signal(signal.SIGKILL)
        await until(lambda: pid(local) not in (None, first))
        await until(local.node("b1").layout.record.exists)
        crashed = await restarter.state(BROKER)
        other = await restarter.state(1001)

    assert before.generation is not None
    assert after.generation is not None
    assert before.generation.parts["num.partitions"] == "3"
    assert after.generation.parts["num.partitions"] == "5"
    assert "-Xmx300m" in after.generation.parts["flags"]
    assert crashed.generation == after.generation
    assert (after.document, crashed.document, other.document) == (changed, changed, before.document)


async def test_an_order_that_is_not_followed_is_an_error_that_names_the_supervisor(
    local: LocalFleet, restarter: LocalRestarter
) -> None:
    await local.prepare()
    await restarter.restart(BROKER, "roll-1")

    with pytest.raises(OrderNotFollowed) as caught:
        await wait_for_order(restarter, BROKER, Order(OrderState.RUN, "roll-1"), seconds=0.1)

    assert caught.value.message.startswith("node 1 is not restarted after 0 s: its process is not alive")
    assert str(OrderNotFollowed.code) == "PEN-2038"


async def test_an_unknown_node_is_named(local: LocalFleet, restarter: LocalRestarter) -> None:
    with pytest.raises(NodeUnknown, match="9"):
        await restarter.hold(9, "x")


async def test_a_damaged_order_leaves_the_node_running(local: LocalFleet) -> None:
    async with supervised(local) as supervisor:
        before = pid(local)
        local.node("b1").layout.order.write_text("{")
        await until(lambda: supervisor.watched[1].watch.state is NodeState.READY)

    assert pid(local) == before


async def test_a_missing_document_is_an_error_and_the_start_is_tried_again(
    local: LocalFleet, restarter: LocalRestarter
) -> None:
    async with supervised(local) as supervisor:
        await restarter.restart(BROKER, "roll-1", "no-such")
        await until(lambda: supervisor.watched[1].watch.restarts >= 2)
        await restarter.restart(BROKER, "roll-2")
        await until(lambda: pid(local) is not None)

    with pytest.raises(SettingsUnreadable, match=r"no-such\.json"):
        load_document(local.layout, "no-such")


def test_an_order_is_followed_when_the_process_is_as_it_demands() -> None:
    run, held = Order(OrderState.RUN, "1"), Order(OrderState.HELD, "1", until_ms=5)
    started = restarting.ProcessState(alive=True, request="1")

    assert follows(run, started)
    assert not follows(run, restarting.ProcessState(alive=True, request="0"))
    assert not follows(run, restarting.ProcessState(alive=False, request="1"))
    assert not follows(held, started)
    assert (held.holds(4), held.holds(5), run.holds(0)) == (True, False, False)


def test_orders_survive_as_files(local: LocalFleet) -> None:
    layout = local.node("b1").layout
    layout.root.mkdir(parents=True)
    order = Order(OrderState.HELD, "1", "abc", 7)

    write_order(layout, order)

    assert read_order(layout) == order
    assert json.loads(layout.order.read_text())["state"] == "held"


def test_only_the_newest_documents_are_kept(local: LocalFleet) -> None:
    digests = [save_document(local.layout, {"number": number}) for number in range(25)]

    assert len(list(local.layout.documents.glob("*.json"))) == 20
    assert load_document(local.layout, digests[-1]) == {"number": 24}


def test_a_document_that_a_node_was_ordered_to_run_is_kept(local: LocalFleet) -> None:
    """Else the node could not start again after a crash."""
    ordered = save_document(local.layout, {"number": -1})
    layout = local.node("b1").layout
    layout.root.mkdir(parents=True)
    write_order(layout, Order(OrderState.RUN, "roll-1", ordered))

    for number in range(25):
        save_document(local.layout, {"number": number})

    assert load_document(local.layout, ordered) == {"number": -1}
