"""What commands print: data as a table, JSON or YAML, progress, and errors with their hint."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from contextlib import contextmanager
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import structlog
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.log_lines import LogFormat, active_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from penstock.fleet.layout import Layout
    from penstock.model.errors import PenstockError

WIDTH_ELSEWHERE = 10_000  # columns where there is no terminal, so that nothing is cut off

_STATE_STYLES = {
    "ready": "green",
    "fine": "green",
    "yes": "green",
    "starting": "yellow",
    "restarting": "yellow",
    "stopping": "yellow",
    "warning": "yellow",
    "unresponsive": "red",
    "stopped": "red",
    "failed": "red",
    "no": "red",
}


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    JSONL = "jsonl"  # one JSON document on each line


def console(*, stderr: bool = False) -> Console:
    """Colour and width follow the terminal; elsewhere lines are never wrapped, cut or coloured."""
    stream = sys.stderr if stderr else sys.stdout
    return _console_on(getattr(stream, "rich_proxied_file", stream))


@lru_cache(maxsize=2)
def _console_on(stream: TextIO) -> Console:
    # One for each stream: lines printed beside a spinner must go through the spinner's console.
    width = None if stream.isatty() else WIDTH_ELSEWHERE
    return Console(file=stream, highlight=False, soft_wrap=not stream.isatty(), width=width)


def show(data: Any, form: Format, view: RenderableType) -> None:
    """Print the data itself for machines, the view of it for people."""
    if form is Format.JSON:
        print(json.dumps(data, indent=2, default=str))
    elif form is Format.JSONL:
        for item in data if isinstance(data, list | tuple) else [data]:
            print(json.dumps(item, default=str))
    elif form is Format.YAML:
        import yaml

        print(yaml.safe_dump(json.loads(json.dumps(data, default=str)), sort_keys=False), end="")
    else:
        console().print(view)


def table_of(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, empty: str = "none"
) -> RenderableType:
    """A plain table: heading → key; without rows, the sentence `empty`.

    States are coloured, missing values are a dash, numbers are right-aligned. Only the last column
    wraps, since it holds the sentences.
    """
    if not rows:
        return plain(empty)
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    last = list(columns)[-1]
    for heading, key in columns.items():
        values = [row.get(key) for row in rows]
        numeric = any(map(_is_number, values)) and all(v is None or _is_number(v) for v in values)
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=heading != last)
    for row in rows:
        table.add_row(*(_cell(row.get(key)) for key in columns.values()))
    return table


def report(line: str) -> None:
    """Print a line for people on standard error, so that pipes carry only data.

    It may contain markup, so pass foreign text through `plain`. A closed terminal is ignored: it is no
    reason to end a service.
    """
    with contextlib.suppress(OSError):
        console(stderr=True).print(line)


@contextmanager
def progress(doing: str) -> Iterator[None]:
    """Wraps what takes long: a spinner on a terminal, one line elsewhere."""
    out = console(stderr=True)
    if not out.is_interactive:
        report(doing)
        yield
        return
    with out.status(doing):
        yield


def show_error(error: PenstockError, form: Format = Format.TABLE) -> None:
    if form is Format.TABLE and active_format() is LogFormat.JSON:
        structlog.get_logger("penstock").error(str(error), code=error.code, hint=error.advice)
        return
    if form is Format.TABLE:
        out = console(stderr=True)
        out.print(f"[bold red]error:[/] {plain(error.message)} [dim]({error.code})[/]")
        for line in error.advice.splitlines():
            out.print(f"  {plain(line.strip())}")
        return
    document = {
        "code": error.code,
        "message": error.message,
        "hint": error.advice,
        "fault": error.fault,
        "retriable": error.retriable,
    }
    print(json.dumps({"error": document}), file=sys.stderr)


def _cell(value: Any) -> Text:
    if value is None or value == "":
        return Text("-", style="dim")
    if isinstance(value, bool):
        value = "yes" if value else "no"
    if isinstance(value, float):
        return Text(f"{value:.1f}")
    return Text(str(value), style=_STATE_STYLES.get(str(value), ""))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def plain(text: str) -> str:
    """Foreign text, escaped so that it is not taken for markup."""
    return escape(text)


def this_command() -> str:
    """How to call this command in this shell: by name if it is on the PATH, else by path."""
    if shutil.which("penstock"):
        return "penstock"
    beside = Path(sys.executable).with_name("penstock")
    if beside.exists():
        return shlex.quote(os.path.relpath(beside))
    return f"{shlex.quote(sys.executable)} -m penstock"


def home_flag(layout: Layout) -> str:
    """The flag that makes another command use the same home."""
    elsewhere = layout.home != Path(".penstock").absolute()
    return f" --home {shlex.quote(str(layout.home))}" if elsewhere else ""
