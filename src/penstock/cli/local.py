"""`up`, `down`, `status`, `logs`, `reset`: the local platform."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import time
from dataclasses import asdict
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.request import urlopen

from cyclopts import Parameter

from penstock.cli.output import Format, console, plain, show, table_of, tell
from penstock.cli.remote import read_address
from penstock.cli.settings import Options, setting
from penstock.control.local import DEDICATED, dedicated_homes, gateway_file, stop_dedicated
from penstock.fleet.local import remembered_document, watched_fleet
from penstock.fleet.spec import Jit
from penstock.fleet.status import FleetState, FleetStatus, fleet_status
from penstock.fleet.supervisor import sole_supervisor, stop_nodes, supervisor_of
from penstock.gateway.running import running
from penstock.model.errors import Exit
from penstock.model.errors.fleet import NotRunning, StillRunning
from penstock.model.errors.settings import UsageInvalid
from penstock.pipeline.status import every_status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from penstock.fleet.layout import Layout
    from penstock.fleet.local import LocalFleet

STOP_SECONDS_MAX = 60.0
WATCH_SECONDS = 1.0
ANSWER_SECONDS_MAX = 5.0

_COLUMNS = {
    "NODE": "node", "ROLE": "role", "ZONE": "zone", "STATE": "state", "ADDRESS": "address", "PID": "pid",
    "UP": "up", "MB": "memory_mb", "RESTARTS": "restarts", "WHY": "reason",
}  # fmt: skip
_SERVICE_COLUMNS = {"SERVICE": "service", "STATE": "state", "ADDRESS": "address"}
_JOB_COLUMNS = {"JOB": "job", "STATE": "state", "BEHIND": "behind", "ERROR": "error"}


async def up(
    *,
    fleet: Annotated[Path | None, Parameter(help="A fleet file; see docs/fleet.md.")] = None,
    brokers: Annotated[int | None, Parameter(help="How many brokers.", show_default="3")] = None,
    controllers: Annotated[int | None, Parameter(help="How many controllers.", show_default="1")] = None,
    zones: Annotated[str | None, Parameter(help="Zones, by commas.", show_default="a,b,c")] = None,
    tiny: Annotated[bool, Parameter(help="One node that is broker and controller.", negative="")] = False,
    port: Annotated[int | None, Parameter(help="First port; 0 for free ones.", show_default="19090")] = None,
    heap: Annotated[int | None, Parameter(help="Heap of each node, MB.", show_default="384")] = None,
    jit: Annotated[
        Jit | None, Parameter(help="quick starts fast, full runs fast.", show_default="quick")
    ] = None,
    fleet_only: Annotated[
        bool | None, Parameter(help="Kafka alone, without control plane and gateways.", negative="")
    ] = None,
    detach: Annotated[
        bool, Parameter(name=["--detach", "-d"], help="Return when ready.", negative="")
    ] = False,
    options: Options = Options(),
) -> int:
    """Start the local platform: Kafka in three zones, a control plane, gateways, a demo tenant.

    Runs in the foreground with a live view; Ctrl-C stops it and keeps its data. Without flags, a
    fleet that was started before comes up as it was.

    Example:  penstock up --brokers 6 --zones a,b,c --detach
    """
    from penstock.cli.running import FleetFlags, run_detached, run_foreground

    alone = setting("fleet_only", "no") == "yes" if fleet_only is None else fleet_only
    flags = FleetFlags(fleet, brokers, controllers, zones, tiny, port, heap, jit, alone)
    if detach:
        return await run_detached(flags, options)
    return await run_foreground(flags, options)


async def down(*, options: Options = Options()) -> int:
    """Stop the local platform, brokers before controllers, and keep its data.

    Example:  penstock down
    """
    fleet = watched_fleet(options.layout)
    supervisor = supervisor_of(options.layout)
    if supervisor is None and not any(node.running() for node in fleet.nodes):
        if await stop_dedicated(options.layout):
            tell("the brokers of dedicated clusters are stopped; nothing else was running")
            return Exit.FINE
        raise NotRunning(home=options.layout.home)
    if supervisor is not None:
        supervisor.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while supervisor.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        supervisor.signal(signal.SIGKILL)
    await stop_nodes(fleet.nodes)  # what a supervisor that is gone, or was too slow, left behind
    await stop_dedicated(options.layout)
    tell("stopped; the data is kept, `penstock up` continues from it")
    return Exit.FINE


async def status(
    *,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"], help="Keep showing.", negative="")] = False,
    wait: Annotated[
        bool, Parameter(name="--exit-when-healthy", help="Wait until all is ready.", negative="")
    ] = False,
    timeout: Annotated[float, Parameter(help="How long to wait, seconds.")] = 120.0,
    options: Options = Options(),
) -> int:
    """Show every node, the services beside them, the pipeline's jobs. Exit code 5 unless every node answers.

    Example:  penstock status -o json
    """
    fleet = watched_fleet(options.layout)
    if watch:
        return await _watch(fleet, options.form)
    seen = await fleet_status(fleet)
    deadline = time.monotonic() + timeout
    while wait and seen.state is not FleetState.READY and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        seen = await fleet_status(fleet)
    services = await asyncio.to_thread(services_of, fleet)
    jobs = jobs_of(fleet.layout)
    show(status_data(seen, services, jobs), options.form, status_view(seen, services, jobs))
    return Exit.FINE if seen.state is FleetState.READY else Exit.UNHEALTHY


async def logs(
    node: Annotated[str | None, Parameter(help="A node such as b1; all nodes if left out.")] = None,
    *,
    lines: Annotated[int, Parameter(name=["--lines", "-n"], help="How many lines from the end.")] = 50,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], help="Go on as they grow.", negative="")
    ] = False,
    options: Options = Options(),
) -> int:
    """Print what the nodes logged.

    Example:  penstock logs b1 --follow
    """
    from penstock.cli.tail import follow_files, last_lines

    fleet = watched_fleet(options.layout)
    nodes = [fleet.node(node)] if node else list(fleet.nodes)
    files = {fleet.shown_name(n): n.layout.log for n in nodes}
    if lines < 0:
        raise UsageInvalid(reason=f"--lines is {lines}", way_out="Ask for 0 lines or more.")
    if follow and options.form is not Format.TABLE:
        raise UsageInvalid(
            reason=f"--follow does not go together with -o {options.form}",
            way_out="Leave out one of them: what is followed never ends, a document does.",
        )
    if follow:
        await follow_files(files, prefix=node is None, last=lines)
    rows = [{"node": name, "line": line} for name, path in files.items() for line in last_lines(path, lines)]
    if options.form is not Format.TABLE:
        show(rows, options.form, "")
        return Exit.FINE
    for row in rows:
        print(row["line"] if node else f"{row['node']:>6}  {row['line']}")
    return Exit.FINE


def reset(
    *,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask.", negative="")] = False,
    options: Options = Options(),
) -> int:
    """Delete the local platform's data, certificates and keys. The fleet must be down.

    Example:  penstock reset --yes
    """
    layout = options.layout
    fleet = watched_fleet(layout)
    running = [fleet.shown_name(node) for node in fleet.nodes if node.running()]
    for home in dedicated_homes(layout):
        if remembered_document(home) is not None:
            running += [node.full_name for node in watched_fleet(home).nodes if node.running()]
    if running or supervisor_of(layout):
        raise StillRunning(what="reset", running=", ".join(running) or "its supervisor")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageInvalid(
                reason="reset deletes data, and nobody is here to be asked", way_out="Say so with --yes."
            )
        tell(f"This deletes everything under {plain(str(layout.home))}. Type [bold]yes[/] to go on:")
        if input().strip() != "yes":
            tell("nothing was deleted")
            return Exit.FAILED
    with sole_supervisor(layout):  # nobody starts it meanwhile
        _delete(layout)
    with contextlib.suppress(OSError):
        layout.home.rmdir()  # adopted clusters may still be listed there
    tell("deleted")
    return Exit.FINE


def _delete(layout: Layout) -> None:
    """In this order, so that one that was interrupted can be done again: the fleet's file goes last."""
    # What the pipeline has read is of topics that go: it would refuse those that come under their names.
    pipeline = layout.home / "pipeline"
    for directory in (layout.home / "clusters", layout.home / DEDICATED, pipeline, layout.secrets):
        if directory.exists():
            shutil.rmtree(directory)
    for path in (layout.supervisor_record, layout.supervisor_log, layout.fleet_file, layout.supervisor_lock):
        path.unlink(missing_ok=True)
    for name in ("control.json", "control.log", "coordinator.log"):
        (layout.home / name).unlink(missing_ok=True)


