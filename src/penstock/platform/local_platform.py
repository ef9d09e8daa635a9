"""Starts, supervises, stops and deletes the platform of one home directory.

`LocalPlatform.run` supervises until a signal comes. SIGUSR1 ends the supervisor but not the nodes, so
that it starts again with the fleet file as it is now. `start_detached` runs the same in another
process. What the user sees meanwhile is the caller's: it passes a `View`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import yaml

from penstock.atomic_files import write_atomically
from penstock.control.physical.addresses import ADDRESS_FILE
from penstock.control.physical.backup_file import backup_file
from penstock.control.physical.local import DEDICATED, dedicated_homes, gateway_file, stop_dedicated
from penstock.fleet.layout import make_directory
from penstock.fleet.local_fleet import load_fleet, load_fleet_document, open_fleet, save_fleet_document
from penstock.fleet.runtime import obtain_runtime, runtime_of, use_versions
from penstock.fleet.spec_file import parse_fleet
from penstock.fleet.status import FleetState, fleet_status
from penstock.fleet.supervisor import Supervisor, sole_supervisor, stop_nodes, supervisor_of
from penstock.metrics_server import metrics_at, page_of
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.fleet import AlreadyRunning, NotRunning, StillRunning, StopTimedOut
from penstock.platform.checker_tenant import CheckerTenant
from penstock.platform.companions import (
    CHECKER_LOG,
    CONTROL_LOG,
    COORDINATOR_LOG,
    forget_services,
    run_companions,
)
from penstock.platform.control_client import read_address
from penstock.platform.demo_tenant import DemoTenant
from penstock.platform.services import READY, readiness
from penstock.platform.supervisor_metrics import SupervisorMetrics
from penstock.stop_signals import stop_event

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalFleet
    from penstock.fleet.node import Node
    from penstock.fleet.node_watch import Watch
    from penstock.fleet.status import FleetStatus
    from penstock.platform.companions import Companions

DETACH_SECONDS_MAX: Final = 180.0
STOP_SECONDS_MAX: Final = 60.0
SERVICES_SECONDS_MAX: Final = 30.0  # for the services to be ready, once the fleet is
POLL_SECONDS: Final = 0.2
SUPERVISOR_LOG_BYTES_MAX: Final = 1_000_000  # a larger log is deleted at the next start

_T = TypeVar("_T")


class View(Protocol):
    """What a caller shows of a platform that starts, runs and stops."""

    def progress(self, doing: str) -> AbstractContextManager[None]:
        """Wraps what takes long."""
        ...

    def report(self, event: str) -> None: ...

    def show_error(self, error: PenstockError) -> None:
        """The control plane, the gateways or the demo did not start; the fleet runs on."""
        ...

    async def ready(self, fleet: LocalFleet, status: FleetStatus, demo: Mapping[str, str] | None) -> None: ...

    async def watch(self, fleet: LocalFleet, stop: asyncio.Event) -> None:
        """Shows the fleet until `stop`."""
        ...


@dataclass(frozen=True, slots=True)
class LocalPlatform:
    layout: Layout
    view: View
    fleet_only: bool = False  # no control plane, no gateways, no demo

    async def run(self, document: dict[str, Any], *, where: str) -> bool:
        """Supervise the fleet of a document until a signal; True if it must start again.

        `where` names the document in errors.
        """
        spec = parse_fleet(document, where=where)
        with sole_supervisor(self.layout):
            stop = stop_event(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            restart = asyncio.Event()

            def request_restart() -> None:
                restart.set()
                stop.set()

            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, request_restart)
            runtime = await unless_stopped(stop, obtain_runtime(self.view.progress))
            if runtime is None:
                return False
            fleet = open_fleet(spec, self.layout, runtime)
            await use_versions(fleet)
            save_fleet_document(self.layout, document)
            forget_services(self.layout)
            await self._supervise(fleet, stop, restart)
        return restart.is_set()

    async def _supervise(self, fleet: LocalFleet, stop: asyncio.Event, restart: asyncio.Event) -> None:
        """A start that fails ends the nodes that it started, and no others.

        Later only a signal ends nodes: a supervisor that fails or restarts leaves them to the next one.
        """

        def report(node: Node, watch: Watch) -> None:
            count = f", restart {watch.restarts}" if watch.restarts else ""
            self.view.report(f"{fleet.shown_name(node)} {watch.state}{count}")

        supervisor = Supervisor(fleet, on_change=report, runtime_of=runtime_of)
        shapes = ", ".join(cluster.cluster.spec.shape for cluster in fleet.clusters)
        try:
            with self.view.progress(f"starting {shapes}"):
                await unless_stopped(stop, supervisor.start())
        except BaseException:
            with contextlib.suppress(StopTimedOut):  # the first error is the one to show
                await supervisor.stop(only_started=True)
            raise
        try:
            if not stop.is_set():
                async with asyncio.TaskGroup() as group:
                    group.create_task(supervisor.run(stop))
                    if self.fleet_only:
                        await self.view.ready(fleet, await fleet_status(fleet), None)
                        group.create_task(self.view.watch(fleet, stop))
                    else:
                        group.create_task(self._run_companions(fleet, supervisor, stop))
        finally:
            if stop.is_set() and not restart.is_set():
                with self.view.progress("stopping"):
                    await supervisor.stop()
                    await stop_dedicated(fleet.layout)
        self.view.report(
            "starting again with the changed fleet file" if restart.is_set() else "stopped; the data is kept"
        )

    async def _run_companions(self, fleet: LocalFleet, supervisor: Supervisor, stop: asyncio.Event) -> None:
        async with run_companions(fleet) as companions:
            metrics = SupervisorMetrics(supervisor, companions.services, stop)
            demo, facts = DemoTenant(fleet.layout, companions.url), None
            with metrics_at(companions.metrics, page_of(metrics), not_ready=metrics.not_ready):
                with self.view.progress("starting the control plane and the gateways"):
                    try:
                        facts = await unless_stopped(stop, demo.create())
                        await unless_stopped(stop, CheckerTenant(fleet.layout, companions.url).create())
                    except PenstockError as error:
                        # The fleet is of use without them, so its supervisor continues.
                        self.view.show_error(error)
                    await unless_stopped(stop, _until_ready(companions))
                companions.publish(fleet.layout, facts or {})
                await self.view.ready(fleet, await fleet_status(fleet), facts)
                if facts and not stop.is_set():
                    async with asyncio.TaskGroup() as group:
                        group.create_task(demo.write_orders(stop))
                        group.create_task(self.view.watch(fleet, stop))
                await stop.wait()


async def _until_ready(companions: Companions) -> None:
    """Returns when every service is ready, or after a while: `status` then shows what is not."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SERVICES_SECONDS_MAX):
            for service in companions.services:
                while await asyncio.to_thread(readiness, service.metrics) != READY:
                    await asyncio.sleep(POLL_SECONDS)


