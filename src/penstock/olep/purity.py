"""Detects a `decide` that is not a function of its arguments.

There are two checks. While a checked decision runs, a profile hook sees every call of a C function and
refuses clocks, randomness, object identity and I/O by name. And the decision is taken twice on the same
state: a difference, for example from a global counter, is refused too. The iteration order of a set of
strings passes both; a replay in a second process with another hash seed finds it (`penstock.olep.replay`).

A checked decision costs several times an unchecked one. So the executor checks the first events after each
start, then one offset in `CHECKED_EVERY`. It chooses by offset, so that a replay checks the same ones.
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

CHECKED_FIRST: Final = 64  # events after each start
CHECKED_EVERY: Final = 1024  # offsets

_MODULES: Final = frozenset(
    {
        "_asyncio", "_ctypes", "_io", "_posixsubprocess", "_queue", "_random", "_socket", "_sqlite3", "_ssl",
        "_thread", "_uuid", "fcntl", "io", "mmap", "nt", "posix", "select", "signal", "sqlite3", "time",
    }
)  # fmt: skip
_BUILTINS: Final = frozenset({"id", "input", "open", "print", "__import__", "exec", "eval", "globals"})
_DATETIME: Final = frozenset({"now", "today", "utcnow", "fromtimestamp"})


_SEQUENCES: Final = frozenset({tuple, list})


class Impurity(BaseException):
    """A BaseException, so that an `except Exception` in `decide` does not catch it."""

    def __init__(self, call: str, where: str) -> None:
        super().__init__(call)
        self.call = call
        self.where = where


class StoreReads:
    """Set while `state.get` reads a row: the calls of a database driver are allowed."""

    in_progress = False


store_reads: Final = StoreReads()


def as_sequences(decision: Decision) -> Decision:
    """The decision with generators and other iterables read, which may raise what they raise."""
    effects, emits = decision
    if effects.__class__ not in _SEQUENCES:
        effects = [*effects]
    if emits.__class__ not in _SEQUENCES:
        emits = [*emits]
    return effects, emits


def decide_checked(application: Application, state: State, event: Event) -> Decision:
    """Takes the decision twice, under observation. Raises DecideImpure, or what `decide` raises."""
    first = _decide_observed(application, state, event)
    second = _decide_observed(application, state, event)
    if [*map(list, first)] != [*map(list, second)]:
        where = f"offset {event.offset}"
        raise DecideImpure(
            application=application.name,
            reason="two calls with the same arguments returned different decisions",
            where=where,
        )
    return first


def _decide_observed(application: Application, state: State, event: Event) -> Decision:
    if sys.getprofile() is not None:
        return as_sequences(
            application.decide(state, event)
        )  # a profiler is active, and there can be only one
    armed = True

    def check_call(frame: FrameType, kind: str, called: Any) -> None:
        # The hook stays set while the exception propagates; `armed` exempts our own calls.
        nonlocal armed
        if (
            kind != "c_call"
            or not armed
            or store_reads.in_progress
            or frame.f_globals.get("__name__", "").startswith(_OURS)
        ):
            return
        if (name := _refused(called)) is not None:
            armed = False
            where = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
            raise Impurity(name, where)

    # A garbage collection during a decision would run unrelated callbacks.
    collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(check_call)
    try:
        return as_sequences(application.decide(state, event))
    except Impurity as impurity:
        raise DecideImpure(
            application=application.name, reason=f"it calls {impurity.call}", where=impurity.where
        ) from None
    finally:
        sys.setprofile(None)
        if collecting:
            gc.enable()


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
