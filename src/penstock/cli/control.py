"""`penstock control`: run a control plane, and what only its operators do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from penstock.cli.output import report, show, table_of
from penstock.cli.remote import connected
from penstock.cli.settings import LogLines, Metrics, Options, RemoteOptions, start_logs
from penstock.kafka.membership import SESSION_SECONDS
from penstock.log_lines import announce
from penstock.model.errors import Exit
from penstock.model.errors.control import StateDiffers
from penstock.model.errors.settings import SettingsUnreadable
from penstock.model.plural import counted

LISTEN_DEFAULT = "127.0.0.1:28080"

app = App(name="control", help="The control plane: run, check, export, import.")

_DIFFERENCES = {"KIND": "kind", "WHAT": "what", "NAME": "name", "DETAIL": "detail"}


@app.command
def run(
    *,
    config: Annotated[
        Path | None, Parameter(help="Settings file, for a home cluster that runs elsewhere.", negative="")
    ] = None,
    listen: Annotated[
        str | None,
        Parameter(help="host:port of the HTTP API; port 0 picks a free one.", show_default=LISTEN_DEFAULT),
    ] = None,
    session: Annotated[
        float | None,
        Parameter(
            help="Seconds without a sign of life until another takes over.",
            show_default=f"{SESSION_SECONDS:g}",
        ),
    ] = None,
    cell_brokers: Annotated[int, Parameter(help="Brokers of a cell; 0 puts all into one.")] = 0,
    relieve: Annotated[bool, Parameter(help="Move tenants out of full cells.")] = True,
    allow_plaintext: Annotated[
        bool, Parameter(help="Listen without TLS on any address.", negative="")
    ] = False,
    metrics: Metrics = None,
    log_format: LogLines = None,
    until_stdin_ends: Annotated[bool, Parameter(help="Stop when standard input ends.", negative="")] = False,
    options: Options = Options(),
) -> int:
    """Run a control plane, for this home or from a settings file. Several may run; one is active.

    Example:  penstock control run --config control.yaml
    """
    from penstock.control.process import ControlOptions, run_configured_control, run_control
    from penstock.control.settings import read_control_settings

    if config is not None:
        flags: dict[str, object] = {"listen": listen, "session_seconds": session, "metrics": metrics}
        flags |= {"relieve": None if relieve else False, "allow_plaintext": allow_plaintext or None}
        given = {key: value for key, value in flags.items() if value is not None}
        settings = read_control_settings(config, os.environ, given)
        start_logs(log_format)
        asyncio.run(run_configured_control(settings, report=announce, until_stdin_ends=until_stdin_ends))
        return Exit.FINE
    start_logs(log_format)
    running = ControlOptions(
        options.layout,
        listen or LISTEN_DEFAULT,
        SESSION_SECONDS if session is None else session,
        cell_brokers,
        until_stdin_ends=until_stdin_ends,
        relieves=relieve,
        allow_plaintext=allow_plaintext,
        metrics=metrics,
    )
    asyncio.run(run_control(running, report=announce))
    return Exit.FINE


@app.command
def status(*, options: RemoteOptions = RemoteOptions()) -> int:
    """Show which control plane responds, which is active, and how far it has read the registry.

    Example:  penstock control status -o json
    """
    state = connected(options).get("/status")
    columns = {
        "ROLE": "role", "ACTIVE": "active", "READ": "position", "END": "end", "CLUSTERS": "clusters",
        "RUNNING": "operations_running", "CONDITIONS": "conditions", "OFF": "capabilities_missing",
    }  # fmt: skip
    show(state, options.form, table_of([state], columns))
    return Exit.FINE


@app.command
def check(
    *,
    repair: Annotated[bool, Parameter(help="Restore the declared state in Kafka.", negative="")] = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Compare the declared state with Kafka's. Exit code 5 if they differ.

    Example:  penstock control check
    """
    control = connected(options)
    result = control.change("POST", "/repair") if repair else control.get("/check")
    rows = result["differences"]
    show(
        rows,
        options.form,
        table_of(rows, _DIFFERENCES, empty="no differences: Kafka is in the declared state"),
    )
    if rows:
        raise StateDiffers(places=counted(len(rows), "place"))
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
    report(f"{len(text.splitlines()) - 1} entities written")
    return Exit.FINE


@app.command(name="import")
def import_(
    file: Annotated[Path, Parameter(help="What `export` wrote.")], *, options: RemoteOptions = RemoteOptions()
) -> int:
    """Import an export into an empty registry, and create in Kafka what it declares.

    Example:  penstock control import registry.jsonl
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise SettingsUnreadable(path=file, reason=failure) from failure
    control = connected(options)
    made = control.change("POST", "/import", {"export": text})
    left = control.change("POST", "/repair")["differences"]
    report(f"imported {made['records']} entities")
    if left:
        raise StateDiffers(places=counted(len(left), "place"))
    return Exit.FINE
