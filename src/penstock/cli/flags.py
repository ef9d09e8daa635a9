"""Flags that several commands parse alike: key=value pairs, and objects of the user's own modules."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from penstock.model.errors.settings import SettingInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable

_T = TypeVar("_T")


def key_values(pairs: Iterable[str], flag: str, *, where: str = "flags") -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise SettingInvalid(where=where, key=flag, value=pair, expected="expected key=value")
        values[key.strip()] = value
    return values


def import_object(name: str, kind: type[_T], flag: str) -> _T:
    """The object `module:name`; modules of the working directory are found, too."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        value = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingInvalid(
            where="flags", key=flag, value=name, expected=f"expected module:name ({error})"
        ) from error
    finally:
        sys.path.pop(0)
    if not isinstance(value, kind):
        raise SettingInvalid(where="flags", key=flag, value=name, expected=f"which is no {kind.__name__}")
    return value


Cluster = Annotated[
    str | None,
    Parameter(name=["--cluster", "-c"], help="Logical cluster, id or name.", show_default="the only one"),
]
