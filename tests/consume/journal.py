"""Read the journal that test members write, and check it for repeats and order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Line:
    what: str
    pid: int
    partition: int
    offset: int
    key: str
    value: str


def lines(path: Path) -> list[Line]:
    if not path.exists():
        return []
    parsed = []
    # A write across a page boundary of the file may be visible in part: the last line may be incomplete.
    for text in path.read_text().split("\n")[:-1]:
        what, pid, partition, offset, key, value = text.split(" ")
        parsed.append(Line(what, int(pid), int(partition), int(offset), key, value))
    return parsed


def ended(journal: list[Line]) -> set[str]:
    return {line.value for line in journal if line.what == "end"}


def repeats(journal: list[Line]) -> int:
    """How many times a record was started after it had been started before."""
    starts = [line.value for line in journal if line.what == "start"]
    return len(starts) - len(set(starts))


def order_breaches(journal: list[Line]) -> list[str]:
    """Records that started before their predecessor of the same key ended, or beside it in one member."""
    breaches = []
    highest_ended: dict[tuple[int, str], int] = defaultdict(lambda: -1)
    earlier: dict[tuple[int, str], list[int]] = defaultdict(list)
    for line in journal:
        if line.what == "start":
            earlier[line.partition, line.key].append(line.offset)
    known = {key: sorted(set(offsets)) for key, offsets in earlier.items()}
    running: dict[tuple[int, int, str], int] = {}
    for line in journal:
        key = (line.partition, line.key)
        in_member = (line.pid, *key)
        if line.what == "start":
            before = [offset for offset in known[key] if offset < line.offset]
            if before and highest_ended[key] < before[-1]:
                breaches.append(f"{line} started before {before[-1]} had ended")
            if in_member in running:
                breaches.append(f"{line} started while {running[in_member]} ran in the same member")
            running[in_member] = line.offset
        else:
            running.pop(in_member, None)
            highest_ended[key] = max(highest_ended[key], line.offset)
    return breaches
