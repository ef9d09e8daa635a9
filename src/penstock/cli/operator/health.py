"""`penstock health`: how brokers are, error budgets, modes and holds; and running a checker."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Group

from penstock.cli.operator.broker import Broker, Cluster, Reason
from penstock.cli.operator.health_drill import drill
from penstock.cli.operator.health_incidents import incidents
from penstock.cli.output import plain, show, table_of
from penstock.cli.remote import connected, physical_cluster
from penstock.cli.settings import LogLines, Metrics, Options, RemoteOptions, start_logs
from penstock.cli.tenant.cluster import finished
from penstock.health.checker import ProbedCluster
from penstock.health.mitigation import HealthMode
from penstock.health.process import run_checkers
from penstock.health.settings import VANTAGE_DEFAULT, CheckerSettings, read_checker_settings
from penstock.log_lines import announce
from penstock.model.errors import Exit
from penstock.model.errors.settings import UsageInvalid
from penstock.platform.checker_tenant import probed_clusters

app = App(
    name="health",
    help="Health of brokers: show, explain, slo, hold, release, set, incidents, drill, run.",
)
app.command(incidents)
app.command(drill)

_BROKERS = {
    "BROKER": "broker", "ZONE": "zone", "HEALTH": "health", "SINCE": "since", "STATE": "state",
    "DONE": "steps", "NOT DONE": "blocked", "WHY": "why",
}  # fmt: skip
_SAMPLES = {"PROBES": "kind", "SENT": "sent", "SUCCEEDED": "succeeded", "MEDIAN": "median"}
_BURN = {"WINDOWS": "windows", "BURN": "burn", "LIMIT": "limit", "ALERT": "alert"}
_WINDOWS = {"WINDOW": "window", "AVAILABILITY": "availability", "LATENCY P99": "latency"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@app.command(name="show")
def show_(*, options: RemoteOptions = RemoteOptions()) -> int:
    """Show the health of every broker, and what is done about sick ones.

    Exit code 5 if a broker is sick.

    Example:  penstock health show
    """
    clusters = connected(options).get("/health")
    parts = [part for each in clusters for part in _cluster(each)]
    show(clusters, options.form, Group(*parts))
    fine = ("healthy", "unknown", "suspect", "recovering")
    sick = [b for each in clusters for b in each["brokers"] if b["health"] not in fine]
    return Exit.UNHEALTHY if sick else Exit.FINE


@app.command
def explain(broker: Broker, *, physical: Cluster = None, options: RemoteOptions = RemoteOptions()) -> int:
    """Show why a broker is considered as it is: its probes, and what was ruled out.

    Example:  penstock health explain 2
    """
    control = connected(options)
    path = f"/physical-clusters/{physical_cluster(control, physical)}/brokers/{broker}/health"
    known = control.get(path)
    own = known["broker"]
    lines = [f"broker {broker} is {own['health']}" + (f": {own['reason']}" if own["reason"] else "")]
    lines += [f"not {each}" for each in known["ruled_out"]]
    if known["connection_us"]:
        stages = ", ".join(f"{stage} {us / 1000:.1f} ms" for stage, us in known["connection_us"].items())
        lines.append(f"last fresh connection: {stages}")
    inside = {"in queues": "wait_us", "in the broker": "local_us", "flush": "flush_us"}
    times = [f"{what} {known[key] / 1000:.1f} ms" for what, key in inside.items() if known[key] is not None]
    lines.append(f"requests: {', '.join(times) or 'times are unknown'}")
    lines.append(f"symptoms of the last minute: {' '.join(known['symptoms']) or 'none'}")
    rows = [
        sample | {"kind": kind, "median": _milliseconds(sample["median_us"])}
        for kind, sample in known["evidence"].items()
    ]
    table = table_of(rows, _SAMPLES, empty="no probe in the last tick")
    show(known, options.form, Group(*(plain(line) for line in lines), table))
    return Exit.FINE


@app.command
def slo(*, options: RemoteOptions = RemoteOptions()) -> int:
    """Show error budgets, how fast they are used up, and what failed. Exit code 5 while one burns.

    Example:  penstock health slo
    """
    clusters = connected(options).get("/slo")
    show(clusters, options.form, Group(*(part for each in clusters for part in _slo(each))))
    burning = any(burn["alert"] for each in clusters for burn in each["burn"])
    return Exit.UNHEALTHY if burning else Exit.FINE


@app.command
def hold(
    broker: Broker,
    *,
    duration: Annotated[str, Parameter(name="--for", help="How long, such as 4h; at most a day.")] = "1h",
    reason: Reason = "",
    physical: Cluster = None,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Make health leave a broker alone, while you work on it.

    Example:  penstock health hold 2 --for 4h --reason "replacing its disk"
    """
    control = connected(options)
    body = {"seconds": seconds_of(duration), "reason": reason}
    path = f"/physical-clusters/{physical_cluster(control, physical)}/brokers/{broker}/hold"
    return finished(control, control.change("PUT", path, body)["operation"], options, wait=True)


@app.command
def release(broker: Broker, *, physical: Cluster = None, options: RemoteOptions = RemoteOptions()) -> int:
    """End a hold.

    Example:  penstock health release 2
    """
    control = connected(options)
    path = f"/physical-clusters/{physical_cluster(control, physical)}/brokers/{broker}/hold"
    return finished(control, control.change("DELETE", path)["operation"], options, wait=True)


