"""Settings are read one way: typed, with the place in every error, and no unknown key passes."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pytest

from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable, SettingUnknown
from penstock.model.settings_reader import Section, read_documents, read_mapping, with_environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def section(**values: Any) -> Section:
    return Section("f.yaml", values, None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "it is not a mapping"),
        ("- a\n", "it is not a mapping"),
        ("a: [\n", "while parsing"),
        ("a: \x00", "unacceptable character"),
    ],
)
def test_a_file_that_is_no_yaml_mapping_is_refused_with_the_reason(
    tmp_path: Path, content: str, reason: str
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(content)

    with pytest.raises(SettingsUnreadable) as caught:
        read_mapping(path)

    assert str(path) in caught.value.message
    assert reason in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("content", ["token: 'hush\n", "home: {token: [hush\nb: 1\n", "token: hush: 1\n"])
def test_a_file_that_cannot_be_parsed_is_not_quoted(tmp_path: Path, content: str) -> None:
    path = tmp_path / "control.yaml"
    path.write_text(content)

    for read in (
        lambda: read_mapping(path),
        lambda: with_environment({}, "PENSTOCK_CONTROL_", {"PENSTOCK_CONTROL_HOME": content}),
    ):
        with pytest.raises(SettingsUnreadable, match="line 1") as caught:
            read()
        assert "hush" not in caught.value.message + str(caught.value.__cause__)


def test_a_file_that_is_not_there_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(SettingsUnreadable, match="No such file"):
        read_mapping(tmp_path / "fleet.yaml")


def test_an_empty_file_is_an_empty_mapping_where_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("# nothing yet\n")

    assert read_mapping(path, may_be_empty=True) == {}


def test_every_document_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("a: 1\n---\n- 2\n")

    assert read_documents(path) == [{"a": 1}, [2]]


def test_an_unknown_key_is_named_with_its_place_and_the_known_ones() -> None:
    root = Section("f.yaml", {"nodes": [{"ports": {"client": 1}}]}, ("nodes",))

    (node,) = root.sections("nodes", ("ports",))
    with pytest.raises(SettingUnknown) as caught:
        node.section("ports", ("internal", "metrics"))

    assert caught.value.message == "f.yaml: nodes[0].ports: unknown key `client`"
    assert caught.value.advice == "Known keys here: internal, metrics."


@pytest.mark.parametrize(
    ("values", "read", "value"),
    [
        ({"a": "x"}, lambda s: s.text("a"), "x"),
        ({}, lambda s: s.text("a", "y"), "y"),
        ({}, lambda s: s.optional_text("a"), None),
        ({"a": "x"}, lambda s: s.texts("a"), ("x",)),
        ({"a": ["x", "y"]}, lambda s: s.texts("a"), ("x", "y")),
        ({"a": None}, lambda s: s.items("a"), []),
        ({"a": 5}, lambda s: s.integer("a", at_least=5, at_most=5), 5),
        ({"a": None}, lambda s: s.optional_integer("a"), None),
        ({"a": 1}, lambda s: s.number("a", 0.5, at_least=0, at_most=1), 1.0),
        ({"a": 0.5}, lambda s: s.positive("a"), 0.5),
        ({}, lambda s: s.flag("a", default=True), True),
        ({"a": "blue"}, lambda s: s.choice("a", Colour.RED), Colour.BLUE),
        ({"a": "[::1]:80"}, lambda s: s.address("a"), ("::1", 80)),
        ({"a": None}, lambda s: s.path("a"), None),
        ({}, lambda s: s.file("a"), None),
        ({"a": None}, lambda s: s.section("a", ()).values, {}),
    ],
)
def test_a_value_is_read_as_its_type(
    values: dict[str, Any], read: Callable[[Section], Any], value: Any
) -> None:
    assert read(section(**values)) == value


@pytest.mark.parametrize(
    ("value", "read", "expected"),
    [
        ("", lambda s: s.text("a"), "expected a text"),
        (3, lambda s: s.optional_text("a"), "expected a text"),
        ([1], lambda s: s.texts("a"), "expected a list of texts"),
        ({"b": 1}, lambda s: s.items("a"), "expected a list"),
        (True, lambda s: s.integer("a"), "expected a whole number"),
        (4, lambda s: s.integer("a", at_least=5), "expected a whole number, 5 or more"),
        (7, lambda s: s.integer("a", at_least=5, at_most=6), "expected a whole number from 5 to 6"),
        (2, lambda s: s.number("a", 1, at_least=0, at_most=1), "expected a number from 0 to 1"),
        (0, lambda s: s.positive("a"), "expected a number above zero"),
        ("yes", lambda s: s.flag("a"), "expected true or false"),
        ("green", lambda s: s.choice("a", Colour.RED), "expected one of red, blue"),
        ("host", lambda s: s.address("a"), "expected host:port"),
        ("host:70000", lambda s: s.address("a"), "expected host:port"),
        ("nowhere", lambda s: s.file("a"), "expected a file that can be read"),
        ("x", lambda s: s.section("a", ()), "expected a mapping"),
        ({1: 2}, lambda s: s.section("a", None), "expected a mapping with names as keys"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(
    value: Any, read: Callable[[Section], Any], expected: str
) -> None:
    with pytest.raises(SettingInvalid) as caught:
        read(section(a=value))

    assert caught.value.message == f"f.yaml: `a` is {value!r}, {expected}"


def test_an_entry_of_a_list_that_is_no_mapping_is_named() -> None:
    with pytest.raises(SettingInvalid, match=r"f\.yaml: `nodes\[1\]` is 'x', expected a mapping"):
        section(nodes=[{}, "x"]).sections("nodes", ())


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    beside = Section("f.yaml", {"key": "key"}, None, base=tmp_path)

    assert beside.path("key") == beside.file("key") == tmp_path / "key"
