"""The settings of every command: YAML file < environment < flags. Unknown keys are errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.cli.output import Format
from penstock.fleet.layout import Layout
from penstock.log_lines import LogFormat, configure_logs, default_format
from penstock.model.errors.settings import SettingInvalid, SettingUnknown, UsageInvalid
from penstock.model.settings_reader import Section, read_mapping
from penstock.model.settings_table import Setting, SettingsFile
from penstock.platform.profiles import LOCAL, Profile, current_profile, read_profile

SETTINGS_FILE = "penstock.yaml"
ENVIRONMENT_PREFIX = "PENSTOCK_"
SETTINGS = SettingsFile(
    "penstock",
    "every command",
    (
        Setting("home", "directory", "Local state.", ".penstock"),
        Setting("fleet", "file", "Fleet file of `penstock up`."),
        Setting("fleet_only", "yes | no", "`penstock up` starts Kafka alone.", "no"),
        Setting(
            "log_format", " | ".join(LogFormat), "Log lines of services; unset: json, text on a terminal."
        ),
        Setting("output", " | ".join(Format), "Output format.", str(Format.TABLE)),
        Setting("profile", "text", "Profile to use; unset: the current one."),
        Setting("url", "URL", "The control plane; unset: the local one."),
    ),
    ENVIRONMENT_PREFIX,
    may_be_empty=True,
)
KEYS = SETTINGS.keys()
# Read by other packages; listed so that only a misspelt variable is an error.
_OTHER_VARIABLES = ("budget_factor", "cache", "config", "data_path", "fault", "fault_points", "token")

# Of variables that override the settings files of processes.
PROCESS_PREFIXES = (
    "audit_",
    "checker_",
    "control_",
    "coordinator_",
    "gateway_",
    "pipeline_",
    "scaler_",
    "view_",
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags of every command."""

    output: Annotated[
        Format | None, Parameter(name=["--output", "-o"], help="Output format.", show_default="table")
    ] = None
    home: Annotated[
        Path | None, Parameter(help="Directory of local state.", show_default=".penstock", negative="")
    ] = None

    @property
    def form(self) -> Format:
        return self.output or Format(setting("output", Format.TABLE))

    @property
    def layout(self) -> Layout:
        return Layout(Path(self.home or setting("home", ".penstock")).expanduser().absolute())


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProfileOptions(Options):
    """The flags of every command that works on another machine's platform through a profile."""

    profile: Annotated[
        str | None, Parameter(help="Profile to use.", show_default="the current one", negative="")
    ] = None

    @property
    def chosen(self) -> Profile | None:
        """The profile that flags, environment or `profile use` select; None for the local platform.

        A home or a URL that is set explicitly comes before the current profile.
        """
        values = read_settings(os.environ)
        if self.profile and self.home:
            raise UsageInvalid(
                reason="--profile and --home exclude each other", way_out="Leave out one of them."
            )
        if self.profile:
            name = self.profile
        elif self.home:
            name = LOCAL
        else:
            explicit = LOCAL if "home" in values or "url" in values else current_profile()
            name = values.get("profile") or explicit
        return None if name in ("", LOCAL) else read_profile(name)

    @property
    def layout(self) -> Layout:
        chosen = self.chosen
        return Options(home=self.home).layout if chosen is None else chosen.layout


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RemoteOptions(ProfileOptions):
    """The flags of every command that calls the control plane.

    Defined here since names in inherited annotations are looked up in this module.
    """

    url: Annotated[
        str | None, Parameter(help="URL of the control plane.", show_default="the local one", negative="")
    ] = None


LogLines = Annotated[
    LogFormat | None,
    Parameter(name="--log-format", help="Format of log lines.", show_default="json; console on a terminal"),
]
Metrics = Annotated[
    str | None, Parameter(help="Serve /metrics, /livez and /readyz at this host:port.", show_default="none")
]


def fleet_file() -> Path | None:
    value = setting("fleet", "")
    return Path(value) if value else None


def start_logs(form: LogFormat | None) -> None:
    """For commands that run a service: log in the format of the flag, else of the settings."""
    chosen = setting("log_format", "")
    configure_logs(form or (LogFormat(chosen) if chosen else default_format()))


def setting(key: str, default: str) -> str:
    values = read_settings(os.environ)
    return values.get(key, default)


def read_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of the file and the environment. An empty variable counts as unset."""
    named = environment.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    path = Path(named or SETTINGS_FILE)
    values: dict[str, str] = _file_values(path) if named or path.exists() else {}
    for variable, value in environment.items():
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if not variable.startswith(ENVIRONMENT_PREFIX) or key in _OTHER_VARIABLES:
            continue
        if key.startswith(PROCESS_PREFIXES):
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
    if values.get("log_format", LogFormat.JSON) not in list(LogFormat):
        expected = f"expected one of {', '.join(LogFormat)}"
        raise SettingInvalid(
            where="settings", key="log_format", value=values["log_format"], expected=expected
        )
    if values.get("output", Format.TABLE) not in list(Format):
        raise SettingInvalid(
            where="settings",
            key="output",
            value=values["output"],
            expected=f"expected one of {', '.join(Format)}",
        )
    return values


def check_file(path: Path, environment: Mapping[str, str]) -> None:
    """Raises if the file or the environment has a setting that is unknown or invalid."""
    read_settings({**environment, f"{ENVIRONMENT_PREFIX}CONFIG": str(path)})


def _file_values(path: Path) -> dict[str, str]:
    section = Section(str(path), read_mapping(path, may_be_empty=True), KEYS)
    return {key: section.text(key) for key in section.values}
