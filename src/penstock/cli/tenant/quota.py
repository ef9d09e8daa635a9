"""`penstock quota` and `usage`: quotas, their use, and the coordinators that share them out."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.console import Group

from penstock.cli.output import Format, console, show, table_of
from penstock.cli.remote import connected
from penstock.cli.settings import LogLines, Metrics, Options, RemoteOptions, start_logs
from penstock.cli.tenant.cluster import Wait, Which, finished
from penstock.control.capacity_units import parse_rate
from penstock.control.physical.local import fleet_clusters
from penstock.kafka.client import Client
from penstock.kafka.membership import SESSION_SECONDS
from penstock.log_lines import announce
from penstock.model.errors import Exit
from penstock.model.errors.settings import UsageInvalid
from penstock.model.events import Dimension
from penstock.quota.process import run_coordinators
from penstock.quota.settings import CoordinatorSettings, read_coordinator_settings
from penstock.quota.usage_reports import INTERVAL_SECONDS

app = App(name="quota", help="Quotas: show, set, and run a coordinator.")
usage = App(name="usage", help="What logical clusters use.")

WATCH_SECONDS = 2.0
DEFAULT = "default"  # instead of a limit: the one of the cluster's size
DIMENSIONS = {
    "ingress": Dimension.INGRESS_BYTES,
    "egress": Dimension.EGRESS_BYTES,
    "requests": Dimension.REQUESTS,
    "request-time": Dimension.REQUEST_TIME_US,
    "gateway-time": Dimension.GATEWAY_TIME_US,
    "connections": Dimension.CONNECTIONS,
    "connection-attempts": Dimension.CONNECTION_ATTEMPTS,
    "partitions": Dimension.PARTITIONS,
    "partition-changes": Dimension.PARTITION_CHANGES,
}
By = Literal["ingress", "egress", "requests", "request-time", "connections"]
_FLAGS = {str(dimension): flag for flag, dimension in DIMENSIONS.items()}
_QUOTAS = {
    "DIMENSION": "dimension", "QUOTA": "quota", "SET": "overridden", "USED": "used", "DEMAND": "demand",
    "GRANTED": "granted", "THROTTLED": "throttled",
}  # fmt: skip
_SHARES = {
    "GATEWAY": "gateway", "DIMENSION": "dimension", "SHARE": "share", "LIMIT": "limit", "USED": "used",
    "THROTTLED": "throttled",
}  # fmt: skip
_USE = {
    "ID": "cluster", "NAME": "name", "INGRESS": "ingress", "EGRESS": "egress", "REQUESTS": "requests",
    "CONNECTIONS": "connections", "OF QUOTA": "quota_ratio", "MOST": "quota_dimension",
    "THROTTLED": "throttled",
}  # fmt: skip
Limit = str | None


@app.command(name="show")
def show_(cluster: Which, *, options: RemoteOptions = RemoteOptions()) -> int:
    """Show a logical cluster's quota, its use, and the shares of its gateways.

    Example:  penstock quota show shop
    """
    quota = connected(options).get(f"/clusters/{cluster}/quota")
    whole = [
        row | {"dimension": _FLAGS[row["dimension"]], "overridden": "yes" if row["overridden"] else ""}
        for row in _readable(quota["dimensions"])
    ]
    shares = [row | {"dimension": _FLAGS[row["dimension"]]} for row in _readable(quota["gateways"])]
    show(
        quota,
        options.form,
        Group(table_of(whole, _QUOTAS), table_of(shares, _SHARES, empty="no gateway has a share yet")),
    )
    return Exit.FINE


@app.command(name="set")
def set_(
    cluster: Which,
    *,
    ingress: Annotated[Limit, Parameter(help="Write rate, such as 2MB/s.")] = None,
    egress: Annotated[Limit, Parameter(help="Read rate, such as 6MB/s.")] = None,
    requests: Annotated[Limit, Parameter(help="Requests per second.")] = None,
    request_time: Annotated[Limit, Parameter(help="Request time, in microseconds per second.")] = None,
    gateway_time: Annotated[
        Limit, Parameter(help="Gateway processor time, in microseconds per second.")
    ] = None,
    connections: Annotated[Limit, Parameter(help="Concurrent connections at each gateway.")] = None,
    connection_attempts: Annotated[
        Limit, Parameter(help="Connection attempts per second at each gateway.")
    ] = None,
    partitions: Annotated[Limit, Parameter(help="Partitions, before replication.")] = None,
    partition_changes: Annotated[Limit, Parameter(help="Partitions created or deleted per second.")] = None,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Set quotas of a logical cluster. `default` restores the value of its size.

    Example:  penstock quota set shop --ingress 2MB/s --requests default
    """
    given = {
        "ingress": ingress, "egress": egress, "requests": requests, "request-time": request_time,
        "gateway-time": gateway_time,
        "connections": connections, "connection-attempts": connection_attempts, "partitions": partitions,
        "partition-changes": partition_changes,
    }  # fmt: skip
    limits = {
        str(DIMENSIONS[flag]): None
        if text == DEFAULT
        else parse_rate(text, where="penstock quota set", key=f"--{flag}")
        for flag, text in given.items()
        if text is not None
    }
    if not limits:
        raise UsageInvalid(reason="no quota is given", way_out="Give one, such as --ingress 2MB/s.")
    control = connected(options)
    before, version = control.read(f"/clusters/{cluster}/quota")
    path = f"/clusters/{before['cluster']}/quota"
    made = control.change("PATCH", path, {"limits": limits}, version=version)
    return finished(control, made["operation"], options, wait=wait)


