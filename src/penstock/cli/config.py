"""`penstock config`: check, print and explain the settings of every process."""

from __future__ import annotations

import os
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from penstock.cli.output import show, table_of
from penstock.cli.settings import Options
from penstock.model.errors import Exit
from penstock.model.errors.settings import SettingUnexplained, UsageInvalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.model.settings_table import SettingsFile

app = App(name="config", help="Settings: check a file, print what is in force, explain a key.")

# Kind of file → module with its `SETTINGS`, and the function that reads it.
KINDS: Final = {
    "penstock": ("penstock.cli.settings", "check_file"),
    "fleet": ("penstock.fleet.spec_file", "check_file"),
    "control": ("penstock.control.settings", "read_control_settings"),
    "gateway": ("penstock.gateway.settings", "read_gateway_file"),
    "coordinator": ("penstock.quota.settings", "read_coordinator_settings"),
    "checker": ("penstock.health.settings", "read_checker_settings"),
    "audit": ("penstock.audit.settings", "read_audit_settings"),
    "link": ("penstock.link.settings", "check_file"),
    "backup": ("penstock.backup.settings", "check_file"),
    "scaler": ("penstock.scale.settings", "read_scaler_settings"),
    "view": ("penstock.olep.view.settings", "check_file"),
    "pipeline": ("penstock.pipeline.settings", "check_file"),
}
File = Annotated[Path, Parameter(help="The settings file.")]
Kind = Annotated[
    str | None,
    Parameter(help=f"Kind of file: {', '.join(KINDS)}.", show_default="from its name: control.yaml"),
]


@app.command
def check(file: File, *, kind: Kind = None, options: Options = Options()) -> int:
    """Check a settings file together with the environment, without starting anything.

    Example:  penstock config check control.yaml
    """
    name = _kind(file, kind)
    module, function = KINDS[name]
    reader: Callable[..., Any] = getattr(import_module(module), function)
    reader(file, os.environ)
    row = {"file": str(file), "kind": name, "valid": True}
    show(row, options.form, table_of([row], {"FILE": "file", "KIND": "kind", "VALID": "valid"}))
    return Exit.FINE


@app.command(name="print")
def print_(
    file: File,
    *,
    kind: Kind = None,
    origin: Annotated[bool, Parameter(help="Show where each value comes from.", negative="")] = False,
    options: Options = Options(),
) -> int:
    """Print the settings in force: file, environment and defaults. Secrets are hidden.

    Example:  penstock config print gateway.yaml --origin
    """
    rows = [asdict(row) for row in settings_file(_kind(file, kind)).origins(file, os.environ)]
    columns = {"KEY": "key", "VALUE": "value"} | ({"ORIGIN": "origin"} if origin else {})
    shown = [{name: row[name] for name in columns.values()} for row in rows]
    show(shown, options.form, table_of(shown, columns))
    return Exit.FINE


@app.command
def explain(
    key: Annotated[str, Parameter(help="A key, its last part, or kind:key.")],
    *,
    options: Options = Options(),
) -> int:
    """Explain a setting: type, default, unit, meaning, and the variable that overrides it.

    Example:  penstock config explain control:session_seconds
    """
    kind, _, name = key.rpartition(":")
    rows = [
        {
            "kind": file.kind,
            "key": setting.key,
            "type": setting.type,
            "default": setting.shown_default,
            "unit": setting.unit,
            "variable": file.variable(setting),
            "help": setting.help,
        }
        for file in map(settings_file, KINDS)
        if kind in ("", file.kind)
        for setting in file.settings
        if name == setting.key or setting.key.endswith(f".{name}")
    ]
    if not rows:
        raise SettingUnexplained(key=key)
    columns = {heading: heading.lower() for heading in ("KIND", "KEY", "TYPE", "DEFAULT", "UNIT")}
    show(rows, options.form, table_of(rows, columns | {"VARIABLE": "variable", "MEANING": "help"}))
    return Exit.FINE


def settings_file(kind: str) -> SettingsFile:
    table: SettingsFile = import_module(KINDS[kind][0]).SETTINGS
    return table


def _kind(file: Path, kind: str | None) -> str:
    name = kind or file.name.split(".")[0]
    if name in KINDS:
        return name
    reason = f"{name!r} is no kind of settings file" if kind else f"the kind of {file} is not known"
    raise UsageInvalid(reason=reason, way_out=f"Name it with --kind: {', '.join(KINDS)}.")
