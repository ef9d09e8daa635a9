"""What a step of an operation returns: the registry changes of its outcome, or when to try again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.control.registry import Change, Registry

Outcome = Callable[[Registry, int], tuple[Change, ...]]


@dataclass(frozen=True, slots=True)
class Pending:
    """Not done yet: try again after so many seconds."""

    seconds: float
    detail: str


def no_changes(registry: Registry, now_ms: int) -> tuple[Change, ...]:
    del registry, now_ms
    return ()
