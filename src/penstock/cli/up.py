"""What `penstock up` reads from its flags, and what it shows while it runs."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.local import status_data, status_view
from penstock.cli.output import (
    Format,
    console,
    home_flag,
    plain,
    progress,
    report,
    show,
    show_error,
    this_command,
)
from penstock.cli.settings import fleet_file
from penstock.fleet.local_fleet import load_fleet, load_fleet_document
from penstock.fleet.status import fleet_status
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.settings import SettingInvalid
from penstock.model.settings_reader import read_mapping
from penstock.platform.local_platform import LocalPlatform, Started, start_detached, up_command
from penstock.platform.services import service_states
from penstock.timed_wait import wait_at_most

if TYPE_CHECKING:
    from penstock.cli.settings import Options
    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalFleet
    from penstock.fleet.spec import Jit
    from penstock.fleet.status import FleetStatus

VIEW_SECONDS_BETWEEN = 1.0


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
    fleet_only: bool = False

    @property
    def where(self) -> str:
        """What errors in the fleet's description name."""
        return str(self.fleet or "penstock up")


def fleet_document(flags: FleetFlags, layout: Layout) -> dict[str, Any]:
    """The fleet that is meant: flags, else a fleet file, else the fleet of this home, else the default."""
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
        if conflicting := given.keys() & {"brokers", "controllers", "zones"}:
            raise SettingInvalid(
                where="penstock up",
                key="--tiny",
                value=True,
                expected=f"expected no {_flags(sorted(conflicting))} beside it",
            )
        given |= {"combined": True, "brokers": 1, "zones": ["a"]}
    path = flags.fleet or fleet_file()
    if path is None:
        return {"clusters": [given]} if given else load_fleet_document(layout) or {"clusters": [{}]}
    if given:
        names = ["tiny"] if flags.tiny else list(given)
        raise SettingInvalid(
            where="penstock up",
            key="--fleet",
            value=str(path),
            expected=f"expected it alone, without {_flags(names)}",
        )
    return read_mapping(path)


def _flags(names: list[str]) -> str:
    return ", ".join(f"--{name}" for name in names)


async def run_foreground(flags: FleetFlags, options: Options) -> int:
    """Supervise until a signal comes; the terminal shows the fleet meanwhile."""
    layout = options.layout
    platform = LocalPlatform(layout, TerminalView(options), flags.fleet_only)
    if await platform.run(fleet_document(flags, layout), where=flags.where):
        command = up_command(layout, layout.fleet_file, fleet_only=flags.fleet_only, output=str(options.form))
        sys.stdout.flush()
        os.execv(command[0], command)  # noqa: S606 - the same process continues, with the changed fleet file
    return Exit.FINE


async def run_detached(flags: FleetFlags, options: Options) -> int:
    layout = options.layout
    document = fleet_document(flags, layout)
    report(f"starting; the log is {plain(str(layout.supervisor_log))}")
    started = await start_detached(
        document, layout, where=flags.where, fleet_only=flags.fleet_only, output=str(options.form)
    )
    if not isinstance(started, Started):
        sys.stderr.write(started.log)
        return started.exit_code
    await TerminalView(options).ready(started.fleet, started.status, started.demo)
    if flags.fleet_only or started.demo:
        return Exit.FINE
    report(
        "Kafka runs, but the demo tenant was not made; the reason is in the log. "
        f"See: {this_command()} status"
    )
    return Exit.UNHEALTHY


@dataclass(frozen=True, slots=True)
class TerminalView:
    """Shows a platform that starts, runs and stops on this terminal."""

    options: Options

    def progress(self, doing: str) -> AbstractContextManager[None]:
        return progress(doing)

    def report(self, event: str) -> None:
        report(event)

    def show_error(self, error: PenstockError) -> None:
        show_error(error)

    async def ready(self, fleet: LocalFleet, status: FleetStatus, demo: Mapping[str, str] | None) -> None:
        if self.options.form is not Format.TABLE:
            services = await asyncio.to_thread(service_states, fleet)
            data = status_data(status, services) | ({"demo": demo} if demo else {})
            show(data, self.options.form, "")
            sys.stdout.flush()
            return
        for name, facts in status.clusters.items():
            report(f"[bold green]ready[/]  {name} ({facts['id']}): {facts['shape']}")
            report(f"       bootstrap {plain(facts['bootstrap'])}")
        if demo:
            cluster = f"logical cluster {plain(demo['name'])} ({demo['id']})"
            report(f"[bold green]ready[/]  {cluster}, an order a second")
            report(f"       bootstrap {plain(demo['bootstrap'])}, API key {demo['key']}")
        report_next_steps(self.options, demo=bool(demo))

    async def watch(self, fleet: LocalFleet, stop: asyncio.Event) -> None:
        out = console(stderr=True)
        if not out.is_interactive:
            return
        from rich.live import Live

        with Live(console=out, auto_refresh=False, transient=True) as live:
            while not stop.is_set():
                live.update(status_view(await fleet_status(load_fleet(fleet.layout))), refresh=True)
                await wait_at_most(stop, VIEW_SECONDS_BETWEEN)


def report_next_steps(options: Options, *, demo: bool) -> None:
    home = home_flag(options.layout)
    steps = {
        f"{this_command()} status{home}": "every node and service, and whether it is ready",
        f"{this_command()} logs b1 --follow{home}": "a broker's log",
        f"{this_command()} fleet connect{home}": "settings for any Kafka client",
    }
    if demo:
        steps = {
            f"{this_command()} consume orders --cluster demo{home}": "the demo tenant's records",
            f"{this_command()} cluster connect demo --client python{home}": "settings for its clients",
            f"{this_command()} cluster create shop --ingress 2MB/s{home}": "a cluster of your own",
            **steps,
        }
    width = max(len(step) for step in steps)
    report("Next:")
    for step, purpose in steps.items():
        report(plain(f"  {step:<{width}}  {purpose}"))
