"""Reads settings from YAML: typed values, unknown keys are errors, every error names the place.

A `Section` is one mapping of a document. Its methods return a checked value or raise an error such as
`fleet.yaml: clusters[0].brokers[1]: unknown key `rack``. A bare number counts the unit that the key
names: bytes, seconds, or so many a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import yaml

from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable, SettingUnknown

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.model.errors import PenstockError

PORT_MAX: Final = 65535

_Choice = TypeVar("_Choice", bound=StrEnum)
PRESENT: Final = object()  # for: the value in the document
HIDDEN: Final = "(hidden)"  # shown instead of a secret
# Keys of secrets.
SECRETS: Final = frozenset(("password", "client_secret", "secret", "token", "postgres", "redis"))


def read_documents(path: Path) -> list[Any]:
    """Every YAML document of a file, unchecked."""
    try:
        return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsUnreadable(path=path, reason=_without_content(error)) from error


def _without_content(error: Exception) -> str:
    """PyYAML quotes the line that it cannot parse, which may hold a secret."""
    if isinstance(error, yaml.MarkedYAMLError):
        for mark in (error.context_mark, error.problem_mark):
            if mark is not None:
                mark.buffer = None
    return str(error).replace("\n", " ")


def read_mapping(path: Path, *, may_be_empty: bool = False) -> dict[str, Any]:
    """The mapping that a file consists of; its keys are unchecked."""
    documents = read_documents(path) or [None]
    if documents == [None] and may_be_empty:
        return {}
    if len(documents) != 1 or not isinstance(documents[0], Mapping):
        raise SettingsUnreadable(path=path, reason="it is not a mapping")
    return dict(documents[0])


@dataclass(frozen=True, slots=True)
class Section:
    """One mapping of a document. Raises for a key that is not in `known`; None allows any key."""

    document: str  # the file, or what else the user knows it by
    values: Mapping[str, Any]
    known: Collection[str] | None
    place: str = ""  # within the document, such as clusters[0].brokers[1]
    base: Path = field(default_factory=Path)  # relative paths start here

    def __post_init__(self) -> None:
        for key in self.values:
            if self.known is not None and key not in self.known:
                raise self.unknown(key)

    @property
    def where(self) -> str:
        return f"{self.document}: {self.place}" if self.place else self.document

    def place_of(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key

    def unknown(self, key: str) -> PenstockError:
        return SettingUnknown(where=self.where, key=key, known=", ".join(self.known or ()))

    def invalid(self, key: str, expected: str, value: object = PRESENT) -> PenstockError:
        """The error for a key. Give a value to show another than the document's."""
        value = self.values.get(key) if value is PRESENT else value
        return SettingInvalid(where=self.where, key=key, value=value, expected=expected)

    def section(self, key: str, known: Collection[str] | None, expected: str = "expected a mapping") -> Self:
        """The mapping below a key; an empty one if the key is absent or null."""
        value = self.values.get(key)
        return self._inner(key, {} if value is None else value, known, expected)

    def sections(self, key: str, known: Collection[str]) -> list[Self]:
        """The list of mappings below a key."""
        return self.each(key, self.items(key), known)

    def each(self, key: str, values: Sequence[Any], known: Collection[str]) -> list[Self]:
        """One section for each of the values, which belong below a key."""
        return [
            self._inner(f"{key}[{n}]", value, known, "expected a mapping") for n, value in enumerate(values)
        ]

    def _inner(self, name: str, value: Any, known: Collection[str] | None, expected: str) -> Self:
        if not isinstance(value, Mapping):
            raise self.invalid(name, expected, value)
        if known is None and not all(isinstance(key, str) for key in value):
            raise self.invalid(name, "expected a mapping with names as keys", value)
        return replace(self, values=value, known=known, place=self.place_of(name))

    def text(self, key: str, default: str | None = None, *, expected: str = "expected a text") -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.invalid(key, expected)
        return value

    def optional_text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.invalid(key, "expected a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; a single one may be given without the list."""
        value = self.values.get(key, ())
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise self.invalid(key, "expected a list of texts")
        return tuple(value)

    def items(self, key: str) -> list[Any]:
        value = self.values.get(key) or []
        if not isinstance(value, list):
            raise self.invalid(key, "expected a list")
        return value

    def integer(
        self, key: str, default: int | None = None, *, at_least: int | None = None, at_most: int | None = None
    ) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not _within(value, at_least, at_most):
            raise self.invalid(key, f"expected a whole number{_range(at_least, at_most)}")
        return value

    def optional_integer(
        self, key: str, *, at_least: int | None = None, at_most: int | None = None
    ) -> int | None:
        if self.values.get(key) is None:
            return None
        return self.integer(key, at_least=at_least, at_most=at_most)

    def number(
        self, key: str, default: float, *, at_least: float, at_most: float, unit: str = "a number"
    ) -> float:
        value = self.values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not at_least <= value <= at_most:
            raise self.invalid(key, f"expected {unit} from {at_least:g} to {at_most:g}")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A rate or a duration: a number above zero, in the unit that the key names."""
        value = self.values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise self.invalid(key, "expected a number above zero")
        return float(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.invalid(key, "expected true or false")
        return value

    def one_of(self, key: str, choices: Collection[str], default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.invalid(key, f"expected one of {', '.join(choices)}")
        return value

    def choice(self, key: str, default: _Choice) -> _Choice:
        """A member of the default's enumeration."""
        kind = type(default)
        return kind(self.one_of(key, tuple(kind), default))

    def address(self, key: str, default: str | None = None) -> tuple[str, int]:
        """`host:port`; the brackets of an IPv6 host are removed."""
        value = self.values.get(key, default)
        host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
            raise self.invalid(key, "expected host:port")
        return host.strip("[]"), int(port)

    def optional_address(self, key: str) -> str | None:
        """`host:port` as it is written; None if the key is absent or null."""
        if self.values.get(key) is None:
            return None
        self.address(key)
        return self.text(key)

    def path(self, key: str) -> Path | None:
        """A path, relative to `base`; None if the key is absent or null."""
        return None if self.values.get(key) is None else self.base / self.text(key)

    def file(self, key: str) -> Path | None:
        """The path of a file that exists; None if the key is absent."""
        if key not in self.values:
            return None
        path = self.base / str(self.values[key])
        if not path.is_file():
            raise self.invalid(key, "expected a file that can be read")
        return path

    def secret(self, key: str) -> str:
        """The text below a key, or in the file that `<key>_file` names. No error shows it."""
        in_file = f"{key}_file"
        if (key in self.values) == (in_file in self.values):
            problem = "is given twice" if key in self.values else "is missing"
            raise self.invalid(key, f"expected `{key}` or `{in_file}`; it {problem}", HIDDEN)
        path = self.path(in_file)
        if path is None:
            value = self.values[key]
            if not isinstance(value, str) or not value:
                raise self.invalid(key, "expected a text in quotes", HIDDEN)
            return value
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as failure:
            raise self.invalid(in_file, f"expected a file that can be read: {failure}") from failure
        if not text:
            raise self.invalid(in_file, "expected a file that is not empty")
        return text


def with_environment(
    values: Mapping[str, Any], prefix: str, environment: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values of a document overridden by variables, and the names of these variables.

    `PREFIX_HOME__BOOTSTRAP` sets `bootstrap` below `home`. A value is read as YAML, except for secrets, which
    are texts. An empty variable counts as unset.
    """
    merged = deepcopy(dict(values))
    used = []
    for variable, text in sorted(environment.items()):
        if not variable.startswith(prefix) or not text:
            continue
        *places, key = variable.removeprefix(prefix).lower().split("__")
        inner = merged
        for place in places:
            if not isinstance(inner.get(place), dict):
                inner[place] = {}
            inner = inner[place]
        try:
            inner[key] = text if key in SECRETS else yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise SettingsUnreadable(path=variable, reason=_without_content(error)) from error
        if key in SECRETS:
            inner.pop(f"{key}_file", None)
        elif key.endswith("_file"):
            inner.pop(key.removesuffix("_file"), None)
        used.append(variable)
    return merged, tuple(used)


def _within(value: int, at_least: int | None, at_most: int | None) -> bool:
    return (at_least is None or at_least <= value) and (at_most is None or value <= at_most)


def _range(at_least: int | None, at_most: int | None) -> str:
    if at_most is not None:
        return f" from {at_least} to {at_most}"
    return "" if at_least is None else f", {at_least} or more"
