"""`penstock cell add`: the local fleet grows by a cell while it runs.

The fleet's file gets as many brokers more as a cell has. Whoever supervises the fleet then begins
anew with that file: brokers that run do not notice, new ones are started, gateways are started again
with them (clients connect anew), and the control plane forms the cell when it takes office.
"""

from __future__ import annotations

import signal
import time
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.output import progress
from penstock.cli.remote import connected
from penstock.control.local import LOCAL
from penstock.fleet.cluster import check_ports_free
from penstock.fleet.local import check_room, remember_spec, remembered_document, watched_fleet
from penstock.fleet.parse import parse_fleet
from penstock.fleet.spec import Role
from penstock.fleet.supervisor import supervisor_of
from penstock.model.errors import PenstockError
from penstock.model.errors.control import CellSlow, NoRoom
from penstock.model.errors.fleet import NotRunning
from penstock.model.errors.settings import UsageInvalid

if TYPE_CHECKING:
    from penstock.cli.remote import Control
    from penstock.cli.settings import RemoteOptions
    from penstock.fleet.layout import Layout

CELL_SECONDS_MAX: Final = 180.0
LOOK_SECONDS_BETWEEN: Final = 0.5


def add_cell(options: RemoteOptions, *, seconds: float = CELL_SECONDS_MAX) -> dict[str, Any]:
    """The new cell, once tenants can be placed in it."""
    layout = options.layout
    supervisor = supervisor_of(layout)
    if supervisor is None:
        raise NotRunning(home=layout.home)
    control = connected(options)
    before = _cells(control)
    if not before:
        raise NoRoom(units=1, reason="no cluster of this fleet is registered yet")
    size = max(len(cell["brokers"]) for cell in before.values())
    document = grown(layout, size)
    remember_spec(layout, document)
    supervisor.signal(signal.SIGUSR1)
    deadline = time.monotonic() + seconds
    with progress(f"starting {size} brokers"):
        while True:
            try:
                after = _cells(connected(options))
                if new := sorted(after.keys() - before.keys()):
                    return after[new[0]]
            except PenstockError as error:  # it is just being started again
                if not error.retriable:
                    raise
            if time.monotonic() > deadline:
                raise CellSlow(seconds=seconds)
            time.sleep(LOOK_SECONDS_BETWEEN)


def grown(layout: Layout, more: int) -> dict[str, Any]:
    """The fleet's file with so many brokers more, if they can be had here."""
    document = deepcopy(remembered_document(layout))
    assert document is not None  # it is supervised
    if len(document["clusters"]) != 1:
        raise UsageInvalid(
            reason=f"this fleet has {len(document['clusters'])} clusters",
            way_out="Add the brokers to the fleet file, then: penstock down, penstock up --fleet <file>",
        )
    (cluster,) = watched_fleet(layout).clusters
    nodes = cluster.cluster.spec.nodes
    if any(node.role is Role.COMBINED for node in nodes):
        raise UsageInvalid(
            reason="its brokers are its controllers as well, and their number is fixed",
            way_out="Begin with brokers apart from controllers, in another home: penstock up --home <new>",
        )
    shape = document["clusters"][0]
    if isinstance(shape.get("brokers"), list):
        raise UsageInvalid(
            reason="this fleet's brokers are listed one by one",
            way_out="List more of them in the fleet file, then: penstock down, penstock up --fleet <file>",
        )
    shape["brokers"] = sum(node.is_broker for node in nodes) + more
    (spec,) = parse_fleet(document, where=str(layout.fleet_file))
    check_room(layout.home)
    known = {node.name for node in nodes}
    for node in spec.nodes:
        if node.name not in known and all(node.ports.values()):
            check_ports_free(spec, node)
    return document


def _cells(control: Control) -> dict[str, dict[str, Any]]:
    """Of the fleet's own cluster: those of dedicated ones are their tenants'."""
    physical = [
        one["id"]
        for one in control.every("/physical-clusters")
        if one["provider"] == LOCAL and one["tenancy"] == "shared"
    ]
    return {cell["id"]: cell for cell in control.every("/cells") if cell["physical_cluster"] in physical[:1]}