def up_command(layout: Layout, fleet_file: Path, *, fleet_only: bool, output: str) -> list[str]:
    """The command that supervises the fleet of a file."""
    command = [sys.executable, "-m", "penstock", "up", "--home", str(layout.home)]
    command += ["--fleet", str(fleet_file), "--output", output]
    return command + (["--fleet-only"] if fleet_only else [])


@dataclass(frozen=True, slots=True)
class Started:
    fleet: LocalFleet
    status: FleetStatus
    demo: Mapping[str, str] | None  # None: not requested; empty: it failed


@dataclass(frozen=True, slots=True)
class StartFailed:
    exit_code: int
    log: str  # what the supervisor logged


async def start_detached(
    document: dict[str, Any], layout: Layout, *, where: str, fleet_only: bool, output: str
) -> Started | StartFailed:
    """Start a supervisor in a new session; returns when its fleet is ready."""
    if (supervisor := supervisor_of(layout)) is not None:
        raise AlreadyRunning(pid=supervisor.pid, home=layout.home)
    parse_fleet(document, where=where)
    make_directory(layout.home)
    fleet_file = layout.home / f"requested.{os.getpid()}.yaml"
    write_atomically(fleet_file, yaml.safe_dump(document))
    log_start = layout.supervisor_log.stat().st_size if layout.supervisor_log.exists() else 0
    if log_start > SUPERVISOR_LOG_BYTES_MAX:
        layout.supervisor_log.unlink()
        log_start = 0
    with layout.supervisor_log.open("ab") as file:
        child = subprocess.Popen(  # noqa: ASYNC220 - fork and exec, nothing is waited for
            up_command(layout, fleet_file, fleet_only=fleet_only, output=output),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=os.environ,
        )
    try:
        if (started := await _ready(child, layout, fleet_only=fleet_only)) is not None:
            return started
    finally:
        fleet_file.unlink(missing_ok=True)
    with layout.supervisor_log.open("rb") as log:
        log.seek(log_start)
        return StartFailed(child.poll() or Exit.UNHEALTHY, log.read().decode(errors="replace"))


