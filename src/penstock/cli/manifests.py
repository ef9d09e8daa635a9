"""`penstock apply`: logical clusters and service accounts as they stand in a file.

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
    adopted: east                          # left out: brokers are made for it

What is there already is changed where it differs, and left alone where it does not; nothing is
deleted. `--dry-run` prints the difference and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from cyclopts import Parameter

from penstock.cli.output import Format, show, table_of
from penstock.cli.remote import Control, connected
from penstock.cli.settings import RemoteOptions
from penstock.model.entities import Tenancy
from penstock.model.errors import Exit
from penstock.model.errors.control import ProblemAnswered
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable, SettingUnknown

_KEYS: Final = {
    "cluster": ("name", "units", "tenancy", "adopted", "zones", "network", "overrides", "labels"),
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
    file: Annotated[Path, Parameter(name=["--file", "-f"], help="A YAML file of manifests.", negative="")],
    dry_run: Annotated[bool, Parameter(help="Print the difference alone.", negative="")] = False,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Make logical clusters and accounts as a file has them. Doing it again changes nothing.

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
            control.wait(made["operation"])
    if options.form is Format.TABLE:
        for row in rows:
            print(f"{row['kind']} {row['name']}: {row['action']}")
            for line in row["changes"]:
                print(f"  {line}")
    else:
        show(rows, options.form, table_of(rows, {"KIND": "kind", "NAME": "name", "ACTION": "action"}))
    return Exit.FINE


def read_manifests(path: Path) -> list[Manifest]:
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as failure:
        raise SettingsUnreadable(path=path, reason=str(failure).replace("\n", " ")) from failure
    return [_manifest(f"{path}: document {n}", d) for n, d in enumerate(documents, 1) if d is not None]


def _manifest(where: str, document: Any) -> Manifest:
    if not isinstance(document, dict) or document.get("kind") not in _KEYS:
        kind = document.get("kind") if isinstance(document, dict) else document
        raise SettingInvalid(
            where=where, key="kind", value=kind, expected=f"expected one of {', '.join(_KEYS)}"
        )
    values = {key: value for key, value in document.items() if key != "kind"}
    known = _KEYS[document["kind"]]
    for key in values:
        if key not in known:
            raise SettingUnknown(where=where, key=key, known=", ".join(known))
    for key in ("name", "cluster") if document["kind"] == "account" else ("name",):
        if not isinstance(values.get(key), str):
            raise SettingInvalid(where=where, key=key, value=values.get(key), expected="expected a name")
    if values.get("adopted") is not None and values.get("tenancy") != Tenancy.DEDICATED:
        expected = "expected `tenancy: dedicated` beside it"
        raise SettingInvalid(where=where, key="adopted", value=values["adopted"], expected=expected)
    return Manifest(document["kind"], where, values)


Planned = tuple[str, str, Any, str | None]


def _plan(control: Control, manifest: Manifest) -> tuple[dict[str, Any], Planned | None]:
    row: dict[str, Any] = {"kind": manifest.kind, "name": manifest.name, "action": "as it is", "changes": []}
    found, version = _found(control, manifest)
    body = {key: value for key, value in manifest.values.items() if key != "cluster"}
    if found is None:
        row["action"] = "create"
        row["changes"] = [f"+ {key}: {value}" for key, value in body.items()]
        path = "/clusters"
        if manifest.kind == "account":
            path = f"/clusters/{manifest.values['cluster']}/accounts"
        return row, ("POST", path, body, None)
    changes = {k: v for k, v in body.items() if not _same(found.get(k), v)}
    for key in _FIXED[manifest.kind]:
        if key in changes:
            raise SettingInvalid(
                where=manifest.where,
                key=key,
                value=changes[key],
                expected=f"and it is {found[key]!r} and cannot be changed",
            )
    if not changes:
        return row, None
    row["action"] = "change"
    for key, value in changes.items():
        row["changes"] += [f"- {key}: {found.get(key)}", f"+ {key}: {value}"]
    noun = "clusters" if manifest.kind == "cluster" else "accounts"
    return row, ("PATCH", f"/{noun}/{found['id']}", changes, version)


def _found(control: Control, manifest: Manifest) -> tuple[dict[str, Any] | None, str | None]:
    if manifest.kind == "cluster":
        for cluster in control.every("/clusters", name=manifest.name):
            return cluster, f'"{cluster["version"]}"'
        return None, None
    try:
        accounts = list(control.every(f"/clusters/{manifest.values['cluster']}/accounts"))
    except ProblemAnswered as error:
        if error.exit_code is not Exit.NOT_FOUND:
            raise
        return None, None  # in a dry run its cluster may still be missing
    for account in accounts:
        if account["name"] == manifest.name:
            return account, f'"{account["version"]}"'
    return None, None


def _same(found: Any, wanted: Any) -> bool:
    """What a manifest leaves out of a value has its default there."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = found.keys() | wanted.keys()
        return all(_same(found.get(k, _DEFAULTS.get(k)), wanted.get(k, _DEFAULTS.get(k))) for k in keys)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    return bool(found == wanted)
