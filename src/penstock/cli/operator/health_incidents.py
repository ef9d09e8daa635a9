"""`penstock health incidents`: sick brokers, and what was done about them."""

from __future__ import annotations

import io
import json
import tarfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Group

from penstock.cli.output import plain, report, show, table_of
from penstock.cli.remote import connected
from penstock.cli.settings import RemoteOptions
from penstock.cli.tenant.cluster import finished
from penstock.model.errors import Exit
from penstock.platform.control_client import ControlClient

incidents = App(name="incidents", help="Incidents: list, show, ack, resolve, bundle.")

_LIST = {
    "ID": "id", "BROKER": "broker", "HEALTH": "health", "STATE": "state", "OPENED": "opened",
    "RESOLVED": "resolved", "FAILED PROBES": "impact", "LAST": "last",
}  # fmt: skip
_ENTRIES = {"TIME": "time", "WHAT": "what", "TEXT": "text"}
AUDITED_MAX = 500  # records of the audit log in a bundle
Id = Annotated[str, Parameter(help="Its id.")]
Note = Annotated[str, Parameter(help="What you know or did.")]


@incidents.command(name="list")
def list_(
    *,
    every: Annotated[bool, Parameter(name="--all", help="Resolved ones, too.", negative="")] = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """List the incidents that are not resolved.

    Example:  penstock health incidents list --all
    """
    rows = [each for each in connected(options).every("/incidents") if every or each["state"] != "resolved"]
    show(rows, options.form, table_of([_row(row) for row in rows], _LIST, empty="no incidents"))
    return Exit.FINE


@incidents.command(name="show")
def show_(incident: Id, *, options: RemoteOptions = RemoteOptions()) -> int:
    """Show an incident: the finding, what was ruled out, and every action.

    Example:  penstock health incidents show inc-7hq2mz4k
    """
    known = connected(options).get(f"/incidents/{incident}")
    lines = [
        f"broker {known['broker']} of {known['physical_cluster']}: {known['health']}, {known['state']}",
        f"because {known['evidence']}",
        *(f"not {each}" for each in known["ruled_out"]),
    ]
    rows = [entry | {"time": _time(entry["time_ms"])} for entry in known["entries"]]
    show(known, options.form, Group(*map(plain, lines), table_of(rows, _ENTRIES)))
    return Exit.FINE


@incidents.command
def ack(incident: Id, *, note: Note = "", options: RemoteOptions = RemoteOptions()) -> int:
    """Let others know that you work on an incident.

    Example:  penstock health incidents ack inc-7hq2mz4k --note "disk ordered"
    """
    return _change(connected(options), incident, "acknowledged", note, options)


@incidents.command
def resolve(incident: Id, *, note: Note = "", options: RemoteOptions = RemoteOptions()) -> int:
    """Resolve an incident. If the broker is still sick, another one opens.

    Example:  penstock health incidents resolve inc-7hq2mz4k --note "disk replaced"
    """
    return _change(connected(options), incident, "resolved", note, options)


@incidents.command
def bundle(
    incident: Id,
    *,
    to: Annotated[Path | None, Parameter(help="The archive.", show_default="ID.tar.gz", negative="")] = None,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Archive an incident with its evidence, error budgets and actions, without secrets.

    Example:  penstock health incidents bundle inc-7hq2mz4k --to incident.tar.gz
    """
    control = connected(options)
    known = control.get(f"/incidents/{incident}")
    physical, broker = known["physical_cluster"], known["broker"]
    parts = {
        "incident": known,
        "health": control.get("/health"),
        "evidence": control.get(f"/physical-clusters/{physical}/brokers/{broker}/health"),
        "broker": control.get(f"/physical-clusters/{physical}/brokers/{broker}"),
        "load": control.get(f"/physical-clusters/{physical}/load"),
        "slo": control.get("/slo"),
        "audit": control.get("/audit", last=str(AUDITED_MAX)),
    }
    path = to or Path(f"{incident}.tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for name, content in parts.items():
            data = json.dumps(content, indent=1).encode()
            info = tarfile.TarInfo(f"{incident}/{name}.json")
            info.size, info.mtime = len(data), int(time.time())
            archive.addfile(info, io.BytesIO(data))
    report(plain(f"{path}: {', '.join(parts)}"))
    return Exit.FINE


def _change(control: ControlClient, incident: str, state: str, note: str, options: RemoteOptions) -> int:
    made = control.change("PUT", f"/incidents/{incident}", {"state": state, "note": note})
    return finished(control, made["operation"], options, wait=True)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    last = row["entries"][-1] if row["entries"] else {"what": "", "text": ""}
    return row | {
        "opened": _time(row["opened_ms"]),
        "resolved": _time(row["resolved_ms"]) if row["resolved_ms"] else "",
        "impact": f"{row['probes_failed']} of {row['probes_sent']}" if row["probes_sent"] else "",
        "last": f"{last['what']}: {last['text']}",
    }


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
