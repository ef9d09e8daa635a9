"""`penstock control`: run a control plane, and what only its operators do."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

import structlog
from cyclopts import App, Parameter

from penstock.cli.output import show, table_of, tell
from penstock.cli.remote import connected
from penstock.cli.settings import Options, RemoteOptions
from penstock.kafka.membership import SESSION_SECONDS
from penstock.model.entities import OperatorRole
from penstock.model.errors import Exit
from penstock.model.errors.control import Differs
from penstock.model.errors.settings import SettingsUnreadable

app = App(name="control", help="The control plane: run it, check it, operators' tokens, export.")

_DIFFERENCES = {"KIND": "kind", "WHAT": "what", "NAME": "name", "DETAIL": "detail"}


@app.command
def run(
    *,
    listen: Annotated[
        str, Parameter(help="host:port of the HTTP API; port 0 for a free one.")
    ] = "127.0.0.1:28080",
    session: Annotated[float, Parameter(help="Seconds after which another takes over.")] = SESSION_SECONDS,
    cell_brokers: Annotated[int, Parameter(help="Brokers in a cell; 0: all in one.")] = 0,
    relieve: Annotated[bool, Parameter(help="Move tenants out of cells that are full.")] = True,
    until_stdin_ends: Annotated[
        bool, Parameter(help="End when whoever started it does.", negative="")
    ] = False,
    options: Options = Options(),
) -> int:
    """Run a control plane for the fleet under this home. Several may run; one is active.

    Example:  penstock control run --listen 127.0.0.1:28080
    """
    from penstock.control.running import Running, run_control

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    running = Running(
        options.layout, listen, session, cell_brokers, until_stdin_ends=until_stdin_ends, relieves=relieve
    )
    asyncio.run(run_control(running, told=tell))
    return Exit.FINE


@app.command
def status(*, options: RemoteOptions = RemoteOptions()) -> int:
    """Which control plane answers, which is active, and how far the registry is read.

    Example:  penstock control status -o json
    """
    found = connected(options).get("/status")
    columns = {
        "ROLE": "role", "ACTIVE": "active", "READ": "position", "END": "end", "CLUSTERS": "clusters",
        "RUNNING": "operations_running",
    }  # fmt: skip
    show(found, options.form, table_of([found], columns))
    return Exit.FINE


@app.command
def check(
    *,
    repair: Annotated[bool, Parameter(help="Make Kafka as it is declared.", negative="")] = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Compare what is declared with what Kafka has. Exit code 5 if they differ.

    Example:  penstock control check
    """
    control = connected(options)
    found = control.change("POST", "/repair") if repair else control.get("/check")
    rows = found["differences"]
    show(rows, options.form, table_of(rows, _DIFFERENCES))
    if rows:
        raise Differs(count=len(rows))
    return Exit.FINE


@app.command
def token(
    name: Annotated[str, Parameter(help="Whose it is.")],
    *,
    role: Annotated[OperatorRole, Parameter(help="What it may do.")] = OperatorRole.VIEWER,
    cluster: Annotated[
        list[str] | None, Parameter(help="Confine a cluster-admin to it.", negative="")
    ] = None,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Make a token for the HTTP API. It is shown here and never again.

    Example:  penstock control token ci --role cluster-admin --cluster shop
    """
    body = {"name": name, "role": str(role), "clusters": cluster or []}
    made = connected(options).change("POST", "/tokens", body)
    data = {"name": name, "role": str(role), "token": made["secret"]}
    rows = [{"what": what, "value": value} for what, value in data.items()]
    show(data, options.form, table_of(rows, {"WHAT": "what", "VALUE": "value"}))
    return Exit.FINE


@app.command
def export(
    file: Annotated[Path, Parameter(help="Where to write it.")], *, options: RemoteOptions = RemoteOptions()
) -> int:
    """Write the whole registry to a file. No secret is in it.

    Example:  penstock control export registry.jsonl
    """
    text = connected(options).get("/export")["export"]
    file.write_text(text, encoding="utf-8")
    tell(f"{len(text.splitlines()) - 1} entities written")
    return Exit.FINE


@app.command(name="import")
def import_(
    file: Annotated[Path, Parameter(help="What `export` wrote.")], *, options: RemoteOptions = RemoteOptions()
) -> int:
    """Bring an export into an empty registry, and make in Kafka what it declares.

    Example:  penstock control import registry.jsonl
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise SettingsUnreadable(path=file, reason=failure) from failure
    control = connected(options)
    made = control.change("POST", "/import", {"export": text})
    left = control.change("POST", "/repair")["differences"]
    tell(f"{made['records']} entities imported")
    if left:
        raise Differs(count=len(left))
    return Exit.FINE
