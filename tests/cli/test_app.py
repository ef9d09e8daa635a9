"""The command tree: every command explains itself, and every run ends with the right code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock import __version__
from penstock.cli import app as module
from penstock.cli.app import COMMANDS, command_tree, run
from penstock.model.errors.fleet import FormatFailed, NotRunning
from penstock.model.errors.settings import ExtraMissing
from tests.cli.snapshots import help_of, nodes
from tests.harness.command import Penstock, clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.command import CommandResult


NODES = list(nodes())
# Those that do something, not those that only hold others.
LEAVES = [words for words in NODES if words and not any(n[:-1] == words for n in NODES)]
PRINTS_NO_DATA = {
    ("completion",),
    ("down",),
    ("reset",),
    ("profile", "delete"),
    ("profile", "use"),
    ("fleet", "abandon"),
    ("gateway", "credentials"),
    ("gateway", "drain"),
    ("gateway", "provision"),
    ("gateway", "run"),
    ("backup", "run"),
    ("link", "delete"),
    ("link", "run"),
    ("scale", "serve"),
}

every_command = pytest.mark.parametrize("words", LEAVES, ids=" ".join)


def test_the_tree_has_the_commands_it_is_to_have() -> None:
    needed = {("up",), ("down",), ("status",), ("logs",), ("reset",), ("doctor",), ("version",)}

    assert needed | {("fleet", "fetch"), ("fleet", "connect"), ("completion",)} <= set(LEAVES)


@every_command
def test_every_command_has_a_summary_and_an_example(words: tuple[str, ...]) -> None:
    described = help_of(words)

    assert described.startswith(f"Usage: penstock {' '.join(words)}")
    assert re.search(rf"Example: +penstock {' '.join(words)}\b", described)


@every_command
def test_what_prints_data_prints_it_as_table_json_or_yaml(words: tuple[str, ...]) -> None:
    described = help_of(words)

    assert ("--output" in described) or words in PRINTS_NO_DATA
    if "--output" in described:
        assert all(form in described for form in ("-o", "table", "json", "yaml"))


def test_one_command_is_built_alone_for_the_sake_of_speed() -> None:
    tree = command_tree("version")

    assert [name for name in tree if not name.startswith("-")] == ["version"]


def test_without_a_command_help_is_shown(here: Callable[..., CommandResult]) -> None:
    ran = here()

    assert ran.code == 0
    assert "Start here: penstock up" in ran.out


USAGE = [
    ["frobnicate"],
    ["stauts"],
    ["status", "--frobnicate"],
    ["status", "extra", "words"],
    ["up", "--brokers", "three"],
    ["up", "--jit", "fast"],
    ["status", "-o", "xml"],
    ["fleet", "connect", "--client", "perl"],
    ["completion"],
    ["completion", "tcsh"],
    ["logs", "-n"],
    ["status", "[/x]"],
    ["up", "--brokers", "[red]"],
]


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_a_usage_mistake_ends_with_2_one_line_and_where_to_look(
    here: Callable[..., CommandResult], words: list[str]
) -> None:
    ran = here(*words)

    assert ran.code == 2
    assert ran.out == ""
    error, way_out = ran.err.splitlines()
    assert error.startswith("error: ")
    assert error.endswith("(PEN-1006)")
    known = f" {words[0]}" if words[0] in COMMANDS else ""
    assert way_out == f"  See: penstock{known} --help"


def test_a_mistyped_word_is_repeated(here: Callable[..., CommandResult]) -> None:
    assert "stauts" in here("stauts").err


@pytest.mark.parametrize("form", [["-o", "json"], ["--output", "json"], ["--output=json"], ["-o=json"]])
def test_an_error_is_printed_in_the_requested_form(
    here: Callable[..., CommandResult], form: list[str]
) -> None:
    ran = here("status", *form)

    assert ran.code == 3
    assert ran.error["code"] == "PEN-2011"


def test_the_form_of_the_settings_counts_for_errors_too(
    here: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_OUTPUT", "json")

    assert here("status").error["code"] == "PEN-2011"
    assert here("stauts").error["code"] == "PEN-1006"


def fails(error: BaseException) -> Callable[..., object]:
    def command_tree(only: str | None = None) -> Callable[..., None]:
        def app(*_: object, **__: object) -> None:
            raise error

        return app

    return command_tree


def test_an_error_out_of_a_group_is_shown_as_the_first_of_them(
    here: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = [FormatFailed(node="b1", reason="x", directory="d"), NotRunning(home="h")]
    monkeypatch.setattr(module, "command_tree", fails(ExceptionGroup("g", [ExceptionGroup("h", inner)])))

    ran = here("status")

    assert (ran.code, "PEN-2015" in ran.err) == (1, True)


FAULTS = [ValueError("bug"), ExceptionGroup("g", [NotRunning(home="h"), ValueError()])]


@pytest.mark.parametrize("error", FAULTS)
def test_a_fault_of_our_own_is_not_hidden(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(module, "command_tree", fails(error))

    with pytest.raises(type(error)):
        run(["status"])


def test_an_interrupt_ends_with_130(
    here: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "command_tree", fails(KeyboardInterrupt()))

    assert here("status").code == 130


def test_a_reader_that_went_away_is_no_error(penstock: Penstock) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # before the command prints anything
    with open(writer, "wb") as closed:  # noqa: PTH123 - a descriptor
        done = subprocess.run(
            penstock.words("completion", "bash"),
            cwd=penstock.directory,
            env=penstock.environment(),
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (done.returncode, done.stderr) == (141, "")


def test_without_the_platform_packages_the_command_names_the_extra_to_install() -> None:
    program = "import sys; sys.modules['cyclopts'] = None; from penstock.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean_environment(), capture_output=True, text=True, check=False
    )

    expected = ExtraMissing(what="the penstock command", module="cyclopts", extra="platform")
    assert done.returncode == 2
    assert done.stderr == f"error: {expected}\n  {expected.advice}\n"


def test_commands_of_the_local_platform_start_without_the_servers_that_they_start() -> None:
    """Importing the control plane's HTTP server costs two seconds of processor time."""
    program = (
        "import sys, penstock.cli.app, penstock.cli.local, penstock.cli.doctor, penstock.cli.debug\n"
        "print([name for name in ('fastapi', 'uvicorn', 'grpc', 'numpy', 'pyspark') if name in sys.modules])"
    )

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=clean_environment()
    )

    assert ran.stdout.strip() == "[]"


def test_the_version_is_the_packages(here: Callable[..., CommandResult]) -> None:
    assert here("--version").out.strip() == __version__
    assert here("version", "-o", "json").data["penstock"] == __version__


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_every_command(here: Callable[..., CommandResult], shell: str) -> None:
    ran = here("completion", shell)

    assert ran.code == 0
    assert all(name in ran.out for name in COMMANDS)


def test_the_bash_completion_is_a_script_that_bash_takes(here: Callable[..., CommandResult]) -> None:
    script = here("completion", "bash").out

    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)

    assert (checked.returncode, checked.stderr) == (0, "")
