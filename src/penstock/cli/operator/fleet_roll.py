"""`penstock fleet roll`: restart nodes with another setting or version, without interrupting clients."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Group, RenderableType

from penstock.cli.output import plain, report, show, table_of
from penstock.cli.remote import connected, physical_cluster, wait_for
from penstock.cli.settings import RemoteOptions
from penstock.fleet.local_fleet import load_fleet_document
from penstock.fleet.node_generations import adopt_document
from penstock.model.errors import Exit
from penstock.model.errors.fleet import RollMissing
from penstock.model.errors.settings import UsageInvalid
from penstock.model.settings_reader import read_mapping
from penstock.platform.control_client import ControlClient

POLL_SECONDS = 0.3
WAIT_SECONDS = 12 * 3600.0

app = App(name="roll", help="Restart nodes with another setting or version, without interrupting clients.")

Physical = Annotated[
    str | None,
    Parameter(
        name="--cluster", help="Physical cluster, id or name.", show_default="the only one", negative=""
    ),
]
Wait = Annotated[bool, Parameter(help="Wait until it has ended or paused.")]
Deadline = Annotated[
    float | None, Parameter(help="Seconds after which it pauses.", show_default="none", negative="")
]
_NODES = {
    "NODE": "id", "STOP": "stop_seconds", "START": "start_seconds", "RECOVERY": "recovery_seconds",
    "CATCH-UP": "catch_up_seconds", "LEADERS": "leader_return_seconds",
}  # fmt: skip


@app.default
def roll(
    *,
    cluster: Physical = None,
    fleet: Annotated[
        Path | None, Parameter(help="Changed fleet file, for a local fleet.", show_default="the saved one")
    ] = None,
    kafka: Annotated[str | None, Parameter(help="Kafka version to run, for a local fleet.")] = None,
    zone: Annotated[list[str] | None, Parameter(help="Only the brokers of these zones.", negative="")] = None,
    node: Annotated[
        list[str] | None, Parameter(help="Only these nodes, whether behind or not: b1, c1001.", negative="")
    ] = None,
    dry_run: Annotated[bool, Parameter(help="Only show what would happen.", negative="")] = False,
    deadline: Deadline = None,
    allow_unavailable: Annotated[
        list[str] | None,
        Parameter(help="Topic without a spare replica that may be unavailable.", negative=""),
    ] = None,
    allow_downtime: Annotated[
        bool, Parameter(help="Restart the only controller or broker, too.", negative="")
    ] = False,
    roll_back: Annotated[
        bool, Parameter(help="Restart what the last roll restarted with what it ran before.", negative="")
    ] = False,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Restart every node that does not run what the fleet file describes, zone by zone.

    A broker stops only while every partition keeps its minimum of in-sync replicas. The next one stops
    when it is back, in sync, and leads again.

    Example:  penstock fleet roll --fleet fleet.yaml --dry-run
    """
    control = connected(options)
    physical = _physical(control, cluster)
    if roll_back:
        made = _change(control, physical, "back", deadline)
        return _followed(control, made, options, wait=wait)
    if fleet is not None or kafka is not None:
        if dry_run:
            raise UsageInvalid(
                reason="--dry-run does not save another fleet file",
                way_out="Leave it out, or show what the saved fleet file would restart.",
            )
        _save(options, fleet, kafka, str(_known(control, physical)["name"]))
    body: dict[str, Any] = {
        "physical_cluster": physical,
        "nodes": [_node_id(each) for each in node or ()],
        "zones": zone or [],
        "allow_downtime": allow_downtime,
        "allow_unavailable": allow_unavailable or [],
        "deadline_seconds": deadline,
    }
    if dry_run:
        return _planned(control.change("POST", "/rolls/plan", body), options)
    return _followed(control, control.change("POST", "/rolls", body), options, wait=wait)


@app.command(name="show")
def show_(*, cluster: Physical = None, options: RemoteOptions = RemoteOptions()) -> int:
    """Show the last roll, with the times of each node.

    Example:  penstock fleet roll show
    """
    control = connected(options)
    last = _last(control, _physical(control, cluster))
    return _shown(last, options)


@app.command
def pause(*, cluster: Physical = None, options: RemoteOptions = RemoteOptions()) -> int:
    """Restart no further node. Those that are down come back.

    Example:  penstock fleet roll pause
    """
    control = connected(options)
    made = _change(control, _physical(control, cluster), "pause")
    return _shown(made["roll"], options)


