"""Reference pages, made from the code that they describe.

    python -m tools.reference           # writes docs/errors.md and the others in `PAGES`
    python -m tools.reference --check   # says which pages differ, and fails if any does

A page is a function without arguments that returns its text; `PAGES` says where it goes. The test
suite compares pages and code, so neither can change alone.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.control.api import make_api
from penstock.gateway.apis import table
from penstock.model.errors import RANGES, PenstockError, area_of, catalogue
from penstock.wire.definitions import load
from tests.gateway.tables import TABLES, WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent

ERRORS_INTRODUCTION = """\
# Errors

Every error has a code that never changes its meaning. Whose fault it is: *caller* – what was asked
for cannot be done as asked; *upstream* – something this depends on failed; *ours* – a defect here.
Retriable means that the same call may succeed later. Words in braces stand for the values of the
case at hand. The exit status is that of the `penstock` command.

This page is made from the code by `python -m tools.reference`.
"""


def errors_page() -> str:
    areas = list(RANGES)
    errors = sorted(catalogue().values(), key=lambda error: (areas.index(area_of(error)), error.code))
    parts = [ERRORS_INTRODUCTION]
    for title, members in groupby(errors, key=lambda error: RANGES[area_of(error)][0]):
        parts.append(f"\n## {title}\n")
        parts.extend(map(error_entry, members))
    return "\n".join(parts)


def error_entry(error: type[PenstockError]) -> str:
    """The error as the command prints it, then what a program needs to know of it."""
    shown = f"error: {template(error.text)} ({error.code})\n  {template(error.hint)}"
    again = ", retriable" if error.retriable else ""
    facts = f"{error.__name__}: *{error.fault}*{again}, exit status {int(error.exit_code)}."
    return f"### {error.code}\n\n```text\n{shown}\n```\n\n{facts}\n"


def template(text: str) -> str:
    """The template with the bare names of its fields, without how they are formatted."""
    parsed = string.Formatter().parse(text)
    return "".join(before + ("" if name is None else f"{{{name}}}") for before, name, _, _ in parsed)


APIS_INTRODUCTION = """\
# What the gateway does with each API

By version and direction: *passed* unchanged, *rewritten* (with the kinds of name that change),
*done by the platform*, *answered here*, or *refused* with the reason. A refusal whose reason ends in the
name of an error is offered, and answered with that error; any other refused API is not in the gateway's
ApiVersions, and a client that calls it all the same gets UNSUPPORTED_VERSION. Calls that only controllers
serve are not listed: they are refused like anything unknown, by closing the connection.

This page is made from the code by `python -m tools.reference`; how to read it is in `gateway.md`.

| key | API | versions | direction | verdict | what or why |
|---|---|---|---|---|---|
"""


def apis_page() -> str:
    lines = []
    for (key, api, direction, verdict, why), rows in groupby(
        table(load()), key=lambda row: (row.key, row.api, row.direction, row.verdict, row.why)
    ):
        versions = [row.version for row in rows]
        span = str(versions[0]) if len(versions) == 1 else f"{versions[0]}–{versions[-1]}"
        lines.append(f"| {key} | {api} | {span} | {direction} | {verdict} | {why} |")
    return APIS_INTRODUCTION + "\n".join(lines) + "\n"


CLIENTS_INTRODUCTION = """\
# What clients' admin methods come to for a tenant

Every method of three admin clients, called by two tenants under the same names through a gateway, by an
account that owns its cluster. A word in code is what the test got to see: a count, a value, or the
error by the library's own name for it. The tests fail when a library brings a method that is not here.

This page is made from `tests/gateway/tables.py` by `python -m tools.reference`.
"""


def clients_page() -> str:
    parts = [CLIENTS_INTRODUCTION]
    for library, methods in TABLES.items():
        parts.append(f"\n## {library}\n\n| method | comes to |\n|---|---|")
        parts += [f"| `{name}` | {WORDS.get(result) or f'`{result}`'} |" for name, result in methods.items()]
    return "\n".join(parts) + "\n"


def openapi_page() -> str:
    """The HTTP API of the control plane: what it promises to its callers, so that a change is seen."""
    return json.dumps(make_api().openapi(), indent=1, sort_keys=True) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/errors.md": errors_page,
    "docs/openapi.json": openapi_page,
    "docs/gateway-apis.md": apis_page,
    "docs/gateway-clients.md": clients_page,
}


def stale(root: Path) -> list[str]:
    """The pages that differ from what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != page()
    ]


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.reference", description="Write the reference pages."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    options = parser.parse_args(argv)
    pages = stale(root)
    for name in pages:
        if options.check:
            print(f"{name} is out of date; run: python -m tools.reference", file=sys.stderr)
            continue
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote {name}")
    return 1 if pages and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
