"""When jobs run: every so often, counted from the end of the run before, failures with patience."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.pipeline.job import Job

RETRY_SECONDS: Final = 60.0
RETRY_SECONDS_MAX: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Past:
    """How a job's last runs went."""

    ended: float  # seconds since 1970
    failures: int = 0  # in a row


@dataclass(frozen=True, slots=True)
class Due:
    job: str
    at: float


def plan(jobs: Iterable[Job], past: Mapping[str, Past], now: float) -> list[Due]:
    """Every job that has a rhythm, by when it is due; one that never ran is due now."""
    due = []
    for job in jobs:
        if job.every_seconds is None:
            continue
        last = past.get(job.name)
        if last is None:
            due.append(Due(job.name, now))
            continue
        wait = float(job.every_seconds)
        if last.failures:
            wait = min(
                RETRY_SECONDS * 2 ** min(last.failures - 1, 10), RETRY_SECONDS_MAX, max(wait, RETRY_SECONDS)
            )
        due.append(Due(job.name, last.ended + wait))
    return sorted(due, key=lambda each: (each.at, each.job))
