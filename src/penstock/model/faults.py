"""Named fault points: places where a test may end the process as a crash would.

A point is declared once, at import, with a sentence that says what is true there; the catalogue
of all points is what kill tests iterate over, so that a new one is covered without being listed
again. The environment arms them, read once at import:

    PENSTOCK_FAULT=olep.commit.before            kill -9 at the first arrival
    PENSTOCK_FAULT=olep.commit.before@3          at the third
    PENSTOCK_FAULT=olep.send.before@2!stop       SIGSTOP instead: a process that is paused, not dead

Several are separated by commas. Unarmed, `reach` is one dictionary look-up. A name that no point
has is an error when it is armed, since a kill test that kills nothing would pass for ever.
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
    """One armed point: how many arrivals are left, and the signal the process sends itself."""

    arrivals_left: int
    signal: signal.Signals


_points: dict[FaultPoint, str] = {}


def declare(name: str, holds: str) -> FaultPoint:
    """Adds a point to the catalogue; `holds` says what is true when a process dies there."""
    point = FaultPoint(name)
    if _points.get(point, holds) != holds:
        raise ValueError(f"the fault point {name} is declared twice")
    _points[point] = holds
    return point


def points(area: str) -> dict[FaultPoint, str]:
    """The declared points of an area, `olep` for instance, in order of their names."""
    return {point: holds for point, holds in sorted(_points.items()) if point.startswith(f"{area}.")}


def parse(setting: str) -> dict[FaultPoint, Armed]:
    """`name[@arrival][!kill|!stop]`, comma-separated."""
    armed: dict[FaultPoint, Armed] = {}
    for item in filter(None, (part.strip() for part in setting.split(","))):
        where, _, action = item.partition("!")
        name, _, arrival = where.partition("@")
        if (action or "kill") not in _SIGNALS or (arrival and not (arrival.isdecimal() and int(arrival))):
            raise SettingInvalid(
                where="environment",
                key=FAULT_VARIABLE,
                value=setting,
                expected="expected name[@n][!kill|!stop]",
            )
        armed[FaultPoint(name)] = Armed(int(arrival or 1), _SIGNALS[action or "kill"])
    return armed


def check_armed() -> None:
    """Raises for an armed name that no imported module declared. Processes under test call it."""
    for name in _armed:
        if name not in _points:
            raise SettingInvalid(
                where="environment",
                key=FAULT_VARIABLE,
                value=name,
                expected=f"expected one of {sorted(_points)}",
            )


def reach(point: FaultPoint) -> None:
    """Dies here if the environment says so."""
    if point in _armed:
        _strike(_armed[point])


def is_armed(point: FaultPoint) -> bool:
    """For a point that needs something arranged before it, which would cost too much otherwise."""
    return point in _armed


def _strike(armed: Armed) -> None:
    armed.arrivals_left -= 1
    if armed.arrivals_left == 0:
        os.kill(os.getpid(), armed.signal)


_armed: dict[FaultPoint, Armed] = parse(os.environ.get(FAULT_VARIABLE, ""))
