"""Generate the reference pages from the code.

    python -m tools.reference           # writes docs/errors.md and the others in `PAGES`
    python -m tools.reference --check   # lists pages that are out of date, and fails if there are any

`PAGES` maps each page's path to the function that returns its text. The test suite compares the committed
pages with the code.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.audit.rules.catalogue import RULES
from penstock.cli.app import command_tree
from penstock.cli.config import KINDS, settings_file
from penstock.control.api.app import make_api
from penstock.gateway.connection.states import NEXT, State
from penstock.gateway.tenancy.apis import PRODUCE, limited, table
from penstock.gateway.tenancy.tenant_configs import GROUP_CONFIGS, REFUSED_CONFIGS, TOPIC_CONFIGS
from penstock.model.errors import RANGES, PenstockError, area_of, catalogue
from penstock.model.metric_catalogue import TABLES as METRIC_TABLES
from penstock.model.settings_table import REQUIRED
from penstock.wire.definitions import load
from tests.cli.snapshots import nodes
from tests.gateway.tables import TABLES, WORDS
from tests.paper.papers import PAPERS
from tools.monitoring import alert_rules, dashboard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.paper.claim import Claim

ROOT = Path(__file__).resolve().parent.parent
AUDIT = "docs/audit.md"

ERRORS_INTRODUCTION = """\
# Errors

Every error has a code that never changes its meaning. Each entry names the party at fault: *caller*, if the
request cannot be carried out as given; *upstream*, if a system that Penstock depends on failed; *ours*, if
Penstock has a defect. *Retriable* means that the same call may succeed later. Words in braces are
placeholders for values. The exit status is that of the `penstock` command.

`python -m tools.reference` generates this page from the code.
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
    """The error as the command prints it, then its class, party at fault and exit status."""
    shown = f"error: {template(error.text)} ({error.code})\n  {template(error.hint)}"
    retriable = ", retriable" if error.retriable else ""
    facts = f"{error.__name__}: *{error.fault}*{retriable}, exit status {int(error.exit_code)}."
    return f"### {error.code}\n\n```text\n{shown}\n```\n\n{facts}\n"


def template(text: str) -> str:
    """The template with the names of its fields, without their format specifications."""
    parsed = string.Formatter().parse(text)
    return "".join(before + ("" if name is None else f"{{{name}}}") for before, name, _, _ in parsed)


APIS_INTRODUCTION = """\
# What the gateway does with each API

By version and direction: *passed* unchanged, *rewritten* (with the kinds of name that change),
*executed by the platform*, *answered by the gateway*, or *refused* with the reason. An API whose reason ends
in the name of an error is offered, and every call gets that error. Any other refused API is missing from the
gateway's ApiVersions, and a client that calls it anyway gets UNSUPPORTED_VERSION. APIs that only controllers
serve are not listed: like unknown ones, they close the connection.

`python -m tools.reference` generates this page from the code. [gateway.md](gateway.md) explains it.

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
    return APIS_INTRODUCTION + "\n".join(lines) + "\n" + LIMITS_INTRODUCTION + limits_table()


LIMITS_INTRODUCTION = """
## Limits of one request

A request with more bytes closes the connection before it is read. Elements are those of all its arrays
together, nested ones too; each array and each tagged field counts as one more. A request with more elements
gets INVALID_REQUEST if its API has an error for the whole request; otherwise it closes the connection.
`penstock_gateway_denials` counts both, as `too_large` and `too_many_elements`. APIs that are refused have
the limits of the last row.

| APIs | bytes | elements |
|---|---|---|
"""


def limits_table() -> str:
    lines = []
    for limits, apis in limited().items():
        size = "`frame_bytes_max`" if limits is PRODUCE else f"{limits.bytes_max // 1024} KiB"
        lines.append(f"| {', '.join(apis)} | {size} | {limits.elements_max:,} |")
    return "\n".join(lines) + "\n"


CONFIGS_INTRODUCTION = """\
# Settings a tenant may change

CreateTopics, IncrementalAlterConfigs and AlterConfigs take these settings with these values. Any other value
or setting is refused with INVALID_CONFIG, which names the setting, the value and what is allowed. Brokers may
restrict settings of groups further.

