"""Keep the nodes of a local fleet running: start stopped nodes, take over running ones, restart dead ones.

Orders (`restarting`) hold single nodes stopped, or restart them with another fleet document. Nodes that are
added to the fleet file are started, and nodes that are removed from it are stopped, while all others run on.

A file lock allows one supervisor per home. It can be killed at any moment: nodes run in their own
sessions and continue, and the next supervisor finds them by their records. `supervisor.json` is only for
display; no decision depends on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from penstock.fleet.cluster_record import load_cluster
from penstock.fleet.layout import make_directory
from penstock.fleet.local_fleet import load_fleet, load_fleet_document
from penstock.fleet.node_watch import NodeState, Observation, Watch, new_watch, next_watch, should_start
from penstock.fleet.readiness import Prober, wait_until_ready
from penstock.fleet.restarting import OrderState, drop_orders, load_document, read_order, save_document
from penstock.fleet.spec import Role
from penstock.fleet.spec_file import parse_fleet
from penstock.model.errors import PenstockError
from penstock.model.errors.fleet import AlreadyRunning, DirectoryNotWritable, NodeUnknown, StopTimedOut
from penstock.process_identity import (
    Identity,
    read_alive,
    read_identity,
    read_record,
    this_process,
    try_lock,
    write_identity,
)
from penstock.timed_wait import wait_at_most

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from typing import TextIO

    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalFleet
    from penstock.fleet.node import Node, Runtime
    from penstock.fleet.restarting import Order
    from penstock.fleet.spec import ClusterSpec

WATCH_SECONDS_BETWEEN = 0.2
PROBE_SECONDS_BETWEEN = 2.0
RESIZE_SECONDS_BETWEEN = 5.0  # attempts to follow a changed fleet file

log = structlog.get_logger()


@dataclass(slots=True)
class WatchedNode:
    node: Node
    prober: Prober
    watch: Watch
    probed: float = 0.0
    last_error: str = ""  # of the run that ended last
    stopping: asyncio.Task[bool] | None = None  # a controlled shutdown that an order demands


@dataclass(slots=True)
class Supervisor:
    fleet: LocalFleet
    on_change: Callable[[Node, Watch], None] = lambda node, watch: None
    watched: list[WatchedNode] = field(default_factory=list)
    stopping: bool = False
    already_running: frozenset[str] = frozenset()  # nodes that were running before this supervisor started
    # The runtime of a Kafka version, for nodes that an order starts with another fleet document.
    runtime_of: Callable[[ClusterSpec], Awaitable[Runtime | None]] | None = None
    _file_followed: object = None  # the fleet file that `fleet` comes from
    _resizing: asyncio.Task[None] | None = None
    _resize_after: float = 0.0

    async def start(self) -> None:
        """Start all nodes at once; running ones are taken over as they are."""
        running = [node.full_name for node in self.fleet.nodes if node.running() is not None]
        self.already_running = frozenset(running)
        self._file_followed = _stamp(self.fleet.layout)
        if not running:  # a start of everything ends all orders
            drop_orders(self.fleet.nodes)
        await self.fleet.prepare()
        document = load_fleet_document(self.fleet.layout)
        digest = "" if document is None else save_document(self.fleet.layout, document)
        started = []
        for node in self.fleet.nodes:
            node.document = digest
            watched = WatchedNode(node, Prober(node), new_watch(time.monotonic()))
            self.watched.append(watched)
            order = read_order(node.layout)
            if order is not None and order.holds(_now_ms()):
                continue
            if order is not None and node.running() is None:
                await self._prepare(node, order)
            await node.start()
            started.append(node)
        self.publish()
        await wait_until_ready(started, on_ready=self._ready)
        self.publish()

    async def run(self, stop: asyncio.Event) -> None:
        """Watch and restart nodes until `stop` is set."""
        while not stop.is_set():
            self._follow_file()
            async with asyncio.TaskGroup() as group:
                for watched in self.watched:
                    group.create_task(self._watch(watched))
            await wait_at_most(stop, WATCH_SECONDS_BETWEEN)
        if self._resizing is not None:
            await asyncio.wait({self._resizing})

    # Nodes that are added or removed while the fleet runs

    def _follow_file(self) -> None:
        """Begin to follow a changed fleet file; what fails is tried again."""
        if self._resizing is not None:
            if not self._resizing.done():
                return
            self._resizing = None
        stamp = _stamp(self.fleet.layout)
        if stamp is None or stamp == self._file_followed or time.monotonic() < self._resize_after:
            return
        self._resizing = asyncio.create_task(self._resize(stamp))

    async def _resize(self, stamp: object) -> None:
        try:
            await self._resize_to(load_fleet(self.fleet.layout, self.fleet.nodes[0].runtime))
            self._file_followed = stamp
        except (OSError, PenstockError) as error:
            log.error("fleet file not followed", error=str(error))  # noqa: TRY400 - the text is enough
            self._resize_after = time.monotonic() + RESIZE_SECONDS_BETWEEN

    def _declares(self, node: Node) -> bool:
        """Whether the fleet file has this node, if there is a file."""
        if self._file_followed == _stamp(self.fleet.layout):
            return True
        return node.full_name in {each.full_name for each in load_fleet(self.fleet.layout).nodes}

    async def _resize_to(self, fleet: LocalFleet) -> None:
        known = {node.full_name: node for node in self.fleet.nodes}
        declared = {node.full_name for node in fleet.nodes}
        clusters = tuple(
            replace(each, nodes=tuple(known.get(node.full_name, node) for node in each.nodes))
            for each in fleet.clusters
        )
        fleet = replace(fleet, clusters=clusters)
        gone = [each for each in self.watched if each.node.full_name not in declared]
        self.watched = [each for each in self.watched if each not in gone]
        self.fleet = fleet
        for watched in gone:
            log.info("node removed", node=watched.node.name)
            await watched.prober.close()
            await watched.node.stop()
        watched_names = {each.node.full_name for each in self.watched}
        new = [node for node in fleet.nodes if node.full_name not in watched_names]
        document = load_fleet_document(fleet.layout)
        digest = "" if document is None else save_document(fleet.layout, document)
        await fleet.prepare(new)
        for node in new:
            log.info("node added", node=node.name)
            node.document = digest
            await node.start()
            self.watched.append(WatchedNode(node, Prober(node), new_watch(time.monotonic())))
        self.publish()

    async def stop(self, *, only_started: bool = False) -> None:
        """Stop all nodes; or, after a failed start, only those that this supervisor started."""
        self.stopping = True
        self.publish()
        for watched in self.watched:
            await watched.prober.close()
        spared = self.already_running if only_started else frozenset[str]()
        try:
            await stop_nodes([node for node in self.fleet.nodes if node.full_name not in spared])
            if not only_started:
                drop_orders(self.fleet.nodes)
        finally:
            self.fleet.layout.supervisor_record.unlink(missing_ok=True)

    def publish(self) -> None:
        nodes = {each.node.full_name: _published(each, stopping=self.stopping) for each in self.watched}
        try:
            write_identity(self.fleet.layout.supervisor_record, this_process(), nodes=nodes)
        except OSError as error:  # a full disk is no reason to stop watching
            log.warning("supervisor.json not written", error=str(error))

    async def _watch(self, watched: WatchedNode) -> None:
        now = time.monotonic()
        alive = watched.node.running() is not None
        held = self._follow_order(watched, alive=alive)
        responds = watched.watch.state is NodeState.READY
        if alive and not held and (now - watched.probed > PROBE_SECONDS_BETWEEN or not responds):
            watched.probed = now
            responds = (await watched.prober.probe()).ready
        before = watched.watch
        watched.watch = next_watch(before, Observation(alive, responds, held), time.monotonic())
        if watched.watch.state is before.state:
            return
        log.info("node state changed", node=watched.node.name, state=watched.watch.state, was=before.state)
        if watched.watch.state is NodeState.RESTARTING:
            watched.last_error = watched.node.last_error()
        if should_start(before, watched.watch):
            await self._restart(watched)
        self.on_change(watched.node, watched.watch)
        self.publish()

    def _follow_order(self, watched: WatchedNode, *, alive: bool) -> bool:
        """Whether the node's process must end, and then its shutdown has begun."""
        order = read_order(watched.node.layout)
        if watched.stopping is not None and watched.stopping.done():
            watched.stopping = None
        if order is None:
            return watched.stopping is not None
        must_end = order.holds(_now_ms()) or (alive and _is_of_another_order(watched.node, order))
        if must_end and alive and watched.stopping is None:
            log.info("node stopped by order", node=watched.node.name, request=order.request)
            watched.stopping = asyncio.create_task(watched.node.stop())
        return must_end or watched.stopping is not None

    async def _prepare(self, node: Node, order: Order) -> None:
        """The node starts for this order, with the fleet document that it names."""
        node.request = order.request
        if not order.document or order.document == node.document:
            return
        layout = self.fleet.layout
        spec = parse_fleet(load_document(layout, order.document), where=str(layout.documents))
        for cluster_spec in spec:
            cluster = load_cluster(cluster_spec, layout)
            if cluster is None or cluster.spec.name != node.cluster.spec.name:
                continue
            for node_spec in cluster.spec.nodes:
                if node_spec.name == node.name:
                    if self.runtime_of is not None:
                        node.runtime = await self.runtime_of(cluster.spec)
                    node.cluster, node.spec, node.document = cluster, node_spec, order.document
                    return
        raise NodeUnknown(node=node.full_name, known=f"those of document {order.document}")

    async def _restart(self, watched: WatchedNode) -> None:
        try:
            if not self._declares(watched.node):
                return  # removed from the fleet file a moment ago
            order = read_order(watched.node.layout)
            if order is not None:
                await self._prepare(watched.node, order)
            watched.node.configure()
            if watched.node.spec.role is Role.CONTROLLER:  # one whose disk was lost observes until replaced
                await watched.node.format()
            await watched.node.start()
        except (OSError, PenstockError) as error:
            # The watch counts a failed start as a crash, so it is tried again.
            log.error("node start failed", node=watched.node.name, error=str(error))  # noqa: TRY400 - the text is enough

    def _ready(self, node: Node) -> None:
        now = time.monotonic()
        for watched in self.watched:
            if watched.node is node:
                watched.watch = next_watch(watched.watch, Observation(alive=True, responds=True), now)
                watched.probed = now
                self.on_change(node, watched.watch)


