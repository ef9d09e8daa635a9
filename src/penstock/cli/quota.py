"""`penstock quota`: tenants' limits, and the coordinators that split them over the gateways."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from typing import Annotated, Any, Literal

import structlog
from cyclopts import App, Parameter
from rich.console import Group

from penstock.cli.cluster import Wait, Which, finished
from penstock.cli.metrics import Metrics, metrics_at
from penstock.cli.output import Format, console, show, table_of, tell
from penstock.cli.remote import connected
from penstock.cli.settings import Options, RemoteOptions
from penstock.control.local import fleet_reaches
from penstock.control.units import parse_rate
from penstock.kafka.membership import SESSION_SECONDS
from penstock.model.errors import Exit
from penstock.model.errors.settings import UsageInvalid
from penstock.model.events import Dimension
from penstock.quota.coordinator import Coordinator
from penstock.quota.metrics import Figures
from penstock.quota.reports import INTERVAL_SECONDS

app = App(name="quota", help="Tenants' quotas: show, set, and the coordinators that split them.")
usage = App(name="usage", help="What logical clusters use now.")

WATCH_SECONDS = 2.0
DEFAULT = "default"  # instead of a limit: what the cluster's size gives
DIMENSIONS = {
    "ingress": Dimension.INGRESS_BYTES,
    "egress": Dimension.EGRESS_BYTES,
    "requests": Dimension.REQUESTS,
    "request-time": Dimension.REQUEST_TIME_US,
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
_POINTS = {
    "GATEWAY": "gateway", "DIMENSION": "dimension", "SHARE": "share", "LIMIT": "limit", "USED": "used",
    "THROTTLED": "throttled",
}  # fmt: skip
_USE = {
    "ID": "cluster", "NAME": "name", "INGRESS": "ingress", "EGRESS": "egress", "REQUESTS": "requests",
    "CONNECTIONS": "connections", "OF QUOTA": "of_quota", "MOST": "most", "THROTTLED": "throttled",
}  # fmt: skip
Limit = str | None


@app.command(name="show")
def show_(cluster: Which, *, options: RemoteOptions = RemoteOptions()) -> int:
    """What a logical cluster may use, what it does, and how its gateways share it.

    Example:  penstock quota show shop
    """
    found = connected(options).get(f"/clusters/{cluster}/quota")
    whole = [
        row | {"dimension": _FLAGS[row["dimension"]], "overridden": "yes" if row["overridden"] else ""}
        for row in _readable(found["dimensions"])
    ]
    points = [row | {"dimension": _FLAGS[row["dimension"]]} for row in _readable(found["gateways"])]
    show(found, options.form, Group(table_of(whole, _QUOTAS), table_of(points, _POINTS)))
    return Exit.FINE


@app.command(name="set")
def set_(
    cluster: Which,
    *,
    ingress: Annotated[Limit, Parameter(help="Such as 2MB/s.")] = None,
    egress: Annotated[Limit, Parameter(help="Such as 6MB/s.")] = None,
    requests: Annotated[Limit, Parameter(help="A second.")] = None,
    request_time: Annotated[Limit, Parameter(help="Microseconds of brokers' time a second.")] = None,
    connections: Annotated[Limit, Parameter(help="At the same time, at each gateway.")] = None,
    connection_attempts: Annotated[Limit, Parameter(help="A second, at each gateway.")] = None,
    partitions: Annotated[Limit, Parameter(help="In all, before replication.")] = None,
    partition_changes: Annotated[Limit, Parameter(help="Created or deleted, a second.")] = None,
    wait: Wait = True,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Set limits of a logical cluster; `default` instead of one gives back what its size gives.

    Example:  penstock quota set shop --ingress 2MB/s --requests default
    """
    given = {
        "ingress": ingress, "egress": egress, "requests": requests, "request-time": request_time,
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
        raise UsageInvalid(reason="no limit is named", way_out="Name one, such as --ingress 2MB/s.")
    control = connected(options)
    before, version = control.read(f"/clusters/{cluster}/quota")
    path = f"/clusters/{before['cluster']}/quota"
    made = control.change("PATCH", path, {"limits": limits}, version=version)
    return finished(control, made["operation"], options, wait=wait)


@usage.command
def top(
    *,
    by: Annotated[By | None, Parameter(help="What to go by.", show_default="part of a quota")] = None,
    count: Annotated[int, Parameter(name=["--count", "-n"], help="How many.")] = 20,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"], help="Keep showing.", negative="")] = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Who uses most now. What coordinators heard last: a few seconds old.

    Example:  penstock usage top --by ingress --watch
    """
    control = connected(options)
    asked = {"top": str(count), "by": "" if by is None else str(DIMENSIONS[by])}
    while True:
        rows = control.get("/usage", **asked)["items"]
        if watch and options.form is Format.TABLE and sys.stdout.isatty():
            console().clear()
        show(rows, options.form, table_of([_use(row) for row in rows], _USE))
        sys.stdout.flush()
        if not watch:
            return Exit.FINE
        time.sleep(WATCH_SECONDS)


def _use(row: dict[str, Any]) -> dict[str, Any]:
    used = {_FLAGS[name]: _short(value) for name, value in row["used"].items() if name in _FLAGS}
    waits = ", ".join(f"{_FLAGS.get(name, name)} {part:.0%}" for name, part in row["throttled"].items())
    most = _FLAGS.get(row["most"], row["most"])
    return row | used | {"of_quota": f"{row['of_quota']:.0%}", "most": most, "throttled": waits}


def _readable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Numbers as people write them; what waits, as a part of the time."""
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
    interval: Annotated[float, Parameter(help="Seconds between two decisions.")] = INTERVAL_SECONDS,
    session: Annotated[float, Parameter(help="Seconds after which another takes over.")] = SESSION_SECONDS,
    metrics: Metrics = None,
    until_stdin_ends: Annotated[
        bool, Parameter(help="End when whoever started it does.", negative="")
    ] = False,
    options: Options = Options(),
) -> int:
    """Run a coordinator for the clusters under this home. Several share the tenants among them.

    Example:  penstock quota coordinate --interval 5
    """
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    asyncio.run(_coordinate(options, interval, session, metrics, until_stdin_ends=until_stdin_ends))
    return Exit.FINE


async def _coordinate(
    options: Options, interval: float, session: float, metrics: str | None, *, until_stdin_ends: bool
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_ends:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    clients = {reach.name: reach.client() for reach in fleet_reaches(options.layout)}
    coordinators = {
        name: Coordinator(client, interval_seconds=interval, session_seconds=session)
        for name, client in clients.items()
    }
    try:
        with metrics_at(metrics, Figures(coordinators)):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one.run()) for one in coordinators.values()]
                tell(f"coordinator of {', '.join(coordinators)}, a decision every {interval:g} s")
                await stop.wait()
                for task in tasks:
                    task.cancel()
    finally:
        for client in clients.values():
            await client.close()
