"""Reading what members wrote, and judging it."""

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
    found = []
    # A line that crosses a page of the file comes in two pieces: the last one may not be whole yet.
    for text in path.read_text().split("\n")[:-1]:
        what, pid, partition, offset, key, value = text.split(" ")
        found.append(Line(what, int(pid), int(partition), int(offset), key, value))
    return found


def ended(journal: list[Line]) -> set[str]:
    return {line.value for line in journal if line.what == "end"}


def repeats(journal: list[Line]) -> int:
    """How many times a record was started after it had been started before."""
    starts = [line.value for line in journal if line.what == "start"]
    return len(starts) - len(set(starts))


def order_breaches(journal: list[Line]) -> list[str]:
    """Records that started before an earlier one of their key had ended once, or beside it in one member."""
    breaches = []
    highest_ended: dict[tuple[int, str], int] = defaultdict(lambda: -1)
    earlier: dict[tuple[int, str], list[int]] = defaultdict(list)
    for line in journal:
        if line.what == "start":
            earlier[line.partition, line.key].append(line.offset)
    known = {lane: sorted(set(offsets)) for lane, offsets in earlier.items()}
    running: dict[tuple[int, int, str], int] = {}
    for line in journal:
        lane = (line.partition, line.key)
        mine = (line.pid, *lane)
        if line.what == "start":
            before = [offset for offset in known[lane] if offset < line.offset]
            if before and highest_ended[lane] < before[-1]:
                breaches.append(f"{line} started before {before[-1]} had ended")
            if mine in running:
                breaches.append(f"{line} started while {running[mine]} ran in the same member")
            running[mine] = line.offset
        else:
            running.pop(mine, None)
            highest_ended[lane] = max(highest_ended[lane], line.offset)
    return breaches
