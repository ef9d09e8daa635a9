"""Running the platform: what `penstock up` does once its flags are read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from penstock.cli.local import services_of, status_data, status_view
from penstock.cli.output import (
    Format,
    console,
    home_flag,
    plain,
    progress,
    show,
    show_error,
    tell,
    this_command,
)
from penstock.cli.remote import read_address
from penstock.cli.settings import fleet_file
from penstock.control.local import stop_dedicated
from penstock.fleet.layout import make_directory, write_atomically
from penstock.fleet.local import open_fleet, remember_spec, remembered_document, watched_fleet
from penstock.fleet.parse import parse_fleet, read_document
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.status import FleetState, fleet_status
from penstock.fleet.supervisor import Supervisor, sole_supervisor, supervisor_of
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.fleet import AlreadyRunning, StopTimedOut
from penstock.model.errors.settings import SettingInvalid

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.cli.settings import Options
    from penstock.fleet.layout import Layout
    from penstock.fleet.local import LocalFleet
    from penstock.fleet.node import Node
    from penstock.fleet.spec import Jit
    from penstock.fleet.status import FleetStatus
    from penstock.fleet.watch import Watch

VIEW_SECONDS_BETWEEN = 1.0
DETACH_SECONDS_MAX = 180.0
SUPERVISOR_LOG_BYTES_MAX = 1_000_000  # begun anew at the first start after this

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FleetFlags:
    fleet: Path | None
    brokers: int | None
    controllers: int | None
    zones: str | None
    tiny: bool
    port: int | None
    heap: int | None
    jit: Jit | None
    fleet_only: bool = False  # no control plane, no gateways, no demo


def asked_document(flags: FleetFlags, layout: Layout) -> dict[str, Any]:
    """The fleet that is meant: flags, else a fleet file, else the one that was, else the default."""
    shape = {
        "brokers": flags.brokers,
        "controllers": flags.controllers,
        "zones": None if flags.zones is None else flags.zones.split(","),
        "port": flags.port,
        "heap": flags.heap,
        "jit": None if flags.jit is None else str(flags.jit),
    }
    given = {key: value for key, value in shape.items() if value is not None}
    if flags.tiny:
        if twice := given.keys() & {"brokers", "controllers", "zones"}:
            raise SettingInvalid(
                where="penstock up",
                key="--tiny",
                value=True,
                expected=f"expected no {sorted(twice)} beside it",
            )
        given |= {"combined": True, "brokers": 1, "zones": ["a"]}
    path = flags.fleet or fleet_file()
    if path is None:
        return {"clusters": [given]} if given else remembered_document(layout) or {"clusters": [{}]}
    if given:
        raise SettingInvalid(
            where="penstock up",
            key="--fleet",
            value=str(path),
            expected=f"expected it alone, without {list(given)}",
        )
    return read_document(path)


async def run_foreground(flags: FleetFlags, options: Options) -> int:
    """Supervise until a signal comes; the terminal shows the fleet meanwhile."""
    layout = options.layout
    document = asked_document(flags, layout)
    spec = parse_fleet(document, where=str(flags.fleet or "penstock up"))
    with sole_supervisor(layout):
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop.set)
        anew = asyncio.Event()

        def begin_anew() -> None:
            anew.set()
            stop.set()

        loop.add_signal_handler(signal.SIGUSR1, begin_anew)
        runtime = await _unless(stop, obtain_runtime(progress))
        if runtime is None:
            return Exit.FINE
        fleet = open_fleet(spec, layout, runtime)
        remember_spec(layout, document)
        await _supervise(fleet, stop, anew, options, fleet_only=flags.fleet_only)
    if anew.is_set():
        command = _up_command(options, layout.fleet_file, fleet_only=flags.fleet_only)
        sys.stdout.flush()
        os.execv(command[0], command)  # noqa: S606 - the same process goes on, with the fleet's file as it is now
    return Exit.FINE


def _up_command(options: Options, fleet: Path, *, fleet_only: bool) -> list[str]:
    command = [sys.executable, "-m", "penstock", "up", "--home", str(options.layout.home)]
    command += ["--fleet", str(fleet), "--output", str(options.form)]
    return command + (["--fleet-only"] if fleet_only else [])


async def _supervise(
    fleet: LocalFleet, stop: asyncio.Event, anew: asyncio.Event, options: Options, *, fleet_only: bool
) -> None:
    """A start that fails ends what it started, not what ran before. Later, only a signal ends nodes:
    a supervisor that dies of a fault of its own, or begins anew, leaves them to the next one."""

    def told(node: Node, watch: Watch) -> None:
        more = f", restart {watch.restarts}" if watch.restarts else ""
        tell(f"{fleet.shown_name(node)} {watch.state}{more}")

    supervisor = Supervisor(fleet, told=told)
    try:
        with progress(f"starting {', '.join(cluster.cluster.spec.shape for cluster in fleet.clusters)}"):
            await _unless(stop, supervisor.start())
    except BaseException:
        with contextlib.suppress(StopTimedOut):  # the first error is the one to tell
            await supervisor.stop(leave_found=True)
        raise
    try:
        if not stop.is_set():
            async with asyncio.TaskGroup() as group:
                group.create_task(supervisor.keep(stop))
                if fleet_only:
                    await _announce(fleet, await fleet_status(fleet), options)
                    group.create_task(_live_view(fleet, stop))
                else:
                    group.create_task(_platform(fleet, stop, options))
    finally:
        if stop.is_set() and not anew.is_set():
            with progress("stopping"):
                await supervisor.stop()
                await stop_dedicated(fleet.layout)
    tell("beginning anew with the fleet's file" if anew.is_set() else "stopped; the data is kept")


async def _platform(fleet: LocalFleet, stop: asyncio.Event, options: Options) -> None:
    """The control plane, the gateways and the demo, for as long as the fleet is up."""
    from penstock.cli.companions import Companions
    from penstock.cli.settings import RemoteOptions

    companions = Companions(fleet, RemoteOptions(home=options.layout.home))
    async with companions.beside():
        with progress("starting the control plane and the gateways"):
            try:
                await _unless(stop, companions.ready())
            except PenstockError as error:
                # The fleet is of use without them, and its supervisor must not die of them.
                show_error(error)
                companions.demo = {}
        companions.publish()
        await _announce(fleet, await fleet_status(fleet), options, demo=companions.demo)
        if companions.demo and not stop.is_set():
            async with asyncio.TaskGroup() as group:
                group.create_task(companions.traffic(stop))
                group.create_task(_live_view(fleet, stop))
        await stop.wait()


async def run_detached(flags: FleetFlags, options: Options) -> int:
    """Start a supervisor of its own session and return when its fleet is ready."""
    layout = options.layout
    if (running := supervisor_of(layout)) is not None:
        raise AlreadyRunning(pid=running.pid, home=layout.home)
    document = asked_document(flags, layout)
    parse_fleet(document, where=str(flags.fleet or "penstock up"))
    make_directory(layout.home)
    asked = layout.home / f"asked.{os.getpid()}.yaml"
    write_atomically(asked, yaml.safe_dump(document))
    command = _up_command(options, asked, fleet_only=flags.fleet_only)
    tell(f"starting; its own words go to {plain(str(layout.supervisor_log))}")
    start = layout.supervisor_log.stat().st_size if layout.supervisor_log.exists() else 0
    if start > SUPERVISOR_LOG_BYTES_MAX:
        layout.supervisor_log.unlink()
        start = 0
    with layout.supervisor_log.open("ab") as file:
        child = subprocess.Popen(  # noqa: ASYNC220 - fork and exec, nothing is waited for
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=os.environ,
        )
    try:
        return await _detached_ready(child, options, start, fleet_only=flags.fleet_only)
    finally:
        asked.unlink(missing_ok=True)


async def _detached_ready(
    child: subprocess.Popen[bytes], options: Options, log_start: int, *, fleet_only: bool
) -> int:
    layout = options.layout
    deadline = time.monotonic() + DETACH_SECONDS_MAX
    while time.monotonic() < deadline and child.poll() is None:
        supervisor = supervisor_of(layout)
        if supervisor is not None and supervisor.pid == child.pid and layout.supervisor_record.exists():
            fleet = watched_fleet(layout)
            address = {} if fleet_only else read_address(layout)
            there = fleet_only or address.get("pid") == child.pid
            if there and (seen := await fleet_status(fleet)).state is FleetState.READY:
                await _announce(fleet, seen, options, demo=address.get("demo"))
                return Exit.FINE if fleet_only or address["demo"] else Exit.UNHEALTHY
        await asyncio.sleep(0.2)
    with layout.supervisor_log.open("rb") as log:
        log.seek(log_start)
        sys.stderr.write(log.read().decode(errors="replace"))
    return child.poll() or Exit.UNHEALTHY


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T | None:
    """Its result; or None when it was told to stop before it had one, and has then ended."""
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


async def _announce(
    fleet: LocalFleet, seen: FleetStatus, options: Options, *, demo: dict[str, str] | None = None
) -> None:
    if options.form is not Format.TABLE:
        services = await asyncio.to_thread(services_of, fleet)
        show(status_data(seen, services) | ({"demo": demo} if demo else {}), options.form, "")
        sys.stdout.flush()
        return
    for name, facts in seen.clusters.items():
        tell(f"[bold green]ready[/]  {name} ({facts['id']}): {facts['shape']}")
        tell(f"       bootstrap {plain(facts['bootstrap'])}")
    if demo:
        tell(f"[bold green]ready[/]  logical cluster {plain(demo['name'])} ({demo['id']}), an order a second")
        tell(f"       bootstrap {plain(demo['bootstrap'])}, API key {demo['key']}")
    _tell_next_steps(options, demo=bool(demo))


def _tell_next_steps(options: Options, *, demo: bool) -> None:
    home = home_flag(options.layout)
    steps = {
        f"{this_command()} status{home}": "every node, and whether it answers",
        f"{this_command()} logs b1 --follow{home}": "what a broker says",
        f"{this_command()} fleet connect{home}": "settings for any Kafka client",
    }
    if demo:
        steps = {
            f"{this_command()} consume orders --cluster demo{home}": "what the demo's tenant gets",
            f"{this_command()} cluster connect demo --client python{home}": "settings for its clients",
            f"{this_command()} cluster create shop --ingress 2MB/s{home}": "a cluster of your own",
            **steps,
        }
    width = max(len(step) for step in steps)
    tell("Next:")
    for step, purpose in steps.items():
        tell(plain(f"  {step:<{width}}  {purpose}"))


async def _live_view(fleet: LocalFleet, stop: asyncio.Event) -> None:
    out = console(stderr=True)
    if not out.is_terminal:
        return
    from rich.live import Live

    with Live(console=out, auto_refresh=False, transient=True) as live:
        while not stop.is_set():
            live.update(status_view(await fleet_status(fleet)), refresh=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), VIEW_SECONDS_BETWEEN)