async def _ready(child: subprocess.Popen[bytes], layout: Layout, *, fleet_only: bool) -> Started | None:
    deadline = time.monotonic() + DETACH_SECONDS_MAX
    while time.monotonic() < deadline and child.poll() is None:
        supervisor = supervisor_of(layout)
        if supervisor is not None and supervisor.pid == child.pid and layout.supervisor_record.exists():
            fleet = load_fleet(layout)
            address = {} if fleet_only else read_address(layout)
            published = fleet_only or address.get("pid") == child.pid
            if published and (status := await fleet_status(fleet)).state is FleetState.READY:
                return Started(fleet, status, address.get("demo"))
        await asyncio.sleep(POLL_SECONDS)
    return None


async def stop(layout: Layout) -> bool:
    """Stop everything of this home, and keep its data. False if only dedicated clusters were running."""
    fleet = load_fleet(layout)
    supervisor = supervisor_of(layout)
    if supervisor is None and not any(node.running() for node in fleet.nodes):
        if await stop_dedicated(layout):
            return False
        raise NotRunning(home=layout.home)
    if supervisor is not None:
        supervisor.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while supervisor.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        supervisor.signal(signal.SIGKILL)
    await stop_nodes(fleet.nodes)  # what a supervisor left that died or was too slow
    await stop_dedicated(layout)
    return True


def service_logs(fleet: LocalFleet) -> dict[str, Path]:
    """Name → log of everything that runs beside the nodes, whether or not it has run yet."""
    layout = fleet.layout
    logs = {"control": layout.home / CONTROL_LOG, "coordinator": layout.home / COORDINATOR_LOG}
    logs["checker"] = layout.home / CHECKER_LOG
    for cluster in fleet.clusters:
        logs[f"gateway-{cluster.name}"] = gateway_file(layout, cluster.cluster.spec).with_suffix(".log")
        if (backup := backup_file(layout, cluster.cluster.spec)) is not None:
            logs[f"backup-{cluster.name}"] = backup.with_suffix(".log")
    for home in dedicated_homes(layout):
        for path in home.home.rglob("gateway.log"):
            logs[f"gateway-{home.home.name}"] = path
    return logs | {"supervisor": layout.supervisor_log}


def check_stopped(layout: Layout) -> None:
    """Raises StillRunning, with the nodes that run."""
    fleet = load_fleet(layout)
    running = [fleet.shown_name(node) for node in fleet.nodes if node.running()]
    for home in dedicated_homes(layout):
        if load_fleet_document(home) is not None:
            running += [node.full_name for node in load_fleet(home).nodes if node.running()]
    if running or supervisor_of(layout):
        raise StillRunning(what="reset", running=", ".join(running) or "the supervisor")


def delete(layout: Layout) -> None:
    """Delete data, certificates and keys; adopted clusters stay listed.

    The fleet file goes last, so that a deletion that was interrupted can be repeated.
    """
    with sole_supervisor(layout):  # so that it cannot be started meanwhile
        # The pipeline's state is of topics that go: it would refuse new ones with their names.
        pipeline = layout.home / "pipeline"
        forget_services(layout)
        for directory in (layout.home / "clusters", layout.home / DEDICATED, pipeline, layout.secrets):
            if directory.exists():
                shutil.rmtree(directory)
        paths = [layout.supervisor_record, layout.supervisor_log, layout.fleet_file, layout.supervisor_lock]
        paths += [layout.home / name for name in (ADDRESS_FILE, CONTROL_LOG, COORDINATOR_LOG, CHECKER_LOG)]
        for path in paths:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        layout.home.rmdir()  # not empty where adopted clusters are listed


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T | None:
    """The result of the work; None if `stop` came first, and then the work has been cancelled."""
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await working
    return None
