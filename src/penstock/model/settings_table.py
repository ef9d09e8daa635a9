"""Every setting of a kind of file as a table: key, type, default, unit and meaning.

A reader takes the keys that it knows from the table, `penstock config` explains and prints settings by it,
and `docs/settings.md` is generated from it. A key is a path: `home.login.user`; `clusters[].name` in each
item of a list; `clusters.*.bootstrap` below names of your choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.model.settings_reader import HIDDEN, SECRETS, Section, read_mapping, with_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

REQUIRED: Final = "required"


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    type: str
    help: str
    default: object = None  # None: unset; REQUIRED: must be set
    unit: str = ""

    @property
    def shown_default(self) -> str:
        if self.default is None:
            return ""
        if isinstance(self.default, bool):
            return "true" if self.default else "false"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


@dataclass(frozen=True, slots=True)
class Origin:
    """A setting in force, and where its value comes from."""

    key: str
    value: object
    origin: str  # the file, a variable, or `default`


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """One kind of settings file."""

    kind: str  # also the usual name of the file: `control.yaml`
    used_by: str
    settings: tuple[Setting, ...]
    prefix: str = ""  # of variables that override the file; empty: none do
    may_be_empty: bool = False

    def keys(self, place: str = "") -> tuple[str, ...]:
        """The keys directly below a place, such as `home` or `clusters[]`."""
        start = f"{place}." if place else ""
        below = (each.key.removeprefix(start) for each in self.settings if each.key.startswith(start))
        return tuple(dict.fromkeys(key.split(".")[0].removesuffix("[]") for key in below))

    def root(
        self, path: Path, environment: Mapping[str, str], flags: Mapping[str, Any] | None = None
    ) -> Section:
        """The whole document: file < environment < flags."""
        values = read_mapping(path, may_be_empty=self.may_be_empty)
        variables: tuple[str, ...] = ()
        if self.prefix:
            values, variables = with_environment(values, self.prefix, environment)
        document = f"{path} with {', '.join(variables)}" if variables else str(path)
        return Section(document, values | dict(flags or {}), self.keys(), base=path.absolute().parent)

    def variable(self, setting: Setting) -> str:
        """The variable that overrides a setting; empty if only whole lists or mappings can be."""
        if not self.prefix or "[]." in setting.key or ".*" in setting.key:
            return ""
        return self.prefix + setting.key.removesuffix("[]").upper().replace(".", "__")

    def origins(self, path: Path, environment: Mapping[str, str]) -> list[Origin]:
        """Every setting in force with its origin; secrets are hidden."""
        section = self.root(path, environment)
        variables = {
            name.removeprefix(self.prefix).lower().replace("__", "."): name
            for name, text in environment.items()
            if self.prefix and name.startswith(self.prefix) and text
        }
        rows = [
            Origin(key, HIDDEN if _is_secret(key) else value, _origin(key, variables, path))
            for key, value in _leaves(section.values)
        ]
        given = {row.key for row in rows}
        return rows + [
            Origin(each.key, each.default, "default")
            for each in self.settings
            if each.key not in given and each.default not in (None, REQUIRED) and _is_plain(each.key)
        ]


def below(place: str, settings: Iterable[Setting]) -> tuple[Setting, ...]:
    """Settings that several places share, at one of them."""
    return tuple(replace(each, key=f"{place}.{each.key}") for each in settings)


def _is_plain(key: str) -> bool:
    return "[]" not in key and "*" not in key


def _is_secret(key: str) -> bool:
    return key.rpartition(".")[2] in SECRETS


def _origin(key: str, variables: Mapping[str, str], path: Path) -> str:
    for place, variable in variables.items():
        if key == place or key.startswith((f"{place}.", f"{place}[")):
            return variable
    return str(path)


def _leaves(values: Any, place: str = "") -> Iterator[tuple[str, object]]:
    """Each scalar of a document, with its path."""
    if isinstance(values, Mapping) and values:
        for key, value in values.items():
            yield from _leaves(value, f"{place}.{key}" if place else str(key))
    elif isinstance(values, list) and values:
        for index, value in enumerate(values):
            yield from _leaves(value, f"{place}[{index}]")
    else:
        yield place, values
