"""What several commands parse or ask alike: key=value pairs, the user's own objects, confirmations."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from cyclopts import Parameter

from penstock.cli.output import plain, report
from penstock.model.errors.settings import SettingInvalid, UsageInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable

_T = TypeVar("_T")
_AGO: Final = re.compile(r"(\d+)([smhd])")
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


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
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask for confirmation.", negative="")]


def confirmed(consequence: str, *, yes: bool) -> bool:
    """Whether to carry out what cannot be undone: `--yes`, or typed at the terminal; else an error."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageInvalid(reason=f"not confirmed: {consequence.rstrip('.')}", way_out="Confirm with --yes.")
    report(f"{plain(consequence)} Type [bold]yes[/] to continue:")
    if input().strip() == "yes":
        return True
    report("nothing was changed")
    return False


def past_ms(text: str, flag: str) -> int:
    """A time in milliseconds: ISO 8601 (local time if it names no zone), or how long ago: 90s, 15m, 2h."""
    if match := _AGO.fullmatch(text):
        return int((time.time() - int(match[1]) * _UNIT_SECONDS[match[2]]) * 1000)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise SettingInvalid(
            where="flags", key=flag, value=text, expected="expected a time: 2026-01-31T12:00Z, 15m, 2h or 1d"
        ) from None


def duration_ms(text: str, flag: str) -> int:
    """How long, in milliseconds: 90s, 15m, 2h, 7d."""
    if match := _AGO.fullmatch(text):
        return int(match[1]) * _UNIT_SECONDS[match[2]] * 1000
    raise SettingInvalid(
        where="flags", key=flag, value=text, expected="expected a duration: 90s, 15m, 2h or 7d"
    )
