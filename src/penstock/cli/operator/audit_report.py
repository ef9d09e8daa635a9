"""`penstock audit report`: one day of the durability audit."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Group

from penstock.atomic_files import write_atomically
from penstock.audit.day import day_of
from penstock.audit.day_reader import read_report
from penstock.audit.report_page import page
from penstock.cli.operator.durability import Cluster, Config, one_cluster
from penstock.cli.output import plain, progress, show, table_of
from penstock.cli.settings import Options
from penstock.model.errors import Exit
from penstock.model.errors.settings import SettingInvalid

_FINDINGS = {"ID": "id", "SEVERITY": "severity", "RULE": "rule", "SUBJECT": "subject", "STATE": "state",
             "DETAIL": "detail"}  # fmt: skip
_COVERAGE = {"TENANT": "tenant", "PARTITIONS": "partitions", "BYTES": "appended_bytes", "SHARE": "share"}
_COLLECTORS = {"COLLECTOR": "collector", "HEARTBEATS": "heartbeats", "AGE S": "age_seconds",
               "LONGEST GAP S": "gap_seconds_max", "UNSEEN": "unseen_partitions_max"}  # fmt: skip
_ACTIONS = {"TIME": "time", "ACTION": "action", "SUBJECT": "subject", "ACTOR": "actor"}
_DISABLED = {"RULE": "rule", "REASON": "reason"}


def report(
    *,
    day: Annotated[str | None, Parameter(help="Which day, in UTC.", show_default="yesterday")] = None,
    so_far: Annotated[
        bool, Parameter(help="Also a day that is not over: the part of it so far.", negative="")
    ] = False,
    html: Annotated[
        Path | None, Parameter(help="Write the report to this file, as an HTML page.", negative="")
    ] = None,
    config: Config = None,
    cluster: Cluster = None,
    options: Options = Options(),
) -> int:
    """Report on one day of the durability audit: coverage, findings, actions, collectors, disabled rules.

    Example:  penstock audit report --day 2026-11-17 --html report.html
    """
    now = time.time()
    chosen = day_of(_date(day, now), int(now * 1000), so_far=so_far)

    async def work() -> dict[str, Any]:
        async with one_cluster(config, cluster, options) as (name, client):
            return await read_report(client, name, chosen)

    with progress(f"reading the events of {chosen.name}"):
        members = asyncio.run(work())
    if html is not None:
        write_atomically(html, page(members))
    show(members, options.form, _view(members))
    return Exit.FINE


def _date(text: str | None, now: float) -> date:
    if text is None:
        return date.fromordinal(datetime.fromtimestamp(now, UTC).toordinal() - 1)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise SettingInvalid(
            where="flags", key="--day", value=text, expected="expected a date: 2026-01-31"
        ) from None


def _view(members: dict[str, Any]) -> Group:
    kinds = ", ".join(f"{count} {kind}" for kind, count in members["subjects"].items()) or "none"
    coverage = [
        row | {"tenant": row["tenant"] or "(platform)", "share": _percent(row["share"])}
        for row in members["coverage"]
    ]
    over = "" if members["finished"] else f", until {members['until']}"
    return Group(
        plain(f"{members['cluster']}, {members['day']}{over}: {members['events']} events about {kinds}"),
        table_of(members["findings"], _FINDINGS, empty="no findings"),
        plain(f"open findings of earlier days: {members['open_before']}"),
        table_of(coverage, _COVERAGE, empty="nothing was appended"),
        table_of(members["actions"], _ACTIONS, empty="no actions of healing"),
        table_of(members["collectors"], _COLLECTORS, empty="no heartbeat: the audit did not run"),
        table_of(members["disabled"], _DISABLED, empty="no rule was disabled"),
    )


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.2%}"
