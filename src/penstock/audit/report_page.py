"""The daily report as one HTML page, which needs nothing else."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STYLE: Final = (
    "body{font:14px system-ui;margin:2em;max-width:80em}table{border-collapse:collapse;margin:.5em 0 1.5em}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ccc;vertical-align:top}"
    "td.number{text-align:right}"
)
_TABLES: Final = (
    ("findings", "Findings", "no findings",
     ("severity", "rule", "topic", "subject", "first", "last", "state", "first_seen", "detail", "note")),
    ("coverage", "Coverage", "nothing was appended",
     ("tenant", "partitions", "share", "appended_bytes", "acked_bytes", "appended_offsets", "acked_offsets")),
    ("actions", "Actions of healing", "none", ("time", "action", "subject", "actor")),
    ("collectors", "Collectors", "no heartbeat: the audit did not run",
     ("collector", "heartbeats", "age_seconds", "gap_seconds_max", "unseen_partitions_max")),
    ("disabled", "Rules that are disabled", "none", ("rule", "reason")),
    ("intents", "Recorded intents", "none", ("actor", "action", "count")),
)  # fmt: skip


def page(report: Mapping[str, Any]) -> str:
    """The report of `audit.day` as HTML."""
    title = f"Durability audit of {report['cluster']}, {report['day']}"
    kinds = ", ".join(f"{count} of {kind}" for kind, count in report["subjects"].items()) or "none"
    over = "" if report["finished"] else f" The day is not over: this is until {report['until']}."
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><h1>{html.escape(title)}</h1>",
        f"<p>{report['events']} events about these subjects: {html.escape(kinds)}.{html.escape(over)}</p>",
        f"<p>Findings of earlier days that are still open: {report['open_before']}.</p>",
    ]
    for key, heading, empty, columns in _TABLES:
        parts.append(f"<h2>{heading}</h2>{_table(report[key], columns, empty)}")
    return "".join(parts)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], empty: str) -> str:
    if not rows:
        return f"<p>{html.escape(empty)}</p>"
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(_cell(name, row.get(name)) for name in columns)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(name: str, value: object) -> str:
    if name == "share" and isinstance(value, float):
        value = f"{value:.2%}"
    if name == "tenant" and not value:
        value = "(platform)"
    number = ' class="number"' if isinstance(value, int | float) else ""
    return f"<td{number}>{html.escape('–' if value is None else str(value))}</td>"
