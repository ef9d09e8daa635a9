"""`up`, `down`, `status`, `logs`, `reset`: the local platform."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from penstock.cli.flags import Yes, confirmed
from penstock.cli.output import Format, console, plain, report, show, table_of
from penstock.cli.settings import Options, setting
from penstock.fleet.local_fleet import load_fleet
from penstock.fleet.spec import Jit
from penstock.fleet.status import FleetState, FleetStatus, NodeStatus, fleet_status
from penstock.model.errors import Exit
from penstock.model.errors.settings import UsageInvalid
from penstock.platform import local_platform
from penstock.platform.services import READY, broker_health, job_states, service_states

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from penstock.fleet.local_fleet import LocalFleet

WATCH_SECONDS = 1.0
NOT_JUDGED: Mapping[tuple[str, str], str] = MappingProxyType({})  # by cluster and node

_COLUMNS = {
    "NODE": "node", "ROLE": "role", "ZONE": "zone", "STATE": "state", "HEALTH": "health",
    "ADDRESS": "address", "PID": "pid", "UP": "up", "MB": "memory_mb", "RESTARTS": "restarts",
    "WHY": "reason",
}  # fmt: skip
_SERVICE_COLUMNS = {
    "SERVICE": "service",
    "ROLE": "role",
    "STATE": "state",
    "ADDRESS": "address",
    "METRICS": "metrics",
}
_JOB_COLUMNS = {"JOB": "job", "STATE": "state", "LAG": "lag", "ERROR": "error"}


async def up(
    *,
    fleet: Annotated[Path | None, Parameter(help="A fleet file; see docs/fleet.md.")] = None,
    brokers: Annotated[int | None, Parameter(help="Number of brokers.", show_default="3")] = None,
    controllers: Annotated[int | None, Parameter(help="Number of controllers.", show_default="1")] = None,
    zones: Annotated[str | None, Parameter(help="Zones, separated by commas.", show_default="a,b,c")] = None,
    tiny: Annotated[bool, Parameter(help="A single node: broker and controller.", negative="")] = False,
    port: Annotated[
        int | None, Parameter(help="First port; 0 picks free ones.", show_default="19090")
    ] = None,
    heap: Annotated[int | None, Parameter(help="Heap of each node, in MB.", show_default="384")] = None,
    jit: Annotated[
        Jit | None, Parameter(help="quick: fast start; full: fast at run time.", show_default="quick")
    ] = None,
    fleet_only: Annotated[
        bool | None, Parameter(help="Kafka only: no control plane, no gateways, no demo.", negative="")
    ] = None,
    detach: Annotated[
        bool,
        Parameter(name=["--detach", "-d"], help="Run in the background; return when ready.", negative=""),
    ] = False,
    options: Options = Options(),
) -> int:
    """Start the local platform: Kafka in three zones, a control plane, gateways, a demo tenant.

    Runs in the foreground with a live view. Ctrl-C stops it and keeps its data. Without flags, the
    fleet of an earlier start comes up again.

    Example:  penstock up --brokers 6 --zones a,b,c --detach
    """
    from penstock.cli.up import FleetFlags, run_detached, run_foreground

    alone = setting("fleet_only", "no") == "yes" if fleet_only is None else fleet_only
    flags = FleetFlags(fleet, brokers, controllers, zones, tiny, port, heap, jit, alone)
    if detach:
        return await run_detached(flags, options)
    return await run_foreground(flags, options)


async def down(*, options: Options = Options()) -> int:
    """Stop the local platform and keep its data.

    Example:  penstock down
    """
    if not await local_platform.stop(options.layout):
        report("stopped the brokers of dedicated clusters; nothing else was running")
        return Exit.FINE
    report("stopped; the data is kept, `penstock up` continues from it")
    return Exit.FINE


async def status(
    *,
    watch: Annotated[
        bool, Parameter(name=["--watch", "-w"], help="Refresh until Ctrl-C.", negative="")
    ] = False,
    wait: Annotated[
        bool, Parameter(name="--exit-when-healthy", help="Wait until all are ready.", negative="")
    ] = False,
    timeout: Annotated[float, Parameter(help="Seconds to wait.")] = 120.0,
    options: Options = Options(),
) -> int:
    """Show nodes, services and pipeline jobs. Exit code 5 unless all are ready.

    Example:  penstock status -o json
    """
    fleet = load_fleet(options.layout)
    if watch:
        return await _watch(fleet, options.form)
    deadline = time.monotonic() + timeout
    while True:
        seen, services, health = await _seen(fleet)
        ready = seen.state is FleetState.READY and all(one["state"] == READY for one in services)
        if ready or not wait or time.monotonic() >= deadline:
            break
        await asyncio.sleep(0.5)
    jobs = job_states(fleet.layout)
    known = seen, services, jobs, health
    show(status_data(*known), options.form, status_view(*known))
    return Exit.FINE if ready else Exit.UNHEALTHY


async def logs(
    node: Annotated[
        str | None,
        Parameter(help="b1, control, coordinator, gateway-home, supervisor, …; all if left out."),
    ] = None,
    *,
    lines: Annotated[int, Parameter(name=["--lines", "-n"], help="Number of lines from the end.")] = 50,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], help="Print new lines as they are written.", negative="")
    ] = False,
    options: Options = Options(),
) -> int:
    """Print the logs of nodes, control plane, coordinator and gateways.

    Example:  penstock logs b1 --follow
    """
    from penstock.cli.tail import follow_files, last_lines

    fleet = load_fleet(options.layout)
    services = local_platform.service_logs(fleet)
    if node in services:
        files = {node: services[node]}
    elif node:
        files = {node: fleet.node(node).layout.log}
    else:
        files = {fleet.shown_name(n): n.layout.log for n in fleet.nodes}
        files |= {name: path for name, path in services.items() if name != "supervisor" and path.exists()}
    if lines < 0:
        raise UsageInvalid(reason=f"--lines is {lines}", way_out="Ask for 0 lines or more.")
    if follow and options.form is not Format.TABLE:
        raise UsageInvalid(
            reason=f"--follow does not go together with -o {options.form}",
            way_out="Leave out one of them: a followed log has no end, a document has.",
        )
    width = max(6, *map(len, files))
    if follow:
        await follow_files(files, prefix=node is None, last=lines, width=width)
    rows = [{"node": name, "line": line} for name, path in files.items() for line in last_lines(path, lines)]
    if options.form is not Format.TABLE:
        show(rows, options.form, "")
        return Exit.FINE
    for row in rows:
        print(row["line"] if node else f"{row['node']:>{width}}  {row['line']}")
    return Exit.FINE


def reset(
    *,
    yes: Yes = False,
    options: Options = Options(),
) -> int:
    """Delete the local platform's data, certificates and keys. Stop it first.

    Example:  penstock reset --yes
    """
    layout = options.layout
    local_platform.check_stopped(layout)
    if not confirmed(f"This reset deletes data: everything under {layout.home}.", yes=yes):
        return Exit.FAILED
    local_platform.delete(layout)
    report("deleted")
    return Exit.FINE


def status_data(
    seen: FleetStatus,
    services: Sequence[Mapping[str, Any]],
    jobs: Sequence[Mapping[str, Any]] = (),
    health: Mapping[tuple[str, str], str] = NOT_JUDGED,
) -> dict[str, Any]:
    return {
        "state": seen.state,
        "home": seen.home,
        "supervisor": seen.supervisor,
        "clusters": seen.clusters,
        "nodes": [_row(node, health) for node in seen.nodes],
        "services": [*services],
        "jobs": [*jobs],
    }


def _row(node: NodeStatus, health: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    return asdict(node) | {"health": health.get((node.cluster, node.node))}


def status_view(
    seen: FleetStatus,
    services: Sequence[Mapping[str, Any]] = (),
    jobs: Sequence[Mapping[str, Any]] = (),
    health: Mapping[tuple[str, str], str] = NOT_JUDGED,
) -> RenderableType:
    from rich.console import Group

    rows = [_row(node, health) | {"up": _duration(node.uptime_seconds)} for node in seen.nodes]
    for row in rows:
        row["memory_mb"] = round(row["memory_mb"]) if row["memory_mb"] else None
        if len(seen.clusters) > 1:
            row["node"] = f"{row['cluster']}/{row['node']}"
    heads = [
        f"[bold]{name}[/] {facts['id']}: {facts['shape']}, bootstrap {plain(facts['bootstrap'])}"
        for name, facts in seen.clusters.items()
    ]
    behind = [f"{row['node']} behind: {plain(each)}" for row in rows for each in row["behind"]]
    if behind:
        behind.append("penstock fleet roll restarts nodes that are behind, one zone at a time")
    supervised = f"supervised by process {seen.supervisor}" if seen.supervisor else "not supervised"
    below = [table_of(services, _SERVICE_COLUMNS)] if services else []
    below += [table_of(jobs, _JOB_COLUMNS)] if jobs else []
    return Group(*heads, table_of(rows, _COLUMNS), *behind, *below, f"[dim]{seen.state}, {supervised}[/]")


async def _seen(
    fleet: LocalFleet,
) -> tuple[FleetStatus, list[dict[str, Any]], dict[tuple[str, str], str]]:
    seen, services = await fleet_status(fleet), await asyncio.to_thread(service_states, fleet)
    return seen, services, await asyncio.to_thread(broker_health, fleet)


async def _watch(fleet: LocalFleet, form: Format) -> int:
    from rich.live import Live

    while form is not Format.TABLE or not sys.stdout.isatty():
        seen, services, health = await _seen(fleet)
        known = seen, services, job_states(fleet.layout), health
        show(status_data(*known), form, status_view(*known))
        sys.stdout.flush()
        await asyncio.sleep(WATCH_SECONDS)
    with Live(console=console(), auto_refresh=False, transient=False) as live:
        while True:
            seen, services, health = await _seen(fleet)
            live.update(status_view(seen, services, job_states(fleet.layout), health), refresh=True)
            await asyncio.sleep(WATCH_SECONDS)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
