"""When jobs are due."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from penstock.pipeline.job import Form, Job, Sink, Source
from penstock.pipeline.schedule import RETRY_SECONDS_MAX, Due, Past, plan
from penstock.pipeline.status import JobStatus, State, job_files, read_status, write_status

if TYPE_CHECKING:
    from pathlib import Path


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