def services_of(fleet: LocalFleet) -> list[dict[str, Any]]:
    """The control plane and the gateways that this fleet's supervisor keeps; none of Kafka alone."""
    layout, supervisor, told = fleet.layout, supervisor_of(fleet.layout), read_address(fleet.layout)
    if supervisor is None or told.get("pid") != supervisor.pid:
        return []  # it was not started, or it was a start before this one
    answers = "ready" if _answers(told["url"] + "/healthz") else "no answer"
    found = [{"service": "control plane", "state": answers, "address": told["url"]}]
    for cluster in fleet.clusters:
        gateways = running(gateway_file(layout, cluster.cluster.spec))
        found += [
            {"service": f"gateway {one.gateway}", "state": "ready", "address": one.bootstrap}
            for one in gateways
        ]
        if not gateways:
            found.append({"service": f"gateway of {cluster.name}", "state": "not running", "address": ""})
    return found


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:  # noqa: S310  (an address of our own)
            return bool(answer.status == HTTPStatus.OK)
    except (OSError, HTTPException):
        return False


def jobs_of(layout: Layout) -> list[dict[str, Any]]:
    """The pipeline's jobs that have run with this home's own settings, and how far they are behind."""
    return [
        {"job": each.job, "state": each.state, "behind": each.behind, "error": each.error}
        for each in every_status(layout.home / "pipeline" / "state")
    ]


