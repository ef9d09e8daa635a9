"""Adds a cell to the local fleet while it runs.

The fleet file gets as many more brokers as a cell has. The supervisor then starts again with that
file: running brokers do not notice, new ones are started, the gateways restart with them (clients
reconnect), and the control plane forms the cell in its next leadership term.
"""

from __future__ import annotations

import signal
import time
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from penstock.control.physical.local import LOCAL
from penstock.fleet.cluster_record import check_ports_free
from penstock.fleet.local_fleet import check_disk_space, load_fleet, load_fleet_document, save_fleet_document
from penstock.fleet.spec import Role
from penstock.fleet.spec_file import parse_fleet
from penstock.fleet.supervisor import supervisor_of
from penstock.model.errors import PenstockError
from penstock.model.errors.control import CellSlow, NoRoom
from penstock.model.errors.fleet import NotRunning
from penstock.model.errors.settings import UsageInvalid
from penstock.model.plural import counted
from penstock.platform.control_client import connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.fleet.layout import Layout
    from penstock.platform.control_client import ControlClient

CELL_SECONDS_MAX: Final = 180.0
POLL_SECONDS: Final = 0.5


def _silent(_doing: str) -> AbstractContextManager[None]:
    return nullcontext()


def add_cell(
    layout: Layout,
    url: str = "",
    *,
    seconds: float = CELL_SECONDS_MAX,
    progress: Callable[[str], AbstractContextManager[None]] = _silent,
) -> dict[str, Any]:
    """The new cell, once tenants can be placed in it."""
    supervisor = supervisor_of(layout)
    if supervisor is None:
        raise NotRunning(home=layout.home)
    before = _cells(connect(layout, url))
    if not before:
        raise NoRoom(units=1, reason="no cluster of this fleet is registered yet")
    size = max(len(cell["brokers"]) for cell in before.values())
    save_fleet_document(layout, expanded(layout, size))
    supervisor.signal(signal.SIGUSR1)
    deadline = time.monotonic() + seconds
    with progress(f"starting {counted(size, 'broker')}"):
        while True:
            try:
                after = _cells(connect(layout, url))
                if new := sorted(after.keys() - before.keys()):
                    return after[new[0]]
            except PenstockError as error:  # the control plane is restarting
                if not error.retriable:
                    raise
            if time.monotonic() > deadline:
                raise CellSlow(seconds=seconds)
            time.sleep(POLL_SECONDS)


def expanded(layout: Layout, brokers: int) -> dict[str, Any]:
    """The fleet file with so many more brokers. Raises if this machine cannot run them."""
    document = deepcopy(load_fleet_document(layout))
    assert document is not None, "a supervised fleet has a file"
    if len(document["clusters"]) != 1:
        raise UsageInvalid(
            reason=f"this fleet has {counted(len(document['clusters']), 'cluster')}",
            way_out="Add the brokers to the fleet file, then: penstock down, penstock up --fleet <file>",
        )
    (cluster,) = load_fleet(layout).clusters
    nodes = cluster.cluster.spec.nodes
    if any(node.role is Role.COMBINED for node in nodes):
        raise UsageInvalid(
            reason="the brokers of this fleet are its controllers as well, so their number is fixed",
            way_out="Start with separate controllers, in another home: penstock up --home <new>",
        )
    shape = document["clusters"][0]
    if isinstance(shape.get("brokers"), list):
        raise UsageInvalid(
            reason="the fleet file lists this fleet's brokers one by one",
            way_out="List more of them in the fleet file, then: penstock down, penstock up --fleet <file>",
        )
    shape["brokers"] = sum(node.is_broker for node in nodes) + brokers
    (spec,) = parse_fleet(document, where=str(layout.fleet_file))
    check_disk_space(layout.home)
    known = {node.name for node in nodes}
    for node in spec.nodes:
        if node.name not in known and all(node.ports.values()):
            check_ports_free(spec, node)
    return document


def _cells(control: ControlClient) -> dict[str, dict[str, Any]]:
    """The cells of the fleet's own cluster; those of dedicated clusters belong to their tenants."""
    physical = [
        one["id"]
        for one in control.every("/physical-clusters")
        if one["provider"] == LOCAL and one["tenancy"] == "shared"
    ]
    return {cell["id"]: cell for cell in control.every("/cells") if cell["physical_cluster"] in physical[:1]}
