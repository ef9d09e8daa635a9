"""How a job is doing, as a small file beside its checkpoint: written whole or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock.fleet.layout import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class State(StrEnum):
    NEVER = "never"
    RUNNING = "running"
    IDLE = "idle"
    FAILED = "failed"
    ENDED = "ended"  # killed: it says that it runs, and no such process does


@dataclass(frozen=True, slots=True)
class JobStatus:
    job: str
    state: State = State.NEVER
    process: int = 0
    began_ms: int = 0
    updated_ms: int = 0
    batches: int = 0  # of the last run
    rows: int = 0  # records read in the last run
    rejected: int = 0
    behind: int | None = None  # offsets between the job and the end of its topic
    offsets: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Where a job's checkpoint and status lie."""

    root: Path

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def begin(self) -> Path:
        """The offsets at which the checkpoint's first batch begins."""
        return self.root / "begin.json"

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    @property
    def lock(self) -> Path:
        return self.root / "run.lock"


def job_files(state: Path, job: str) -> JobFiles:
    return JobFiles(state / job)


def write_status(files: JobFiles, status: JobStatus) -> None:
    files.root.mkdir(parents=True, exist_ok=True)
    write_atomically(files.status, json.dumps(asdict(status)))


def read_status(files: JobFiles, job: str) -> JobStatus:
    """The last word of the job. A job that was killed is told from one that runs."""
    try:
        values: dict[str, Any] = json.loads(files.status.read_text())
    except (OSError, ValueError):
        return JobStatus(job)
    known = {name: values[name] for name in JobStatus.__dataclass_fields__ if name in values}
    status = JobStatus(**{**known, "state": State(known.get("state", State.NEVER))})
    if status.state is State.RUNNING and not _runs(status.process):
        return JobStatus(**{**asdict(status), "state": State.ENDED})
    return status


def every_status(state: Path) -> list[JobStatus]:
    """Of all jobs that ever ran with this state directory, by their names."""
    found = sorted(state.glob("*/status.json"))
    return [read_status(JobFiles(path.parent), path.parent.name) for path in found]


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
