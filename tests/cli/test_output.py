"""What commands print, for people and for programs."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from rich.console import Console

from penstock.cli.output import Format, console, plain, report, show, show_error, table_of
from penstock.cli.tenant.client_settings import client_settings
from penstock.kafka.security import Login, Mechanism
from penstock.model.errors.fleet import NodeFailed
from penstock.model.errors.settings import SettingInvalid

if TYPE_CHECKING:
    from rich.console import RenderableType

ROWS: list[dict[str, Any]] = [
    {"node": "b1", "state": "ready", "mb": 12.34, "why": ""},
    {"node": "b22", "state": "stopped", "mb": None},
]
COLUMNS = {"NODE": "node", "STATE": "state", "MB": "mb", "WHY": "why"}


def drawn(view: RenderableType, width: int = 200) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(view)
    return out.getvalue()


def test_json_and_yaml_carry_the_same_data(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"a": [1, None, "x"], "b": {"é": True}}

    show(data, Format.JSON, "")
    as_json = capsys.readouterr().out
    show(data, Format.YAML, "")
    as_yaml = capsys.readouterr().out

    assert json.loads(as_json) == yaml.safe_load(as_yaml) == data


def test_a_table_has_numbers_to_the_right_and_a_dash_for_nothing() -> None:
    lines = drawn(table_of(ROWS, COLUMNS)).splitlines()

    assert lines[0].split() == ["NODE", "STATE", "MB", "WHY"]
    assert lines[1].split() == ["b1", "ready", "12.3", "-"]
    assert lines[2].split() == ["b22", "stopped", "-", "-"]
    assert lines[1].index("12.3") + 4 == lines[2].index(" - ") + 2


def test_a_table_without_rows_is_a_sentence() -> None:
    assert drawn(table_of([], COLUMNS)).strip() == "none"
    assert drawn(table_of([], COLUMNS, empty="no nodes [b1]")).strip() == "no nodes [b1]"


def test_booleans_are_printed_as_yes_and_no() -> None:
    assert drawn(table_of([{"x": True}, {"x": False}], {"X": "x"})).split() == ["X", "yes", "no"]


def test_elsewhere_than_on_a_terminal_nothing_is_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 200

    show([], Format.TABLE, table_of([{"a": "x" * 300, "b": long}], {"A": "a", "B": "b"}))

    assert "x" * 300 in capsys.readouterr().out


def test_on_a_narrow_terminal_sentences_are_wrapped_not_cut() -> None:
    hint = "Install Java 17 or newer, or set JAVA_HOME to such a runtime."

    text = drawn(table_of([{"what": "java", "hint": hint}], {"CHECK": "what", "WAY OUT": "hint"}), width=40)

    assert " ".join(text.split()).endswith(hint)


NASTY = ["[/x]", "[red]x[/red]", "[bold", "a\\", "\\[x]", "[link=file:///]", "{0}", "%s"]


@pytest.mark.parametrize("text", NASTY)
def test_text_from_elsewhere_is_never_taken_for_markup(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_error(SettingInvalid(where=text, key="k", value=1, expected="x"))
    report(f"[bold]{plain(text)}[/]")
    show([], Format.TABLE, table_of([{"a": text}], {"A": "a"}))

    out, err = capsys.readouterr()
    assert f"error: {text}: `k` is 1, x (PEN-1002)\n" in err
    assert err.splitlines()[-1] == text
    assert out.split() == ["A", *text.split()]


def test_an_error_is_one_line_and_its_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(NodeFailed(node="b1", outcome="code 1", last_error="ERROR x"))

    assert capsys.readouterr().err.splitlines() == [
        "error: b1 exited with code 1 before it was ready (PEN-2013)",
        "  Read its log with `penstock logs b1`; its last error: ERROR x",
    ]


@pytest.mark.parametrize("form", [Format.JSON, Format.YAML])
def test_an_error_for_programs_is_one_document(form: Format, capsys: pytest.CaptureFixture[str]) -> None:
    show_error(NodeFailed(node="b1", outcome="code 1", last_error="ERROR x"), form)

    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err) == {
        "error": {
            "code": "PEN-2013",
            "message": "b1 exited with code 1 before it was ready",
            "hint": "Read its log with `penstock logs b1`; its last error: ERROR x",
            "fault": "upstream",
            "retriable": False,
        }
    }


def test_colour_is_for_terminals(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    report("[bold red]x[/]")

    assert capsys.readouterr().err == "x\n"
    assert not console().is_terminal


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    gone = Gone()
    monkeypatch.setattr(sys, "stderr", gone)

    report("anybody there?")

    assert gone.getvalue() == ""


def test_settings_for_java_name_a_login_module_that_kafka_has() -> None:
    settings = client_settings("b:9092", Login("u", "p", Mechanism.SCRAM_SHA_512), "java")

    assert settings["sasl.jaas.config"].startswith("org.apache.kafka.common.security.scram.ScramLoginModule ")
