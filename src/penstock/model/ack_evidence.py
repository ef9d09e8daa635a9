"""Read the records of `_penstock.acks`: new ranges, and what evidence is missing.

`step` folds the records of one gateway incarnation into a `GatewayRun`. Records may repeat and arrive out of
order. Missing numbers are records that were lost or have not arrived yet. A run that is not `ended` was
killed or still runs, and may have acknowledged more after `until_ms` than its records show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.model.events import AckRange, AckRanges


@dataclass(frozen=True, slots=True)
class GatewayRun:
    """What is known of one incarnation of a gateway."""

    gateway: str
    incarnation: str
    next_sequence: int = 0
    missing: tuple[tuple[int, int], ...] = ()  # first and last number of each gap, both inclusive
    lost: int = 0  # ranges that the gateway itself reports as lost
    until_ms: int = 0  # its evidence reaches so far
    ended: bool = False

    @property
    def complete(self) -> bool:
        """Whether every acknowledged offset is in its records."""
        return self.ended and not self.missing and not self.lost


def step(run: GatewayRun | None, record: AckRanges) -> tuple[GatewayRun, tuple[AckRange, ...]]:
    """The run after this record, and the record's ranges; none if it is a duplicate."""
    run = run or GatewayRun(record.gateway, record.incarnation)
    number, missing = record.sequence, run.missing
    if number >= run.next_sequence:
        if number > run.next_sequence:
            missing = (*missing, (run.next_sequence, number - 1))
    elif any(first <= number <= last for first, last in missing):
        missing = tuple(_without(missing, number))
    else:
        return run, ()
    after = replace(
        run,
        next_sequence=max(run.next_sequence, number + 1),
        missing=missing,
        lost=max(run.lost, record.lost),
        until_ms=max(run.until_ms, record.time_ms),
        ended=run.ended or record.final,
    )
    return after, tuple(record)


def _without(gaps: tuple[tuple[int, int], ...], number: int) -> Iterator[tuple[int, int]]:
    for first, last in gaps:
        if not first <= number <= last:
            yield first, last
            continue
        if first < number:
            yield first, number - 1
        if number < last:
            yield number + 1, last
