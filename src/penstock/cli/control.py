"""`penstock control`: run a control plane, and what only its operators do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from penstock.atomic_files import write_atomically
from penstock.cli.output import log_json_lines, report, show, table_of
from penstock.cli.remote import connected
from penstock.cli.settings import Options, RemoteOptions
from penstock.fleet.layout import SECRET_FILE_MODE
from penstock.kafka.membership import SESSION_SECONDS
from penstock.model.errors import Exit
from penstock.model.errors.control import StateDiffers
from penstock.model.errors.fleet import ClusterUnknown
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
    until_stdin_ends: Annotated[bool, Parameter(help="Stop when standard input ends.", negative="")] = False,
    options: Options = Options(),
) -> int:
    """Run a control plane, for this home or from a settings file. Several may run; one is active.

    Example:  penstock control run --config control.yaml
    """
    from penstock.control.process import ControlOptions, run_configured_control, run_control
    from penstock.control.settings import read_control_settings

    if config is not None:
        flags: dict[str, object] = {"listen": listen, "session_seconds": session}
        flags |= {"relieve": None if relieve else False, "allow_plaintext": allow_plaintext or None}
        given = {key: value for key, value in flags.items() if value is not None}
        settings = read_control_settings(config, os.environ, given)
        log_json_lines()
        asyncio.run(run_configured_control(settings, report=report, until_stdin_ends=until_stdin_ends))
        return Exit.FINE
    log_json_lines()
    running = ControlOptions(
        options.layout,
        listen or LISTEN_DEFAULT,
        SESSION_SECONDS if session is None else session,
        cell_brokers,
        until_stdin_ends=until_stdin_ends,
        relieves=relieve,
        allow_plaintext=allow_plaintext,
    )
    asyncio.run(run_control(running, report=report))
    return Exit.FINE


@app.command
async def cluster_key(
    name: Annotated[str, Parameter(help="A cluster that the settings name.")],
    *,
    config: Annotated[Path, Parameter(help="The control plane's settings.", negative="")],
    to: Annotated[Path, Parameter(help="Where to write the key.", negative="")],
) -> int:
    """Write the key that gateways of one physical cluster need. It opens no other cluster.

    Example:  penstock control cluster-key home --config control.yaml --to gateway.key
    """
    from penstock.control.settings import cluster_key as key_of
    from penstock.control.settings import read_control_settings
    from penstock.kafka.admin import brokers
    from penstock.kafka.client import Client

    settings = read_control_settings(config, os.environ)
    clusters = {cluster.name: cluster for cluster in (settings.home, *settings.clusters)}
    if name not in clusters:
        raise ClusterUnknown(cluster=name, known=", ".join(clusters))
    async with Client(clusters[name].bootstrap, clusters[name].security) as client:
        kafka_id = (await brokers.describe(client)).cluster_id
    write_atomically(to, key_of(settings.platform_key, kafka_id).secret, mode=SECRET_FILE_MODE)
    report(f"{to}: key of {name}, Kafka cluster {kafka_id}")
    return Exit.FINE


@app.command
def status(*, options: RemoteOptions = RemoteOptions()) -> int:
    """Show which control plane responds, which is active, and how far it has read the registry.

    Example:  penstock control status -o json
    """
    state = connected(options).get("/status")
    columns = {
        "ROLE": "role", "ACTIVE": "active", "READ": "position", "END": "end", "CLUSTERS": "clusters",
        "RUNNING": "operations_running",
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
