"""`penstock audit`: what operators changed, as the control plane recorded it, and the durability audit."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import App, Parameter, validators

from penstock.cli.flags import past_ms
from penstock.cli.operator import audit_healing, audit_report, durability, durability_scrub
from penstock.cli.output import Format, show, table_of
from penstock.cli.remote import connected
from penstock.cli.settings import RemoteOptions
from penstock.model.errors import Exit

app = App(name="audit", help="Audit events: what operators changed. Durability: what happened to logs.")
for command, name in (
    (durability.run, "run"),
    (durability.status, "status"),
    (durability.findings, "findings"),
    (durability.show_, "show"),
    (durability.acknowledge, "acknowledge"),
    (durability.explain, "explain"),
    (durability_scrub.scrub, "scrub"),
    (audit_report.report, "report"),
    (audit_healing.healing, "healing"),
    (durability.rules, "rules"),
):
    app.command(command, name=name)

POLL_SECONDS = 0.5
LINES_MAX = 1000
PAGE = "500"
_COLUMNS = {
    "TIME": "time", "ACTOR": "actor", "OPERATION": "operation", "SUBJECT": "subject", "CLUSTER": "cluster",
    "OUTCOME": "outcome",
}  # fmt: skip


@app.command
def tail(
    *,
    lines: Annotated[
        int,
        Parameter(
            name=["--lines", "-n"],
            help="Number of events from the end.",
            validator=validators.Number(gte=1, lte=LINES_MAX),
        ),
    ] = 20,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], help="Print new events as they happen.", negative="")
    ] = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Print the latest audit events.

    Example:  penstock audit tail --follow
    """
    control = connected(options)
    page = control.get("/audit", last=str(lines))
    _print(page["items"], options.form)
    while follow:
        time.sleep(POLL_SECONDS)
        page = control.get("/audit", offset=str(page["next"]), limit=PAGE)
        if page["items"]:
            _print(page["items"], options.form)
    return Exit.FINE


@app.command
def search(
    *,
    actor: Annotated[str, Parameter(help="Only events of this actor.")] = "",
    operation: Annotated[str, Parameter(help="Only operations that start so, such as cluster.")] = "",
    subject: Annotated[str, Parameter(help="Only events about this id.")] = "",
    cluster: Annotated[
        str, Parameter(name=["--cluster", "-c"], help="Only of this logical cluster id.")
    ] = "",
    since: Annotated[str | None, Parameter(help="From a time: 2026-01-31T12:00Z, or 2h ago.")] = None,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Search the audit events, oldest first.

    Example:  penstock audit search --operation cluster.delete --since 1d
    """
    control = connected(options)
    query = {"actor": actor, "operation": operation, "subject": subject, "cluster": cluster, "limit": PAGE}
    page = control.get("/audit", since_ms="" if since is None else str(past_ms(since, "--since")), **query)
    rows = [*map(_row, page["items"])]
    while page["next"] < page["end"]:
        page = control.get("/audit", offset=str(page["next"]), **query)
        rows += map(_row, page["items"])
    show(rows, options.form, table_of(rows, _COLUMNS, empty="no audit events match"))
    return Exit.FINE


def _row(event: dict[str, Any]) -> dict[str, Any]:
    time_ = datetime.fromtimestamp(event["time_ms"] / 1000, UTC).isoformat(timespec="seconds")
    return {"time": time_, **{name: value for name, value in event.items() if name != "time_ms"}}


def _print(events: list[dict[str, Any]], form: Format) -> None:
    rows = [*map(_row, events)]
    show(rows, form, table_of(rows, _COLUMNS, empty="no audit events"))
    sys.stdout.flush()
