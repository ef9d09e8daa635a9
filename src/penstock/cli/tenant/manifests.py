"""`penstock apply`: logical clusters and service accounts from a file.

    kind: cluster
    name: shop
    units: 2
    network: {allow: [10.0.0.0/8]}
    ---
    kind: account
    cluster: shop
    name: billing
    grants: [{resource: topic, name: orders, operation: read}]
    ---
    kind: cluster
    name: alone
    tenancy: dedicated
    adopted: east                          # left out: any shared one, or new brokers if dedicated

Existing entities are changed where they differ; nothing is deleted. `--dry-run` prints the differences
and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from penstock.cli.output import Format, show, table_of
from penstock.cli.remote import connected, wait_for
from penstock.cli.settings import RemoteOptions
from penstock.model.errors import Exit
from penstock.model.errors.control import ProblemResponse
from penstock.model.errors.settings import SettingInvalid
from penstock.model.settings_reader import Section, read_documents
from penstock.platform.control_client import ControlClient

_KEYS: Final = {
    "cluster": (
        "name",
        "units",
        "tenancy",
        "adopted",
        "zones",
        "network",
        "overrides",
        "labels",
        "auto_create_topics",
    ),
    "account": ("cluster", "name", "role", "grants"),
}
_FIXED: Final = {"cluster": ("tenancy", "adopted", "zones"), "account": ("role",)}
_DEFAULTS: Final[Mapping[str, Any]] = {"allow": [], "deny": [], "pattern": "literal"}


@dataclass(frozen=True, slots=True)
class Manifest:
    kind: str
    where: str
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.values["name"])


def apply(
    *,
    file: Annotated[Path, Parameter(name=["--file", "-f"], help="YAML file with manifests.", negative="")],
    dry_run: Annotated[bool, Parameter(help="Print the differences, change nothing.", negative="")] = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Create or change logical clusters and accounts as a file declares them. Repeating it changes nothing.

    Example:  penstock apply -f shop.yaml --dry-run
    """
    manifests = read_manifests(file)
    control = connected(options)
    rows: list[dict[str, Any]] = []
    for manifest in manifests:
        row, change = _plan(control, manifest)
        rows.append(row)
        if change is not None and not dry_run:
            made = control.change(*change[:3], version=change[3])
            wait_for(control, made["operation"])
    if options.form is Format.TABLE:
        for row in rows:
            print(f"{row['kind']} {row['name']}: {row['action']}")
            for line in row["changes"]:
                print(f"  {line}")
    else:
        show(rows, options.form, table_of(rows, {"KIND": "kind", "NAME": "name", "ACTION": "action"}))
    return Exit.FINE


def read_manifests(path: Path) -> list[Manifest]:
    documents = enumerate(read_documents(path), 1)
    return [_manifest(f"{path}: document {n}", document) for n, document in documents if document is not None]


def _manifest(where: str, document: Any) -> Manifest:
    values = document if isinstance(document, dict) else {"kind": document}
    kind = Section(where, values, None).one_of("kind", tuple(_KEYS))
    section = Section(where, {key: values[key] for key in values if key != "kind"}, _KEYS[kind])
    for key in ("name", "cluster") if kind == "account" else ("name",):
        section.text(key, expected="expected a name")
    return Manifest(kind, where, section.values)


Planned = tuple[str, str, Any, str | None]


def _plan(control: ControlClient, manifest: Manifest) -> tuple[dict[str, Any], Planned | None]:
    row: dict[str, Any] = {"kind": manifest.kind, "name": manifest.name, "action": "unchanged", "changes": []}
    current, version = _current(control, manifest)
    body = {key: value for key, value in manifest.values.items() if key != "cluster"}
    if current is None:
        row["action"] = "create"
        row["changes"] = [f"+ {key}: {value}" for key, value in body.items()]
        path = "/clusters"
        if manifest.kind == "account":
            path = f"/clusters/{manifest.values['cluster']}/accounts"
        return row, ("POST", path, body, None)
    changes = {k: v for k, v in body.items() if not _same(current.get(k), v)}
    for key in _FIXED[manifest.kind]:
        if key in changes:
            raise SettingInvalid(
                where=manifest.where,
                key=key,
                value=changes[key],
                expected=f"and cannot be changed: it is {current[key]!r}",
            )
    if not changes:
        return row, None
    row["action"] = "change"
    for key, value in changes.items():
        row["changes"] += [f"- {key}: {current.get(key)}", f"+ {key}: {value}"]
    noun = "clusters" if manifest.kind == "cluster" else "accounts"
    return row, ("PATCH", f"/{noun}/{current['id']}", changes, version)


def _current(control: ControlClient, manifest: Manifest) -> tuple[dict[str, Any] | None, str | None]:
    if manifest.kind == "cluster":
        for cluster in control.every("/clusters", name=manifest.name):
            return cluster, f'"{cluster["version"]}"'
        return None, None
    try:
        accounts = list(control.every(f"/clusters/{manifest.values['cluster']}/accounts"))
    except ProblemResponse as error:
        if error.exit_code is not Exit.NOT_FOUND:
            raise
        return None, None  # in a dry run its cluster may still be missing
    for account in accounts:
        if account["name"] == manifest.name:
            return account, f'"{account["version"]}"'
    return None, None


def _same(current: Any, declared: Any) -> bool:
    """Whether two values are equal; parts that are left out have their default."""
    if isinstance(current, dict) and isinstance(declared, dict):
        keys = current.keys() | declared.keys()
        return all(_same(current.get(k, _DEFAULTS.get(k)), declared.get(k, _DEFAULTS.get(k))) for k in keys)
    if isinstance(current, list) and isinstance(declared, list):
        return len(current) == len(declared) and all(map(_same, current, declared))
    return bool(current == declared)
