"""The headers of a dead letter: where the record came from, and why it failed.

They are added to the record's headers, under a common prefix, and removed when it is replayed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "penstock."
ORIGIN: Final = ("topic", "partition", "offset", "timestamp")

Headers = Iterable[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Failure:
    """Origin and cause of a dead letter."""

    topic: str
    partition: int
    offset: int
    cause: str
    message: str
    attempts: int
    group: str


def failure_headers(headers: Headers) -> dict[str, str]:
    """The headers added to a dead letter, without their prefix."""
    return {
        name.removeprefix(PREFIX): (value or b"").decode(errors="replace")
        for name, value in headers
        if name.startswith(PREFIX)
    }


def own_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    """The headers of the record as it was before it failed."""
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]


def failure_of(headers: Headers) -> Failure | None:
    """Origin and cause of a dead letter; None if the record is none."""
    stored = failure_headers(headers)
    try:
        return Failure(
            stored["topic"], int(stored["partition"]), int(stored["offset"]), stored.get("cause", ""),
            stored.get("message", ""), int(stored.get("attempts") or 0), stored.get("group", ""),
        )  # fmt: skip
    except (KeyError, ValueError):
        return None
