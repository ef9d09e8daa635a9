"""Restart, hold and start single nodes of a running fleet.

A `Restarter` gives orders; whatever runs the nodes follows them. An order names its `request`: a process that
was started for a request is not restarted for it again, so every order can be repeated. An order to run may
name a fleet document, which the node then starts with, also after a crash. A hold lapses: a node stays down
for `HOLD_SECONDS_MAX` at most after the last order.

On a local fleet an order is a file beside the node's data, and the supervisor follows it.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.atomic_files import write_atomically
from penstock.fleet.generation import Generation, digest_of
from penstock.fleet.layout import CLUSTERS, ORDER, NodeLayout, make_directory
from penstock.fleet.local_fleet import load_fleet
from penstock.model.errors.fleet import DirectoryNotWritable, NodeUnknown, OrderNotFollowed
from penstock.model.errors.settings import SettingsUnreadable
from penstock.process_identity import read_record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.fleet.layout import Layout
    from penstock.fleet.node import Node

HOLD_SECONDS_MAX: Final = 900.0
FOLLOWED_SECONDS_MAX: Final = 180.0
POLL_SECONDS: Final = 0.2
DOCUMENTS_MAX: Final = 20  # fleet documents that are kept, besides those that orders name


class OrderState(StrEnum):
    RUN = "run"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Order:
    state: OrderState
    request: str
    document: str = ""  # digest of the fleet document to start with; empty: the current one
    until_ms: int = 0  # when a hold lapses

    def holds(self, now_ms: int) -> bool:
        return self.state is OrderState.HELD and now_ms < self.until_ms


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The process of a node, as its host reports it."""

    alive: bool
    incarnation: str = ""  # different for every process
    request: str = ""  # the order that it was started for
    document: str = ""
    generation: Generation | None = None
    held: bool = False
    last_error: str = ""  # of the run that ended last, while it is not alive


class Restarter(Protocol):
    """Gives orders about nodes, by their Kafka ids. Returns at once; repeating an order changes nothing."""

    async def restart(self, node: int, request: str, document: str = "") -> None:
        """The node must run in a process that was started for this request."""
        ...

    async def hold(self, node: int, request: str) -> None:
        """The node must be stopped, after a controlled shutdown, and not be started."""
        ...

    async def start(self, node: int, request: str, document: str = "") -> None:
        """A held node must run again, for this request."""
        ...

    async def state(self, node: int) -> ProcessState: ...


async def wait_for_order(
    restarter: Restarter, node: int, order: Order, seconds: float = FOLLOWED_SECONDS_MAX
) -> ProcessState:
    """Returns when the process is as ordered. It may not serve yet."""
    deadline = time.monotonic() + seconds
    while True:
        state = await restarter.state(node)
        if follows(order, state):
            return state
        if time.monotonic() > deadline:
            expected = "stopped" if order.state is OrderState.HELD else "restarted"
            reason = state.last_error or f"its process is {'alive' if state.alive else 'not alive'}"
            raise OrderNotFollowed(node=node, expected=expected, seconds=seconds, reason=reason)
        await asyncio.sleep(POLL_SECONDS)


def follows(order: Order, state: ProcessState) -> bool:
    if order.state is OrderState.HELD:
        return not state.alive
    return state.alive and state.request == order.request


class LocalRestarter:
    """Orders for the nodes of one local cluster, as files that its supervisor follows."""

    def __init__(self, layout: Layout, cluster: str) -> None:
        self._layout, self._cluster = layout, cluster

    async def restart(self, node: int, request: str, document: str = "") -> None:
        write_order(self._node(node).layout, Order(OrderState.RUN, request, document))

    async def hold(self, node: int, request: str) -> None:
        until = int((time.time() + HOLD_SECONDS_MAX) * 1000)
        write_order(self._node(node).layout, Order(OrderState.HELD, request, until_ms=until))

    async def start(self, node: int, request: str, document: str = "") -> None:
        await self.restart(node, request, document)

    async def state(self, node: int) -> ProcessState:
        local = self._node(node)
        order = read_order(local.layout)
        held = order is not None and order.holds(int(time.time() * 1000))
        return process_state(local, held=held)

    def _node(self, node: int) -> Node:
        nodes = {n.spec.id: n for n in load_fleet(self._layout).nodes if n.cluster.spec.name == self._cluster}
        if node not in nodes:
            raise NodeUnknown(node=node, known=", ".join(map(str, sorted(nodes))))
        return nodes[node]


def process_state(node: Node, *, held: bool = False) -> ProcessState:
    record = read_record(node.layout.record)
    alive = node.running() is not None
    if record is None or not (alive and record[0].is_alive()):
        return ProcessState(alive, held=held, last_error="" if alive else node.last_error())
    identity, facts = record
    parts = facts.get("generation")
    return ProcessState(
        alive=True,
        incarnation=f"{identity.pid}@{identity.started}",
        request=str(facts.get("request", "")),
        document=str(facts.get("document", "")),
        generation=Generation(parts) if isinstance(parts, dict) else None,
        held=held,
    )


# Orders as files


def write_order(layout: NodeLayout, order: Order) -> None:
    try:
        write_atomically(layout.order, json.dumps(asdict(order)))
    except OSError as error:
        raise DirectoryNotWritable(directory=layout.root, reason=error.strerror or error) from error


def read_order(layout: NodeLayout) -> Order | None:
    """The last order; None without one, or if the file is damaged: then the node simply runs."""
    try:
        values: dict[str, Any] = json.loads(layout.order.read_text())
        return Order(OrderState(values["state"]), values["request"], values["document"], values["until_ms"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def drop_orders(nodes: tuple[Node, ...]) -> None:
    for node in nodes:
        node.layout.order.unlink(missing_ok=True)


# Fleet documents, by the digest of their content


def save_document(layout: Layout, document: Mapping[str, Any]) -> str:
    """Keeps a fleet document, so that nodes can start with it later; returns its digest."""
    digest = digest_of(document)
    path = _document(layout, digest)
    make_directory(path.parent)
    write_atomically(path, json.dumps(document, indent=1))
    kept = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
    ordered = _ordered_documents(layout)
    for old in kept[:-DOCUMENTS_MAX]:
        if old.stem not in ordered:
            old.unlink(missing_ok=True)
    return digest


def _ordered_documents(layout: Layout) -> set[str]:
    """Those that a node starts with after a crash, however long ago it was ordered to."""
    files = layout.home.glob(f"{CLUSTERS}/*/*/{ORDER}")
    orders = (read_order(NodeLayout(file.parent)) for file in files)
    return {order.document for order in orders if order is not None}


def load_document(layout: Layout, digest: str) -> dict[str, Any]:
    path = _document(layout, digest)
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingsUnreadable(path=path, reason=f"it cannot be read: {error}") from error
    return document


def _document(layout: Layout, digest: str) -> Path:
    return layout.documents / f"{digest}.json"