`python -m tools.reference` generates this page from the code.
"""


def configs_page() -> str:
    parts = [CONFIGS_INTRODUCTION]
    for kind, configs in (("topics", TOPIC_CONFIGS), ("groups", GROUP_CONFIGS)):
        parts.append(f"\n## Of {kind}\n\n| setting | allowed |\n|---|---|")
        parts += [f"| `{name}` | {allowed} |" for name, allowed in configs.items()]
    refused = ", ".join(f"`{name}`" for name in REFUSED_CONFIGS)
    parts.append(f"\n## Refused\n\nThese are the platform's: {refused}.")
    return "\n".join(parts) + "\n"


CLIENTS_INTRODUCTION = """\
# What admin clients' methods return to a tenant

Every method of three admin clients, called through a gateway by two tenants with the same names, each with
an account that owns its cluster. Text in code format is what the test observed: a count, a value, or the
library's name of an error. The tests fail when a library gains a method that is not listed here.

`python -m tools.reference` generates this page from `tests/gateway/tables.py`.
"""


def clients_page() -> str:
    parts = [CLIENTS_INTRODUCTION]
    for library, methods in TABLES.items():
        parts.append(f"\n## {library}\n\n| method | result |\n|---|---|")
        parts += [f"| `{name}` | {WORDS.get(result) or f'`{result}`'} |" for name, result in methods.items()]
    return "\n".join(parts) + "\n"


def openapi_page() -> str:
    """The HTTP API of the control plane; committed, so that every change to it shows in a diff."""
    return json.dumps(make_api().openapi(), indent=1, sort_keys=True) + "\n"


ARCHITECTURE = "docs/architecture.md"
CLAIMS_BEGIN = "<!-- claims: `python -m tools.reference` generates everything up to the end marker -->\n"
CLAIMS_END = "<!-- claims: end -->\n"


def architecture_page() -> str:
    """The page as it is, with the tables of claims generated again."""
    return between(ARCHITECTURE, CLAIMS_BEGIN, CLAIMS_END, claim_tables())


def audit_page() -> str:
    """The page as it is, with the table of rules generated again."""
    rows = ["| rule | severity | what holds | fed by | what you do |", "|---|---|---|---|---|"]
    rows += [
        f"| `{rule.name}` | {rule.severity} | {rule.invariant} | {rule.fed_by} | {rule.action} |"
        for rule in RULES
    ]
    return between(AUDIT, "<!-- rules -->\n", "<!-- /rules -->", "\n".join(["", *rows, "", ""]))


def between(page: str, begin: str, end: str, generated: str) -> str:
    """A page with the text between its two markers replaced."""
    before, rest = (ROOT / page).read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    return before + begin + generated + end + after


GATEWAY = "docs/gateway.md"
STATES_BEGIN = "<!-- states: `python -m tools.reference` generates everything up to the end marker -->\n"
STATES_END = "<!-- end of states -->\n"


def gateway_page() -> str:
    """The page as it is, with the table of a connection's states generated again."""
    return between(GATEWAY, STATES_BEGIN, STATES_END, state_table())


def state_table() -> str:
    """Each state of a connection, and where each event leads from it."""
    rows = ["| state | events |", "|---|---|"]
    for state in State:
        events = [f"{event} → {after}" for (before, event), after in NEXT.items() if before is state]
        rows.append(f"| {state} | {', '.join(events)} |")
    return "\n".join(rows) + "\n"


def claim_tables() -> str:
    """A table for each paper: claims by section, what implements them, and what shows them."""
    parts = [f"\n{progress([claim for paper in PAPERS for claim in paper.claims])}"]
    for paper in PAPERS:
        parts.append(f"\n### {paper.title}\n{progress(paper.claims)}\n")
        parts.append("| section | claim | packages | shown by |\n|---|---|---|---|")
        parts += map(claim_row, paper.claims)
    return "\n".join(parts) + "\n"


def progress(claims: Sequence[Claim]) -> str:
    open_claims = sum(claim.is_open for claim in claims)
    return f"{len(claims)} claims: {len(claims) - open_claims} shown, {open_claims} open."


def claim_row(claim: Claim) -> str:
    """A row of the table. Tests are named by their file, benches by their module."""
    packages = ", ".join(f"`{package}`" for package in claim.packages) or "–"
    files = dict.fromkeys(evidence.partition("::")[0] for evidence in claim.evidence)
    shown_by = ", ".join(f"`{file}`" for file in files) or "open"
    return f"| {claim.section} | {claim.text} | {packages} | {shown_by} |"


COMMANDS_INTRODUCTION = """\
# Commands

Every command, with an example. `penstock COMMAND --help` lists its flags. [cli.md](cli.md) shows their use
from another machine.

`python -m tools.reference` generates this page from the code.
"""


