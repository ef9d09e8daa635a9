"""How far each partition has been scrubbed, and what is due. Pure; stored in `_penstock.audit-state`."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX: Final = b"scrub:"  # of keys; subjects have a `/`, these do not


@dataclass(frozen=True, slots=True)
class Progress:
    """The latest pass over one partition. The time it began is its id."""

    began_ms: int
    next_offset: int
    finished: bool = False

    def to_bytes(self) -> bytes:
        return json.dumps(astuple(self)).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Progress:
        return cls(*json.loads(value))


def progress_key(topic_id: str, partition: int) -> bytes:
    return PREFIX + f"{topic_id}:{partition}".encode()


def is_due(progress: Progress | None, now_ms: int, within_ms: int) -> bool:
    """A pass that was interrupted continues; one that began longer than `within_ms` ago is repeated."""
    return progress is None or not progress.finished or now_ms - progress.began_ms >= within_ms


def in_order(due: Iterable[bytes], known: Mapping[bytes, Progress]) -> list[bytes]:
    """What was interrupted first, then what was never read, then the oldest pass."""

    def rank(key: bytes) -> tuple[int, int, bytes]:
        progress = known.get(key)
        if progress is None:
            return 1, 0, key
        return (2 if progress.finished else 0), progress.began_ms, key

    return sorted(due, key=rank)
