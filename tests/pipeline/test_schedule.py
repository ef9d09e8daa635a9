"""When jobs are due, and that they are run when they are."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.pipeline import JobInvalid, SparkFailed
from penstock.pipeline.job import Form, Job, Sink, Source
from penstock.pipeline.schedule import RETRY_SECONDS_MAX, WAIT_SECONDS_MAX, Due, Past, keep_time, plan
from penstock.pipeline.status import JobStatus, State, job_files, read_status, write_status

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.model.errors import PenstockError


class Hours:
    """A clock that stands still until somebody waits or works; jobs that take time, and fail when told to."""

    def __init__(self, takes: float = 5.0, failing: tuple[str, ...] = (), ends: float = 300.0) -> None:
        self.time = 1_000_000.0
        self.takes, self.failing, self.ends = takes, failing, self.time + ends
        self.begun: list[tuple[str, float]] = []
        self.told: list[tuple[str, str]] = []
        self.running = 0

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        assert 0 < seconds <= WAIT_SECONDS_MAX
        self.time += seconds

    def run(self, job: Job) -> None:
        assert self.running == 0, "two runs at once"
        self.running += 1
        self.begun.append((job.name, self.time - 1_000_000.0))
        self.time += self.takes
        self.running -= 1
        if job.name in self.failing:
            raise SparkFailed(what=job.name, reason="told to", log="")

    def failed(self, job: Job, error: PenstockError) -> None:
        self.told.append((job.name, error.code))

    def keep(self, jobs: list[Job], *, once: bool = False) -> bool:
        return keep_time(
            jobs, self.run, clock=self, stopped=lambda: self.time >= self.ends, failed=self.failed, once=once
        )


def job(name: str, every: int | None) -> Job:
    return Job(name, "", Source("t", form=Form.RAW), Sink(f"x.{name}"), every_seconds=every)


def test_what_never_ran_is_due_now_and_the_rest_an_interval_after_it_ended() -> None:
    jobs = [job("a", 60), job("b", 10), job("c", None), job("d", 30)]

    due = plan(jobs, {"a": Past(ended=100.0), "b": Past(ended=120.0)}, now=125.0)

    assert due == [Due("d", 125.0), Due("b", 130.0), Due("a", 160.0)]


def test_a_job_that_fails_is_tried_again_with_growing_patience() -> None:
    waits = [plan([job("a", 86_400)], {"a": Past(0.0, failures)}, now=0.0)[0].at for failures in range(1, 9)]

    assert waits[:3] == [60.0, 120.0, 240.0]
    assert waits == sorted(waits)
    assert waits[-1] == RETRY_SECONDS_MAX


def test_a_job_that_says_it_runs_and_does_not_has_ended(tmp_path: Path) -> None:
    files = job_files(tmp_path, "a")
    write_status(files, JobStatus("a", State.RUNNING, process=os.getpid(), rows=7))
    alive = read_status(files, "a")
    values = json.loads(files.status.read_text())
    files.status.write_text(json.dumps({**values, "process": 2**22 + 1}))

    ended = read_status(files, "a")

    assert (alive.state, ended.state, ended.rows) == (State.RUNNING, State.ENDED, 7)
    assert read_status(job_files(tmp_path, "b"), "b").state is State.NEVER


def test_a_schedule_runs_a_job_again_when_its_interval_is_over_and_never_two_at_once() -> None:
    hours = Hours(takes=5.0, ends=250.0)

    well = hours.keep([job("a", 100), job("b", 3), job("c", None)])

    assert well
    assert [at for name, at in hours.begun if name == "a"] == pytest.approx([0.0, 105.0, 210.0], abs=6.0)
    assert (
        len([at for name, at in hours.begun if name == "b"]) > 20
    )  # longer than its rhythm, and still alone
    assert "c" not in dict(hours.begun)


def test_a_schedule_outlives_a_job_that_fails_and_the_others_keep_their_rhythm() -> None:
    hours = Hours(takes=1.0, failing=("a",), ends=400.0)

    well = hours.keep([job("a", 10), job("b", 100)])

    assert not well
    assert [at for name, at in hours.begun if name == "a"] == [61.0 * n for n in range(7)]
    assert len([at for name, at in hours.begun if name == "b"]) == 4
    assert hours.told == [("a", "PEN-8002")] * 7


def test_a_schedule_that_is_asked_to_runs_every_job_once() -> None:
    hours = Hours(takes=1.0, failing=("a",))

    well = hours.keep([job("a", 1), job("b", 1), job("c", None)], once=True)

    assert not well
    assert [name for name, _ in hours.begun] == ["a", "b"]


def test_a_rhythm_of_no_time_is_refused() -> None:
    with pytest.raises(JobInvalid, match="every_seconds"):
        job("a", 0)
