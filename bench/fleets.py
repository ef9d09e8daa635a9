"""Starts and kills the local Kafka of a bench."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import open_fleet
from penstock.fleet.readiness import wait_until_ready
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.spec_file import parse_fleet

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.fleet.local_fleet import LocalFleet


async def start_fleet(home: Path, shape: Mapping[str, Any]) -> LocalFleet:
    """Starts a fleet of one cluster, without a delay for new groups; returns when every node is ready."""
    config = {"group.initial.rebalance.delay.ms": 0, **shape.get("config", {})}
    spec = parse_fleet({"clusters": [{**shape, "config": config}]})
    fleet = open_fleet(spec, Layout(home), await obtain_runtime())
    await fleet.prepare()
    for node in fleet.nodes:
        await node.start()
    await wait_until_ready(list(fleet.nodes))
    return fleet


def kill_nodes(fleet: LocalFleet) -> None:
    """Kills the nodes that still run."""
    for node in fleet.nodes:
        if (identity := node.running()) is not None:
            identity.signal(signal.SIGKILL)