@app.command
def resume(
    *,
    cluster: Physical = None,
    deadline: Deadline = None,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Continue a paused roll.

    Example:  penstock fleet roll resume
    """
    control = connected(options)
    made = _change(control, _physical(control, cluster), "resume", deadline)
    return _followed(control, made, options, wait=wait)


@app.command
def abort(*, cluster: Physical = None, wait: Wait = True, options: RemoteOptions = RemoteOptions()) -> int:
    """End a roll early. Nodes keep what they run with.

    Example:  penstock fleet roll abort
    """
    control = connected(options)
    made = _change(control, _physical(control, cluster), "abort")
    return _followed(control, made, options, wait=wait)


def versions(*, cluster: Physical = None, options: RemoteOptions = RemoteOptions()) -> int:
    """Show which versions nodes run, and which feature levels are in force and possible.

    Example:  penstock fleet versions
    """
    control = connected(options)
    known = control.get(f"/physical-clusters/{_physical(control, cluster)}/versions")
    rows = [{"kafka": version, "nodes": count} for version, count in known["nodes"].items()]
    view = Group(table_of(rows, {"KAFKA": "kafka", "NODES": "nodes"}), _features(known["features"]))
    show(known, options.form, view)
    return Exit.FINE


def finalize(*, cluster: Physical = None, options: RemoteOptions = RemoteOptions()) -> int:
    """Raise features to what every node supports. Older versions cannot run on the cluster any more.

    Example:  penstock fleet upgrade finalize
    """
    control = connected(options)
    made = control.change("POST", f"/physical-clusters/{_physical(control, cluster)}/finalize")
    wait_for(control, made["operation"])
    show(made["features"], options.form, _features(made["features"]))
    return Exit.FINE


def _features(features: list[dict[str, Any]]) -> RenderableType:
    columns = {"FEATURE": "feature", "LEVEL": "level", "POSSIBLE": "level_max", "ENABLES": "enables"}
    rows = [each | {"limited": ", ".join(map(str, each["limited_by"]))} for each in features]
    return table_of(rows, columns | {"LIMITED BY": "limited"}, empty="no features")


def _physical(control: ControlClient, given: str | None) -> str:
    for each in control.every("/physical-clusters") if given else ():
        if given in (each["id"], each["name"]):
            return str(each["id"])
    return physical_cluster(control, given)


def _known(control: ControlClient, physical: str) -> dict[str, Any]:
    return next(each for each in control.every("/physical-clusters") if each["id"] == physical)


def _last(control: ControlClient, physical: str) -> dict[str, Any]:
    rolls = [each for each in control.every("/rolls") if each["cluster"] == physical]
    if not rolls:
        raise RollMissing(cluster=physical)
    return max(rolls, key=lambda each: each["created_ms"])


def _change(
    control: ControlClient, physical: str, change: str, deadline: float | None = None
) -> dict[str, Any]:
    last = _last(control, physical)
    body = {"deadline_seconds": deadline} if deadline else None
    made: dict[str, Any] = control.change("POST", f"/rolls/{last['id']}/{change}", body)
    return made


def _save(options: RemoteOptions, path: Path | None, kafka: str | None, cluster: str) -> None:
    """The fleet file that nodes start with from now on."""
    layout = options.layout
    document = read_mapping(path) if path is not None else load_fleet_document(layout) or {"clusters": [{}]}
    if kafka is not None:
        clusters = [dict(each) for each in document["clusters"]]
        for index, each in enumerate(clusters):
            if each.get("name", "home" if index == 0 else f"cluster-{index + 1}") == cluster:
                each["kafka"] = kafka
        document = document | {"clusters": clusters}
    adopt_document(layout, document, where=str(path or layout.fleet_file))


def _node_id(name: str) -> int:
    digits = name[1:] if name[:1] in ("b", "c") else name
    if not digits.isdecimal():
        raise UsageInvalid(reason=f"{name!r} is no node", way_out="Name nodes like b1, c1001 or 1.")
    return int(digits)


def _planned(plan: dict[str, Any], options: RemoteOptions) -> int:
    rows = [{"batch": n + 1, "nodes": ", ".join(map(str, b))} for n, b in enumerate(plan["batches"])]
    lines = [f"about {plan['estimate_seconds']:.0f} s"]
    lines += [f"unavailable meanwhile: {each}" for each in plan["at_risk"]]
    lines += [f"in the way: {each}" for each in plan["blockers"]]
    view = Group(table_of(rows, {"BATCH": "batch", "NODES": "nodes"}), *map(plain, lines))
    show(plan, options.form, view)
    return Exit.UNHEALTHY if plan["blockers"] else Exit.FINE


def _followed(control: ControlClient, made: dict[str, Any], options: RemoteOptions, *, wait: bool) -> int:
    """Shows the roll, once it has ended or paused."""
    roll, detail = made["roll"], ""
    deadline = time.monotonic() + WAIT_SECONDS
    while wait and roll["state"] in ("running", "aborting") and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        roll = control.get(f"/rolls/{roll['id']}")
        done = f"{roll['nodes_done']} of {len(roll['scope'])} nodes"
        if done != detail:
            report(plain(f"{roll['id']}: {done}"))
            detail = done
    return _shown(roll, options)


def _shown(roll: dict[str, Any], options: RemoteOptions) -> int:
    head = f"{roll['id']} of {roll['cluster']}: {roll['state']}, "
    head += f"{roll['nodes_done']} of {len(roll['scope'])} nodes"
    why = [roll["reason"], *roll["evidence"]] if roll["reason"] else []
    rows = table_of(roll["nodes"], _NODES, empty="no node was restarted yet")
    show(roll, options.form, Group(plain(head), *map(plain, why), rows))
    return Exit.UNHEALTHY if roll["state"] == "paused" and roll["reason"] else Exit.FINE
