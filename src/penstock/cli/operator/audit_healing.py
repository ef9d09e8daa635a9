"""`penstock audit healing`: what is done about a leader whose log has lost its beginning."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from penstock.audit.healing import HealingMode
from penstock.cli.output import show, table_of
from penstock.cli.remote import connected, physical_cluster
from penstock.cli.settings import RemoteOptions
from penstock.cli.tenant.cluster import finished
from penstock.model.errors import Exit

Cluster = Annotated[
    str | None, Parameter(help="Physical cluster id.", show_default="the only one", negative="")
]


def healing(
    mode: Annotated[HealingMode | None, Parameter(help="off, ask or act.")] = None,
    *,
    physical: Cluster = None,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Show what healing proposes, and the commands to run; or set its mode: `act` demotes the broker.

    Example:  penstock audit healing act
    """
    control = connected(options)
    path = f"/physical-clusters/{physical_cluster(control, physical)}/healing"
    if mode is not None:
        made = control.change("PUT", path, {"mode": str(mode)})
        return finished(control, made["operation"], options, wait=True)
    state = control.get(path)
    proposal = state["proposal"] or {}
    rows = [
        {"key": "mode", "value": state["mode"]},
        {"key": "demoted", "value": ", ".join(map(str, state["demoted"])) or "no broker"},
        *({"key": "run", "value": each} for each in proposal.get("commands", ())),
        *({"key": f"not {finding[:8]}", "value": reason} for finding, reason in state["withheld"].items()),
        *([{"key": "failure", "value": state["failure"]}] if state["failure"] else []),
    ]
    show(state, options.form, table_of(rows, {"": "key", "VALUE": "value"}))
    return Exit.FINE
