"""Named fault points: places where a test can kill the process.

A point is declared once, at import, with a sentence on what holds there. Kill tests iterate over all
declared points, so a new one is covered without being listed again. The environment arms points and is
read once, at import:

    PENSTOCK_FAULT=olep.commit.before            kill -9 at the first arrival
    PENSTOCK_FAULT=olep.commit.before@3          at the third
    PENSTOCK_FAULT=olep.send.before@2!stop       SIGSTOP instead: the process is paused, not dead

Separate several by commas. Unarmed, `reach` is one dictionary look-up. Arming an unknown name is an error,
since a kill test that kills nothing would always pass.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Final, NewType

from penstock.model.errors.settings import SettingInvalid

FAULT_VARIABLE: Final = "PENSTOCK_FAULT"
_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

FaultPoint = NewType("FaultPoint", str)


@dataclass(slots=True)
class Armed:
    """How many arrivals are left at an armed point, and the signal the process then sends itself."""

    arrivals_left: int
    signal: signal.Signals


_points: dict[FaultPoint, str] = {}


def declare(name: str, holds: str) -> FaultPoint:
    """Add a point to the catalogue; `holds` states what is true when a process dies there."""
    point = FaultPoint(name)
    if _points.get(point, holds) != holds:
        raise ValueError(f"the fault point {name} is declared twice")
    _points[point] = holds
    return point


def points(area: str) -> dict[FaultPoint, str]:
    """The declared points of an area such as `olep`, sorted by name."""
    return {point: holds for point, holds in sorted(_points.items()) if point.startswith(f"{area}.")}


def parse(setting: str) -> dict[FaultPoint, Armed]:
    """`name[@arrival][!kill|!stop]`, comma-separated."""
    armed: dict[FaultPoint, Armed] = {}
    for item in filter(None, (part.strip() for part in setting.split(","))):
        name_and_arrival, _, action = item.partition("!")
        name, _, arrival = name_and_arrival.partition("@")
        if (action or "kill") not in _SIGNALS or (arrival and not (arrival.isdecimal() and int(arrival))):
            raise _invalid(setting, "expected name[@n][!kill|!stop]")
        armed[FaultPoint(name)] = Armed(int(arrival or 1), _SIGNALS[action or "kill"])
    return armed


def check_armed() -> None:
    """Raise if a name is armed that no imported module declares. Processes under test call it."""
    for name in _armed:
        if name not in _points:
            raise _invalid(name, f"expected one of {sorted(_points)}")


def reach(point: FaultPoint) -> None:
    """Kill or stop the process if this point is armed and due."""
    if point in _armed:
        _count_down(_armed[point])


def is_armed(point: FaultPoint) -> bool:
    """For a point that needs expensive preparation, which is skipped unless it is armed."""
    return point in _armed


def _invalid(value: str, expected: str) -> SettingInvalid:
    return SettingInvalid(where="environment", key=FAULT_VARIABLE, value=value, expected=expected)


def _count_down(armed: Armed) -> None:
    armed.arrivals_left -= 1
    if armed.arrivals_left == 0:
        os.kill(os.getpid(), armed.signal)


_armed: dict[FaultPoint, Armed] = parse(os.environ.get(FAULT_VARIABLE, ""))
