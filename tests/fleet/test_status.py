"""Status says what is seen; the supervisor's word only fills what cannot be seen."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.fleet.identity import identify
from penstock.fleet.local import watched_fleet
from penstock.fleet.readiness import Answer, Prober
from penstock.fleet.status import FleetState, NodeStatus, fleet_status
from penstock.fleet.supervisor import sole_supervisor
from penstock.fleet.watch import NodeState
from tests.ground.fleet import wait_for
from tests.ground.java import fake_fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from penstock.fleet.local import LocalFleet


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalFleet]:
    """One combined node that runs."""
    made = fake_fleet(tmp_path, {"combined": True, "brokers": 1, "zones": ["a"]})
    await made.prepare()
    await made.node("b1").start()
    yield made
    end(made)


def end(local: LocalFleet) -> None:
    if (identity := local.node("b1").running()) is not None:
        identity.signal(signal.SIGKILL)
        wait_for(lambda: local.node("b1").running() is None, what="its end")


def answering(monkeypatch: pytest.MonkeyPatch, ready: bool) -> None:
    async def ask(prober: Prober) -> Answer:
        return Answer(ready, "" if ready else "it does not answer")

    monkeypatch.setattr(Prober, "ask", ask)


@contextmanager
def supervised(local: LocalFleet, state: NodeState, restarts: int = 0) -> Iterator[None]:
    """As if a supervisor lived and had published this."""
    me = identify(os.getpid())
    assert me is not None
    nodes = {"home/b1": {"state": state, "restarts": restarts}}
    document = {"pid": me.pid, "started": me.started, "nodes": nodes}
    with sole_supervisor(local.layout):
        local.layout.supervisor_record.write_text(json.dumps(document))
        yield


async def status(local: LocalFleet) -> NodeStatus:
    (node,) = (await fleet_status(local)).nodes
    return node


async def test_a_node_that_answers_is_ready_whoever_watches_it(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, ready=True)

    seen = await fleet_status(local)

    assert seen.state is FleetState.READY
    assert seen.supervisor is None
    (node,) = seen.nodes
    identity = local.node("b1").running()
    assert identity is not None
    assert (node.state, node.pid, node.reason) == (NodeState.READY, identity.pid, "")
    assert node.uptime_seconds is not None
    assert node.memory_mb is not None


SILENT = [
    (None, NodeState.STARTING),
    (NodeState.STARTING, NodeState.STARTING),
    (NodeState.RESTARTING, NodeState.STARTING),
    (NodeState.READY, NodeState.UNRESPONSIVE),
    (NodeState.UNRESPONSIVE, NodeState.UNRESPONSIVE),
    (NodeState.STOPPING, NodeState.STOPPING),
]


@pytest.mark.parametrize(("said", "state"), SILENT)
async def test_a_silent_node_is_what_it_was_before_it_fell_silent(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch, said: NodeState | None, state: NodeState
) -> None:
    answering(monkeypatch, ready=False)

    if said is None:
        node = await status(local)
    else:
        with supervised(local, said, restarts=2):
            node = await status(local)

    assert node.state is state
    assert node.reason == "it does not answer"
    assert node.pid is not None
    assert node.restarts == (0 if said is None else 2)


DEAD = [
    (None, NodeState.STOPPED),
    (NodeState.STARTING, NodeState.RESTARTING),
    (NodeState.READY, NodeState.RESTARTING),
    (NodeState.UNRESPONSIVE, NodeState.RESTARTING),
    (NodeState.RESTARTING, NodeState.RESTARTING),
    (NodeState.STOPPING, NodeState.STOPPED),
]


@pytest.mark.parametrize(("said", "state"), DEAD)
async def test_a_dead_node_is_stopped_unless_someone_brings_it_back(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch, said: NodeState | None, state: NodeState
) -> None:
    answering(monkeypatch, ready=True)
    end(local)

    if said is None:
        node = await status(local)
    else:
        with supervised(local, said):
            node = await status(local)

    assert node.state is state
    assert (node.pid, node.uptime_seconds, node.memory_mb) == (None, None, None)


async def test_a_node_that_dies_while_it_is_asked_is_not_ready(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(prober: Prober) -> Answer:
        end(local)
        return Answer(ready=True)

    monkeypatch.setattr(Prober, "ask", ask)

    assert (await status(local)).state is NodeState.STOPPED


async def test_what_a_supervisor_said_that_is_gone_counts_for_nothing(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, ready=False)
    with supervised(local, NodeState.READY, restarts=7):
        pass

    node = await status(local)
    assert (node.state, node.restarts) == (NodeState.STARTING, 0)

    with sole_supervisor(local.layout):  # a new one, that has published nothing yet
        stale = {"pid": 1, "started": "x", "nodes": {"home/b1": {"state": "ready", "restarts": 7}}}
        local.layout.supervisor_record.write_text(json.dumps(stale))
        assert (await status(local)).restarts == 0


async def test_an_answer_is_looked_for_from_outside_too(local: LocalFleet, tmp_path: Path) -> None:
    local.layout.fleet_file.write_text(
        json.dumps({"clusters": [{"port": 0, "combined": True, "brokers": 1, "zones": ["a"]}]})
    )
    wait_for(lambda: local.node("b1").layout.record.exists(), what="its record")

    seen = await fleet_status(watched_fleet(local.layout))

    assert seen.state is FleetState.DEGRADED
    assert seen.nodes[0].state is NodeState.STARTING
    assert "cannot connect" in seen.nodes[0].reason