@usage.command
def top(
    *,
    by: Annotated[By | None, Parameter(help="Dimension to sort by.", show_default="share of a quota")] = None,
    count: Annotated[int, Parameter(name=["--count", "-n"], help="Number of clusters.")] = 20,
    watch: Annotated[
        bool, Parameter(name=["--watch", "-w"], help="Refresh until Ctrl-C.", negative="")
    ] = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Show the logical clusters that use most. The values are a few seconds old.

    Example:  penstock usage top --by ingress --watch
    """
    control = connected(options)
    query = {"top": str(count), "by": "" if by is None else str(DIMENSIONS[by])}
    while True:
        rows = control.get("/usage", **query)["items"]
        if watch and options.form is Format.TABLE and sys.stdout.isatty():
            console().clear()
        show(rows, options.form, table_of([_use(row) for row in rows], _USE, empty="no use reported yet"))
        sys.stdout.flush()
        if not watch:
            return Exit.FINE
        time.sleep(WATCH_SECONDS)


def _use(row: dict[str, Any]) -> dict[str, Any]:
    used = {_FLAGS[name]: _short(value) for name, value in row["used"].items() if name in _FLAGS}
    waits = ", ".join(f"{_FLAGS.get(name, name)} {part:.0%}" for name, part in row["throttled"].items())
    highest = _FLAGS.get(row["quota_dimension"], row["quota_dimension"])
    return (
        row
        | used
        | {"quota_ratio": f"{row['quota_ratio']:.0%}", "quota_dimension": highest, "throttled": waits}
    )


def _readable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Numbers with a unit prefix; throttling as a share of the time."""
    return [
        {
            name: f"{value:.0%}" if name == "throttled" else _short(value)
            for name, value in row.items()
            if value is not None
        }
        for row in rows
    ]


def _short(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


@app.command
def coordinate(
    *,
    config: Annotated[
        Path | None, Parameter(help="Settings file, for clusters that run elsewhere.", negative="")
    ] = None,
    interval: Annotated[
        float | None, Parameter(help="Seconds between decisions.", show_default=f"{INTERVAL_SECONDS:g}")
    ] = None,
    session: Annotated[
        float | None,
        Parameter(
            help="Seconds without a sign of life until another takes over.",
            show_default=f"{SESSION_SECONDS:g}",
        ),
    ] = None,
    metrics: Metrics = None,
    log_format: LogLines = None,
    until_stdin_ends: Annotated[bool, Parameter(help="Stop when standard input ends.", negative="")] = False,
    options: Options = Options(),
) -> int:
    """Run a quota coordinator, for this home or from a settings file. Several divide the tenants among them.

    Example:  penstock quota coordinate --config coordinator.yaml
    """
    flags: dict[str, Any] = {"interval_seconds": interval, "session_seconds": session, "metrics": metrics}
    given = {key: value for key, value in flags.items() if value is not None}
    if config is not None:
        settings = read_coordinator_settings(config, os.environ, given)
        clients = {each.name: Client(each.bootstrap, each.security) for each in settings.clusters}
    else:
        settings = CoordinatorSettings((), **given)
        clients = {cluster.name: cluster.client() for cluster in fleet_clusters(options.layout)}
    start_logs(log_format)
    asyncio.run(
        run_coordinators(
            clients,
            interval_seconds=settings.interval_seconds,
            session_seconds=settings.session_seconds,
            metrics=settings.metrics,
            until_stdin_ends=until_stdin_ends,
            report=announce,
        )
    )
    return Exit.FINE
