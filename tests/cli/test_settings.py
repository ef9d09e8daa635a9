"""Settings: YAML file < environment < flags, and the errors for mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cli.output import Format
from penstock.cli.settings import Options, fleet_file, read_settings
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable, SettingUnknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.command import CommandResult


@pytest.fixture(autouse=True)
def _somewhere(here: Callable[..., CommandResult]) -> None:
    """Every test in a directory and an environment without settings."""


def test_the_defaults_are_a_table_and_a_home_in_the_working_directory(tmp_path: Path) -> None:
    options = Options()

    assert options.form is Format.TABLE
    assert options.layout.home == tmp_path / ".penstock"
    assert fleet_file() is None


def test_a_file_comes_before_nothing_the_environment_before_a_file_and_a_flag_before_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("penstock.yaml").write_text("home: from-file\noutput: json\nfleet: f.yaml\n")
    assert Options().layout.home == tmp_path / "from-file"
    assert Options().form is Format.JSON
    assert fleet_file() == Path("f.yaml")

    monkeypatch.setenv("PENSTOCK_HOME", "from-environment")
    monkeypatch.setenv("PENSTOCK_OUTPUT", "yaml")
    assert Options().layout.home == tmp_path / "from-environment"
    assert Options().form is Format.YAML

    flags = Options(home=Path("from-flag"), output=Format.TABLE)
    assert flags.layout.home == tmp_path / "from-flag"
    assert flags.form is Format.TABLE


def test_a_file_elsewhere_is_named_in_the_environment(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("home: /h\n")

    assert read_settings({"PENSTOCK_CONFIG": str(tmp_path / "other.yaml")}) == {"home": "/h"}


def test_an_empty_file_sets_nothing() -> None:
    Path("penstock.yaml").write_text("# nothing yet\n")

    assert read_settings({}) == {}


def test_an_empty_variable_counts_as_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", "")
    monkeypatch.setenv("PENSTOCK_OUTPUT", "")

    assert Options().layout.home == tmp_path / ".penstock"
    assert Options().form is Format.TABLE


def test_a_tilde_is_the_users_own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))

    assert Options(home=Path("~/kafka")).layout.home == tmp_path / "me" / "kafka"


def test_variables_of_other_parts_are_left_to_them() -> None:
    others = {
        "PENSTOCK_CACHE": "x",
        "PENSTOCK_DATA_PATH": "python",
        "PENSTOCK_FAULT": "x",
        "PENSTOCK_BUDGET_FACTOR": "2",
        "PENSTOCKING": "x",
    }

    assert read_settings(others) == {}


def test_an_unknown_key_of_the_file_is_named(here: Callable[..., CommandResult]) -> None:
    Path("penstock.yaml").write_text("hoem: x\n")

    with pytest.raises(SettingUnknown, match=r"penstock\.yaml: unknown key `hoem` \(PEN-1001\)"):
        read_settings({})
    ran = here("version")

    assert ran.code == 2
    assert ran.err == (
        "error: penstock.yaml: unknown key `hoem` (PEN-1001)\n"
        "  Known keys here: home, fleet, fleet_only, log_format, output, profile, url.\n"
    )


def test_an_unknown_variable_is_named_whatever_the_command(
    here: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOEM", "x")

    ran = here("version", "-o", "json")

    assert ran.code == 2
    assert ran.error["code"] == "PEN-1001"
    assert ran.error["message"] == "environment: unknown key `PENSTOCK_HOEM`"
    assert "PENSTOCK_HOME" in ran.error["hint"]
    assert here("--help").code == 0


BAD_FILES = [
    ("a: [", SettingsUnreadable, "cannot be read as YAML"),
    ("- home", SettingsUnreadable, "it is not a mapping"),
    ("home: 3", SettingInvalid, "`home` is 3, expected a text"),
    ("home: ''", SettingInvalid, "`home` is ''"),
    ("fleet_only: perhaps", SettingInvalid, "`fleet_only` is 'perhaps', expected yes or no"),
    ("output: xml", SettingInvalid, "`output` is 'xml', expected one of table, json, yaml"),
]


@pytest.mark.parametrize(("content", "error", "message"), BAD_FILES)
def test_a_bad_file_is_refused_with_the_reason(
    here: Callable[..., CommandResult], content: str, error: type[Exception], message: str
) -> None:
    Path("penstock.yaml").write_text(content)

    with pytest.raises(error) as caught:
        read_settings({})
    ran = here("version")

    assert message in str(caught.value)
    assert ran.code == 2
    assert message in ran.err


def test_a_file_that_is_named_but_not_there_is_an_error() -> None:
    with pytest.raises(SettingsUnreadable, match="No such file"):
        read_settings({"PENSTOCK_CONFIG": "gone.yaml"})
