"""Status shows what is observed; the supervisor's record only adds what cannot be observed."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.fleet.local_fleet import load_fleet
from penstock.fleet.node_watch import NodeState
from penstock.fleet.readiness import Prober, ProbeResult
from penstock.fleet.status import FleetState, NodeStatus, fleet_status
from penstock.fleet.supervisor import sole_supervisor
from penstock.process_identity import identify
from tests.harness.fleet import wait_for
from tests.harness.java import fake_fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from penstock.fleet.local_fleet import LocalFleet


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalFleet]:
    """One combined node, running."""
    fleet = fake_fleet(tmp_path, {"combined": True, "brokers": 1, "zones": ["a"]})
    await fleet.prepare()
    await fleet.node("b1").start()
    yield fleet
    end(fleet)


def end(local: LocalFleet) -> None:
    if (identity := local.node("b1").running()) is not None:
        identity.signal(signal.SIGKILL)
        wait_for(lambda: local.node("b1").running() is None, what="its end")


def nodes_respond(monkeypatch: pytest.MonkeyPatch, ready: bool) -> None:
    async def probe(prober: Prober) -> ProbeResult:
        return ProbeResult(ready, "" if ready else "it does not respond")

    monkeypatch.setattr(Prober, "probe", probe)


@contextmanager
def supervised(local: LocalFleet, state: NodeState, restarts: int = 0) -> Iterator[None]:
    """As if a supervisor were running and had published this state."""
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


async def test_a_node_that_responds_is_ready_without_a_supervisor(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes_respond(monkeypatch, ready=True)

    observed = await fleet_status(local)

    assert observed.state is FleetState.READY
    assert observed.supervisor is None
    (node,) = observed.nodes
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


@pytest.mark.parametrize(("published", "state"), SILENT)
async def test_the_state_of_a_silent_node_follows_from_its_last_published_state(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch, published: NodeState | None, state: NodeState
) -> None:
    nodes_respond(monkeypatch, ready=False)

    if published is None:
        node = await status(local)
    else:
        with supervised(local, published, restarts=2):
            node = await status(local)

    assert node.state is state
    assert node.reason == "it does not respond"
    assert node.pid is not None
    assert node.restarts == (0 if published is None else 2)


DEAD = [
    (None, NodeState.STOPPED),
    (NodeState.STARTING, NodeState.RESTARTING),
    (NodeState.READY, NodeState.RESTARTING),
    (NodeState.UNRESPONSIVE, NodeState.RESTARTING),
    (NodeState.RESTARTING, NodeState.RESTARTING),
    (NodeState.STOPPING, NodeState.STOPPED),
]


@pytest.mark.parametrize(("published", "state"), DEAD)
async def test_a_dead_node_is_stopped_unless_a_supervisor_restarts_it(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch, published: NodeState | None, state: NodeState
) -> None:
    nodes_respond(monkeypatch, ready=True)
    end(local)

    if published is None:
        node = await status(local)
    else:
        with supervised(local, published):
            node = await status(local)

    assert node.state is state
    assert (node.pid, node.uptime_seconds, node.memory_mb) == (None, None, None)


async def test_a_node_that_dies_during_the_probe_is_not_ready(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def probe(prober: Prober) -> ProbeResult:
        end(local)
        return ProbeResult(ready=True)

    monkeypatch.setattr(Prober, "probe", probe)

    assert (await status(local)).state is NodeState.STOPPED


async def test_the_record_of_a_dead_supervisor_is_ignored(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes_respond(monkeypatch, ready=False)
    with supervised(local, NodeState.READY, restarts=7):
        pass

    node = await status(local)
    assert (node.state, node.restarts) == (NodeState.STARTING, 0)

    with sole_supervisor(local.layout):  # a new one that has published nothing yet
        stale = {"pid": 1, "started": "x", "nodes": {"home/b1": {"state": "ready", "restarts": 7}}}
        local.layout.supervisor_record.write_text(json.dumps(stale))
        assert (await status(local)).restarts == 0


async def test_a_loaded_fleet_is_probed_as_well(local: LocalFleet, tmp_path: Path) -> None:
    local.layout.fleet_file.write_text(
        json.dumps({"clusters": [{"port": 0, "combined": True, "brokers": 1, "zones": ["a"]}]})
    )
    wait_for(lambda: local.node("b1").layout.record.exists(), what="its record")

    observed = await fleet_status(load_fleet(local.layout))

    assert observed.state is FleetState.DEGRADED
    assert observed.nodes[0].state is NodeState.STARTING
    assert "cannot connect" in observed.nodes[0].reason
