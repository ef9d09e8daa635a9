"""A job's status file, on the host that runs it, written atomically."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock.atomic_files import write_atomically
from penstock.process_identity import Identity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class State(StrEnum):
    NEVER = "never"
    RUNNING = "running"
    IDLE = "idle"
    FAILED = "failed"
    KILLED = "killed"  # the file has it running, but its process no longer exists


@dataclass(frozen=True, slots=True)
class JobStatus:
    job: str
    state: State = State.NEVER
    process: int = 0
    process_started: str = ""  # a pid alone is reused
    started_ms: int = 0
    updated_ms: int = 0
    batches: int = 0  # of the last run
    records: int = 0  # read in the last run
    rejected: int = 0
    lag: int | None = None  # offsets between the job's position and the end of its topic
    offsets: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None


class JobFiles:
    """Where a job keeps its checkpoint, status and lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoint = root / "checkpoint"
        self.status = root / "status.json"
        self.lock = root / "run.lock"


def job_files(state: Path, job: str) -> JobFiles:
    return JobFiles(state / job)


def write_status(files: JobFiles, status: JobStatus) -> None:
    files.root.mkdir(parents=True, exist_ok=True)
    write_atomically(files.status, json.dumps(asdict(status)))


def read_status(files: JobFiles, job: str) -> JobStatus:
    """The job's last status; a job whose process no longer exists is reported as killed."""
    try:
        values: dict[str, Any] = json.loads(files.status.read_text())
    except (OSError, ValueError):
        return JobStatus(job)
    known = {name: values[name] for name in JobStatus.__dataclass_fields__ if name in values}
    status = JobStatus(**{**known, "state": State(known.get("state", State.NEVER))})
    if status.state is State.RUNNING and not Identity(status.process, status.process_started).is_alive():
        return replace(status, state=State.KILLED)
    return status


def all_statuses(state: Path) -> list[JobStatus]:
    """The status of every job that ever ran with this state directory, ordered by name."""
    paths = sorted(state.glob("*/status.json"))
    return [read_status(JobFiles(path.parent), path.parent.name) for path in paths]
