"""Catches a `decide` that is not a function of its arguments.

Two nets. While a watched decision runs, a profile hook sees every call of a C function, and the
clock, randomness, object identity and anything that touches the world outside are refused by
name. And the decision is taken twice on the same state: what differs, a counter in a global for
instance, is refused too. The order of a set of strings slips through both; that is what the
replay in a second process with another hash seed is for (`penstock.olep.replay`).

Watching costs several times the decision itself, so the runner watches the first events after
each start and then one offset in `WATCH_EVERY`: by offset and not by chance, so that a replay
watches the same ones.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.olep import DecideImpure

if TYPE_CHECKING:
    from types import FrameType

    from penstock.olep.application import Application, Decision, State
    from penstock.olep.event import Event

WATCH_FIRST: Final = 64  # events after each start
WATCH_EVERY: Final = 1024  # offsets

_MODULES: Final = frozenset(
    {
        "_asyncio", "_ctypes", "_io", "_posixsubprocess", "_queue", "_random", "_socket", "_sqlite3", "_ssl",
        "_thread", "_uuid", "fcntl", "io", "mmap", "nt", "posix", "select", "signal", "sqlite3", "time",
    }
)  # fmt: skip
_BUILTINS: Final = frozenset({"id", "input", "open", "print", "__import__", "exec", "eval", "globals"})
_DATETIME: Final = frozenset({"now", "today", "utcnow", "fromtimestamp"})


class Impurity(BaseException):
    """Leaves `decide` past any `except Exception` in it."""

    def __init__(self, call: str, where: str) -> None:
        super().__init__(call)
        self.call = call
        self.where = where


class StoreReads:
    """Set while a row is fetched for `state.get`: what a database driver does is not the decision's doing."""

    under_way = False


store_reads: Final = StoreReads()


def watched(application: Application, state: State, event: Event) -> Decision:
    """Takes the decision twice under watch. Raises DecideImpure, or whatever `decide` raises."""
    first = _watch(application, state, event)
    second = _watch(application, state, event)
    # A decision may hold any iterables; compare what they say.
    if ([*first[0]], [*first[1]]) != ([*second[0]], [*second[1]]):
        where = f"offset {event.offset}"
        raise DecideImpure(application=application.name, reason="it decided twice, differently", where=where)
    return first


def _watch(application: Application, state: State, event: Event) -> Decision:
    if sys.getprofile() is not None:
        return application.decide(state, event)  # a profiler is at work, and there is room for one
    armed = True

    def see(frame: FrameType, kind: str, called: Any) -> None:
        # The hook stays set while the exception travels; without this it would see our own calls.
        nonlocal armed
        if (
            kind != "c_call"
            or not armed
            or store_reads.under_way
            or frame.f_globals.get("__name__", "").startswith(_OURS)
        ):
            return
        if (name := _refused(called)) is not None:
            armed = False
            where = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
            raise Impurity(name, where)

    # A garbage collection in the middle of a decision runs other people's callbacks.
    collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(see)
    try:
        effects, events = application.decide(state, event)
    except Impurity as found:
        raise DecideImpure(
            application=application.name, reason=f"it calls {found.call}", where=found.where
        ) from None
    finally:
        sys.setprofile(None)
        if collecting:
            gc.enable()
    return effects, events


_OURS: Final = "penstock.olep."


def _refused(called: Any) -> str | None:
    owner = getattr(called, "__self__", None)
    module = getattr(called, "__module__", None) or getattr(type(owner), "__module__", None)
    name = getattr(called, "__name__", "")
    if module == "builtins" and (owner is None or getattr(owner, "__name__", "") == "builtins"):
        return name if name in _BUILTINS else None
    if module in _MODULES:
        return f"{module}.{name}"
    if isinstance(owner, type) and owner.__module__ == "datetime" and name in _DATETIME:
        return f"{owner.__name__}.{name}"
    owner_module = getattr(type(owner), "__module__", "")
    if owner_module in {"_random", "random", "_io", "_socket", "socket"}:
        return f"{type(owner).__name__}.{name}"
    return None
