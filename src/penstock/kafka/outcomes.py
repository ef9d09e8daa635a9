"""Results of calls that ask for many things at once: each may fail on its own.

Such a call returns `{what: result or error}`; `all_done` is for callers to whom one failure is the
failure of the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from penstock.kafka.refusals import refusal
from penstock.model.errors import PenstockError
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from collections.abc import Mapping

K = TypeVar("K")
V = TypeVar("V")


def all_done(outcomes: Mapping[K, V | PenstockError]) -> dict[K, V]:
    """The results, or the first error raised."""
    done: dict[K, V] = {}
    for what, outcome in outcomes.items():
        if isinstance(outcome, PenstockError):
            raise outcome
        done[what] = outcome
    return done


def outcome(api: str, code: int, message: str | None, subject: str, result: V) -> V | PenstockError:
    """The result, or the error that the code stands for."""
    return result if code == Code.NONE else refusal(api, code, message, subject)