@app.command(name="set")
def set_(
    mode: Annotated[HealthMode | None, Parameter(help="off, advise or auto.")] = None,
    *,
    action: Annotated[
        tuple[str, ...], Parameter(help="Mode of one action: exclude=advise.", negative="")
    ] = (),
    target: Annotated[
        float | None, Parameter(help="Availability that is promised; 0: by the number of zones.")
    ] = None,
    physical: Cluster = None,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Set what a sick broker leads to: `advise` only reports what it would do, `auto` does it.

    Example:  penstock health set auto --action exclude=advise
    """
    if mode is None and not action and target is None:
        raise UsageInvalid(
            reason="nothing is given", way_out="Give a mode, such as: penstock health set auto"
        )
    control = connected(options)
    modes = dict(_action(each) for each in action)
    body = {"mode": mode, "actions": modes, "target": target}
    path = f"/physical-clusters/{physical_cluster(control, physical)}/health"
    made = control.change("PUT", path, {key: value for key, value in body.items() if value is not None})
    return finished(control, made["operation"], options, wait=True)


@app.command
def run(
    *,
    config: Annotated[
        Path | None, Parameter(help="Settings file, for clusters that run elsewhere.", negative="")
    ] = None,
    vantage: Annotated[
        str | None, Parameter(help="Where the checker runs, such as a zone.", show_default=VANTAGE_DEFAULT)
    ] = None,
    metrics: Metrics = None,
    log_format: LogLines = None,
    until_stdin_ends: Annotated[bool, Parameter(help="Stop when standard input ends.", negative="")] = False,
    options: Options = Options(),
) -> int:
    """Probe every broker through the gateways, for this home or from a settings file.

    Example:  penstock health run --config checker.yaml
    """
    flags: dict[str, Any] = {"vantage": vantage, "metrics": metrics}
    given = {key: value for key, value in flags.items() if value is not None}
    if config is not None:
        settings = read_checker_settings(config, os.environ, given)
    else:
        settings = CheckerSettings((), **given)

    async def clusters() -> Sequence[ProbedCluster]:
        return settings.clusters or await probed_clusters(options.layout)

    start_logs(log_format)
    asyncio.run(
        run_checkers(
            clusters,
            vantage=settings.vantage,
            metrics=settings.metrics,
            until_stdin_ends=until_stdin_ends,
            report=announce,
        )
    )
    return Exit.FINE


def seconds_of(duration: str) -> float:
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise UsageInvalid(reason=f"{duration!r} is no duration", way_out="Write it like 30m or 4h.")
    return float(match[1]) * _UNITS[match[2]]


def _action(text: str) -> tuple[str, str]:
    name, equals, mode = text.partition("=")
    if not equals or mode not in list(HealthMode):
        raise UsageInvalid(
            reason=f"--action is {text!r}",
            way_out=f"Write it like exclude={HealthMode.ADVISE}; modes: {', '.join(HealthMode)}.",
        )
    return name, mode


def _cluster(cluster: dict[str, Any]) -> list[Any]:
    checkers = len(cluster["checkers"])
    summary = (
        f"{cluster['physical_cluster']}: {cluster['mode']}, {cluster['budget_left']:.1%} of the error budget "
        f"left, {cluster['incidents']} open incidents, {checkers} checkers"
    )
    parts: list[Any] = [plain(summary)]
    if cluster["cluster_fault"]:
        parts.append(plain(f"the whole cluster is affected: {cluster['cluster_fault']}"))
    rows = [_broker(each) for each in cluster["brokers"]]
    columns = {head: key for head, key in _BROKERS.items() if key in ("broker", "health") or _any(rows, key)}
    return [*parts, table_of(rows, columns, empty="no brokers")]


def _any(rows: list[dict[str, Any]], key: str) -> bool:
    return any(row[key] for row in rows)


def _broker(row: dict[str, Any]) -> dict[str, Any]:
    since = datetime.fromtimestamp(row["since_ms"] / 1000, UTC) if row["since_ms"] else None
    held = f"held by an operator: {row['held']}" if row["held"] else ""
    flapping = "flapping" if row["flapping"] else ""
    return row | {
        "since": f"{since:%H:%M:%SZ}" if since else "",
        "state": ", ".join(each for each in row["states"] if each != "normal"),
        "steps": ", ".join(row["steps"]),
        "why": "; ".join(each for each in (row["reason"], flapping, held) if each),
    }


def _slo(cluster: dict[str, Any]) -> list[Any]:
    windows = [
        {
            "window": name,
            "availability": "unknown" if each["availability"] is None else f"{each['availability']:.4%}",
            "latency": _milliseconds(each["latency_p99_us"]),
        }
        for name, each in cluster["windows"].items()
    ]
    burns = [
        {
            "windows": f"{each['short_minutes']} and {each['long_minutes']} min",
            "burn": f"{each['short']:.2f} and {each['long']:.2f}",
            "limit": each["limit"],
            "alert": each["severity"] if each["alert"] else "",
        }
        for each in cluster["burn"]
    ]
    failures = [f"{name}: {count}" for name, count in sorted(cluster["failures"].get("error", {}).items())]
    left = f"{cluster['budget_left']:.1%} of the month's error budget left"
    lines = [f"{cluster['physical_cluster']}: {cluster['target']:.2%} promised, {left}"]
    lines += [f"failed probes: {', '.join(failures)}"] if failures else []
    return [*map(plain, lines), table_of(windows, _WINDOWS, empty="no probes yet"), table_of(burns, _BURN)]


def _milliseconds(us: float | None) -> str:
    return "-" if us is None else f"{us / 1000:.1f} ms"
