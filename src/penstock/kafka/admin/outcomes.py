"""Results of calls about many items, each of which may fail.

Such a call returns `{item: result or error}`. Use `results_or_raise` where one failure is the failure of
the whole call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from penstock.kafka.broker_errors import broker_error
from penstock.model.errors import PenstockError
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Mapping

K = TypeVar("K")
V = TypeVar("V")


def results_or_raise(outcomes: Mapping[K, V | PenstockError]) -> dict[K, V]:
    """The results; raises the first error."""
    results: dict[K, V] = {}
    for item, outcome in outcomes.items():
        if isinstance(outcome, PenstockError):
            raise outcome
        results[item] = outcome
    return results


def outcome(api: str, code: int, message: str | None, subject: str, result: V) -> V | PenstockError:
    """The result, or the error for the code."""
    return result if code == Code.NONE else broker_error(api, code, message, subject)
