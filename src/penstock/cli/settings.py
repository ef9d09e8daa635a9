"""Settings every command shares: YAML file < environment < flags; unknown keys are errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from cyclopts import Parameter

from penstock.cli.output import Format
from penstock.fleet.layout import Layout
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable, SettingUnknown

SETTINGS_FILE = "penstock.yaml"
ENVIRONMENT_PREFIX = "PENSTOCK_"
KEYS = ("home", "fleet", "fleet_only", "output", "url")
# Read by other parts, listed so that a misspelt setting is told from one of these.
_OTHER_VARIABLES = ("budget_factor", "cache", "config", "fault", "fault_points", "pump", "token")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """What every command takes."""

    output: Annotated[
        Format | None, Parameter(name=["--output", "-o"], help="How data is printed.", show_default="table")
    ] = None
    home: Annotated[
        Path | None, Parameter(help="Where local state lives.", show_default=".penstock", negative="")
    ] = None

    @property
    def form(self) -> Format:
        return self.output or Format(setting("output", Format.TABLE))

    @property
    def layout(self) -> Layout:
        return Layout(Path(self.home or setting("home", ".penstock")).expanduser().absolute())


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RemoteOptions(Options):
    """What every command takes that asks the control plane.

    Here and not beside its use, since names in inherited annotations are looked up in this module.
    """

    url: Annotated[
        str | None, Parameter(help="Where the control plane is.", show_default="the local one", negative="")
    ] = None


def fleet_file() -> Path | None:
    value = setting("fleet", "")
    return Path(value) if value else None


def setting(key: str, default: str) -> str:
    values = read_settings(os.environ)
    return values.get(key, default)


def read_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings in force, flags apart. An empty variable says nothing, as is usual."""
    named = environment.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    path = Path(named or SETTINGS_FILE)
    values: dict[str, str] = _file_values(path) if named or path.exists() else {}
    for variable, value in environment.items():
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if not variable.startswith(ENVIRONMENT_PREFIX) or key in _OTHER_VARIABLES:
            continue
        if key not in KEYS:
            known = ", ".join(f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in (*KEYS, "config", "cache"))
            raise SettingUnknown(where="environment", key=variable, known=known)
        if value:
            values[key] = value
    if values.get("fleet_only", "no") not in ("yes", "no"):
        raise SettingInvalid(
            where="settings", key="fleet_only", value=values["fleet_only"], expected="expected yes or no"
        )
    if values.get("output", Format.TABLE) not in list(Format):
        raise SettingInvalid(
            where="settings",
            key="output",
            value=values["output"],
            expected=f"expected one of {', '.join(Format)}",
        )
    return values


def _file_values(path: Path) -> dict[str, str]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsUnreadable(path=path, reason=str(error).replace("\n", " ")) from error
    if not isinstance(document, Mapping):
        raise SettingsUnreadable(path=path, reason="it is not a mapping")
    for key, value in document.items():
        if key not in KEYS:
            raise SettingUnknown(where=str(path), key=key, known=", ".join(KEYS))
        if not isinstance(value, str):
            raise SettingInvalid(where=str(path), key=key, value=value, expected="expected a text")
        if not value:
            raise SettingInvalid(where=str(path), key=key, value=value, expected="expected something")
    return dict(document)