def commands_page() -> str:
    """Each command's summary and example, grouped by its first word."""
    rows = []
    for words in nodes():
        documentation = (docstring(words) or "").strip()
        if "Example:" in documentation:
            example = documentation.partition("Example:")[2].strip().splitlines()[0]
            summary = " ".join(documentation.partition("\n\n")[0].split())
            rows.append((words, summary, example))
    parts = [COMMANDS_INTRODUCTION]
    for name, members in groupby(rows, key=lambda row: row[0][0]):
        parts.append(f"## {name}\n\n| command | what it does | example |\n|---|---|---|")
        for words, summary, example in members:
            cells = (f"`penstock {' '.join(words)}`", summary.replace("|", "\\|"), f"`{example}`")
            parts.append("| " + " | ".join(cell for cell in cells) + " |")
        parts.append("")
    return "\n".join(parts)


def docstring(words: tuple[str, ...]) -> str | None:
    app = command_tree()
    for word in words:
        app = app[word]
    return getattr(app.default_command, "__doc__", None)


METRICS_INTRODUCTION = """\
# Metrics

Every metric of every process, as Prometheus shows it. [operations.md](operations.md) shows where each process
serves them. A label's bound is the number of values that one process exports at most; *unbounded* labels grow
with what the process is given to do.

`python -m tools.reference` generates this page from `model/metric_catalogue.py`.
"""


def metrics_page() -> str:
    parts = [METRICS_INTRODUCTION]
    for table_ in METRIC_TABLES:
        parts.append(
            f"\n## {table_.title}\n\n| metric | type | unit | labels | meaning |\n|---|---|---|---|---|"
        )
        for metric in table_.metrics.values():
            labels = ", ".join(f"`{label.name}`" for label in metric.labels) or "–"
            cells = (f"`{metric.shown_name}`", str(metric.kind), metric.unit or "–", labels, metric.help)
            parts.append(f"| {' | '.join(cells)} |")
        labels_used = dict.fromkeys(label for metric in table_.metrics.values() for label in metric.labels)
        if labels_used:
            parts.append("\n| label | bound | values |\n|---|---|---|")
        for label in labels_used:
            bound = "unbounded" if label.bound is None else f"{label.bound:,}"
            parts.append(f"| `{label.name}` | {bound} | {label.values} |")
    return "\n".join(parts) + "\n"


SETTINGS_INTRODUCTION = """\
# Settings

Every settings file and its keys. `[]` stands for each item of a list, `*` for names of your choice. A process
takes a value from its file, from a variable of the environment, or from a flag: a flag overrides a variable,
which overrides the file. `__` separates levels in a variable: `PENSTOCK_CONTROL_HOME__LOGIN__USER` sets
`home.login.user`. Keys that end in `_file` name a file with a secret, so that neither the settings nor the
environment need contain it. Paths are relative to the settings file. Unknown keys are errors.

`penstock config check FILE` checks a file, `penstock config print FILE --origin` shows where each value comes
from, and `penstock config explain KEY` shows a row of this page.

`python -m tools.reference` generates this page from the code.
"""


def settings_page() -> str:
    parts = [SETTINGS_INTRODUCTION]
    for kind in KINDS:
        file = settings_file(kind)
        variables = f"Variables: `{file.prefix}…`." if file.prefix else "No variables."
        parts.append(f"\n## {kind}.yaml\n\nUsed by `{file.used_by}`. {variables}\n")
        parts.append("| key | type | default | unit | meaning |\n|---|---|---|---|---|")
        for each in file.settings:
            default = (
                f"`{each.shown_default}`" if each.shown_default not in ("", REQUIRED) else each.shown_default
            )
            cells = (f"`{each.key}`", each.type, default or "–", each.unit or "–", each.help)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(parts) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    ARCHITECTURE: architecture_page,
    AUDIT: audit_page,
    GATEWAY: gateway_page,
    "docs/commands.md": commands_page,
    "docs/errors.md": errors_page,
    "docs/openapi.json": openapi_page,
    "docs/gateway-apis.md": apis_page,
    "docs/gateway-clients.md": clients_page,
    "docs/gateway-settings.md": configs_page,
    "docs/metrics.md": metrics_page,
    "docs/settings.md": settings_page,
    "deploy/prometheus/alerts.yaml": alert_rules,
    "deploy/grafana/penstock.json": dashboard,
}


def stale(root: Path) -> list[str]:
    """The pages that differ from the code."""
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