def _is_of_another_order(node: Node, order: Order) -> bool:
    """Whether a live process was started before the order to run; a process without a record just began."""
    if order.state is not OrderState.RUN:
        return False
    record = read_record(node.layout.record)
    return record is not None and record[0].is_alive() and record[1].get("request", "") != order.request


def _now_ms() -> int:
    return int(time.time() * 1000)


def _stamp(layout: Layout) -> object:
    """Changes whenever the fleet file does; None without one."""
    try:
        stat = layout.fleet_file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


async def stop_nodes(nodes: Sequence[Node]) -> None:
    """Stop brokers first, all at once, while the controllers can still move their leaders."""
    killed = []
    for group in ([n for n in nodes if n.spec.is_broker], [n for n in nodes if not n.spec.is_broker]):
        clean = await asyncio.gather(*(node.stop() for node in group))
        killed += [node.name for node, was_clean in zip(group, clean) if not was_clean]
    if killed:
        from penstock.fleet.node import STOP_SECONDS_MAX

        raise StopTimedOut(nodes=", ".join(killed), seconds=STOP_SECONDS_MAX)


@contextlib.contextmanager
def sole_supervisor(layout: Layout) -> Iterator[None]:
    """Hold the home's lock; raises AlreadyRunning if another supervisor holds it."""
    make_directory(layout.home)
    with _locked(layout) as file:
        file.truncate(0)
        file.write(json.dumps(asdict(this_process())))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def supervisor_of(layout: Layout) -> Identity | None:
    """The process that supervises this home, as soon as it holds the lock."""
    return read_alive(layout.supervisor_lock)


def _locked(layout: Layout) -> TextIO:
    while True:
        try:
            file = layout.supervisor_lock.open("a+")
        except OSError as error:
            raise DirectoryNotWritable(directory=layout.home, reason=error.strerror or error) from error
        if not try_lock(file):
            file.close()
            holder = read_identity(layout.supervisor_lock)
            raise AlreadyRunning(pid=holder.pid if holder else "unknown", home=layout.home)
        try:
            # `reset` removes the file: a lock on a removed file would exclude no other process.
            if os.path.samestat(os.fstat(file.fileno()), layout.supervisor_lock.stat()):
                return file
            file.close()
        except FileNotFoundError:
            file.close()


def _published(watched: WatchedNode, *, stopping: bool) -> dict[str, object]:
    state = NodeState.STOPPING if stopping else watched.watch.state
    return {"state": state, "restarts": watched.watch.restarts, "last_error": watched.last_error}