def status_data(
    seen: FleetStatus, services: Sequence[Mapping[str, Any]], jobs: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    return {
        "state": seen.state,
        "home": seen.home,
        "supervisor": seen.supervisor,
        "clusters": seen.clusters,
        "nodes": [asdict(node) for node in seen.nodes],
        "services": [*services],
        "jobs": [*jobs],
    }


def status_view(
    seen: FleetStatus, services: Sequence[Mapping[str, Any]] = (), jobs: Sequence[Mapping[str, Any]] = ()
) -> RenderableType:
    from rich.console import Group

    rows = [asdict(node) | {"up": _duration(node.uptime_seconds)} for node in seen.nodes]
    for row in rows:
        row["memory_mb"] = round(row["memory_mb"]) if row["memory_mb"] else None
        if len(seen.clusters) > 1:
            row["node"] = f"{row['cluster']}/{row['node']}"
    heads = [
        f"[bold]{name}[/] {facts['id']}: {facts['shape']}, bootstrap {plain(facts['bootstrap'])}"
        for name, facts in seen.clusters.items()
    ]
    supervised = f"supervised by process {seen.supervisor}" if seen.supervisor else "not supervised"
    below = [table_of(services, _SERVICE_COLUMNS)] if services else []
    below += [table_of(jobs, _JOB_COLUMNS)] if jobs else []
    return Group(*heads, table_of(rows, _COLUMNS), *below, f"[dim]{seen.state}, {supervised}[/]")


async def _watch(fleet: LocalFleet, form: Format) -> int:
    from rich.live import Live

    while form is not Format.TABLE or not sys.stdout.isatty():
        seen, services = await fleet_status(fleet), await asyncio.to_thread(services_of, fleet)
        jobs = jobs_of(fleet.layout)
        show(status_data(seen, services, jobs), form, status_view(seen, services, jobs))
        sys.stdout.flush()
        await asyncio.sleep(WATCH_SECONDS)
    with Live(console=console(), auto_refresh=False, transient=False) as live:
        while True:
            seen, services = await fleet_status(fleet), await asyncio.to_thread(services_of, fleet)
            live.update(status_view(seen, services, jobs_of(fleet.layout)), refresh=True)
            await asyncio.sleep(WATCH_SECONDS)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
