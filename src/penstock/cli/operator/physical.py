"""`penstock physical`: the Kafka clusters that carry tenants, as the control plane knows them."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Group

from penstock.cli.output import plain, show, table_of
from penstock.cli.remote import connected
from penstock.cli.settings import RemoteOptions
from penstock.model.errors import Exit
from penstock.model.plural import counted

app = App(name="physical", help="Physical clusters: brokers, zones, and which features are off.")

_CLUSTERS = {
    "ID": "id", "NAME": "name", "PROVIDER": "provider", "STATE": "state", "TENANCY": "tenancy",
    "ZONES": "zones", "BROKERS": "brokers", "CELLS": "cells", "OFF": "off", "CONDITIONS": "conditions",
}  # fmt: skip
_MISSING = {"MISSING": "capability", "FEATURES OFF": "needed_for", "REASON": "reason", "REMEDY": "remedy"}
_CONDITIONS = {"CONDITION": "kind", "DETAIL": "detail", "REMEDY": "remedy"}


@app.command(name="list")
def list_(*, options: RemoteOptions = RemoteOptions()) -> int:
    """List the physical clusters, and how many features are off on each.

    Example:  penstock physical list
    """
    rows = list(connected(options).every("/physical-clusters"))
    show(rows, options.form, table_of([_row(row) for row in rows], _CLUSTERS, empty="no physical clusters"))
    return Exit.FINE


@app.command(name="show")
def show_(
    name: Annotated[str, Parameter(help="Id or name.")], *, options: RemoteOptions = RemoteOptions()
) -> int:
    """Show a physical cluster: missing capabilities with the features that are off, and conditions.

    Example:  penstock physical show east
    """
    row = connected(options).get(f"/physical-clusters/{name}")
    off = f"{counted(len(row['missing']), 'feature')} off"
    head = f"[bold]{plain(row['name'])}[/] {row['id']}, Kafka cluster {plain(row['kafka_id'])}: {off}"
    parts: list[Any] = [head, table_of([_row(row)], _CLUSTERS)]
    parts += [table_of(row["missing"], _MISSING)] if row["missing"] else []
    parts += [table_of(row["conditions"], _CONDITIONS)] if row["conditions"] else []
    show(row, options.form, Group(*parts))
    return Exit.FINE


def _row(row: dict[str, Any]) -> dict[str, Any]:
    kinds = ",".join(condition["kind"] for condition in row["conditions"]) or None
    return row | {"zones": ",".join(row["zones"]), "off": len(row["missing"]), "conditions": kinds}
