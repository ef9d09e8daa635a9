"""When jobs are due, and running them then."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.pipeline import JobInvalid, SparkFailed
from penstock.pipeline.job import Job, Sink, Source, ValueFormat
from penstock.pipeline.schedule import (
    BACKOFF,
    LISTED_SECONDS,
    WAIT_SECONDS_MAX,
    Due,
    ListedJobs,
    PastRuns,
    SystemClock,
    plan,
    run_schedule,
)
from penstock.pipeline.status import JobStatus, State, job_files, read_status, write_status
from penstock.process_identity import this_process

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.model.errors import PenstockError


class FakeClock:
    """A clock that only waiting and running jobs advance; chosen jobs fail."""

    def __init__(self, takes: float = 5.0, failing: tuple[str, ...] = (), ends: float = 300.0) -> None:
        self.time = 1_000_000.0
        self.takes, self.failing, self.ends = takes, failing, self.time + ends
        self.started: list[tuple[str, float]] = []
        self.failures: list[tuple[str, str]] = []
        self.running = 0

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        assert 0 < seconds <= WAIT_SECONDS_MAX
        self.time += seconds

    def run(self, job: Job) -> None:
        assert self.running == 0, "two runs at once"
        self.running += 1
        self.started.append((job.name, self.time - 1_000_000.0))
        self.time += self.takes
        self.running -= 1
        if job.name in self.failing:
            raise SparkFailed(what=job.name, reason="as configured", log="")

    def failed(self, job: Job, error: PenstockError) -> None:
        self.failures.append((job.name, error.code))

    def schedule(self, jobs: list[Job], *, once: bool = False) -> bool:
        return run_schedule(
            jobs, self.run, clock=self, stopped=lambda: self.time >= self.ends, failed=self.failed, once=once
        )


def job(name: str, every: int | None) -> Job:
    return Job(name, "", Source("t", format=ValueFormat.RAW), Sink(f"x.{name}"), every_seconds=every)


def test_a_job_is_due_an_interval_after_its_last_run_or_now_if_it_never_ran() -> None:
    jobs = [job("a", 60), job("b", 10), job("c", None), job("d", 30)]

    due = plan(jobs, {"a": PastRuns(ended=100.0), "b": PastRuns(ended=120.0)}, now=125.0)

    assert due == [Due("d", 125.0), Due("b", 130.0), Due("a", 160.0)]


def test_a_failed_job_is_retried_with_back_off() -> None:
    waits = [
        plan([job("a", 86_400)], {"a": PastRuns(0.0, failures)}, now=0.0)[0].at for failures in range(1, 9)
    ]

    assert waits[:3] == [60.0, 120.0, 240.0]
    assert waits == sorted(waits)
    assert waits[-1] == BACKOFF.most_seconds


def test_a_running_job_without_a_process_was_killed(tmp_path: Path) -> None:
    files = job_files(tmp_path, "a")
    here = this_process()
    write_status(files, JobStatus("a", State.RUNNING, here.pid, here.started, records=7))
    alive = read_status(files, "a")
    values = json.loads(files.status.read_text())
    killed = []

    for other in ({"process": 2**22 + 1}, {"process_started": "before"}):  # the pid may have been reused
        files.status.write_text(json.dumps({**values, **other}))
        killed.append(read_status(files, "a"))

    assert alive.state is State.RUNNING
    assert [(each.state, each.records) for each in killed] == [(State.KILLED, 7)] * 2
    assert read_status(job_files(tmp_path, "b"), "b").state is State.NEVER


def test_a_schedule_runs_a_job_again_when_its_interval_is_over_and_never_two_at_once() -> None:
    clock = FakeClock(takes=5.0, ends=250.0)

    succeeded = clock.schedule([job("a", 100), job("b", 3), job("c", None)])

    assert succeeded
    assert [at for name, at in clock.started if name == "a"] == pytest.approx([0.0, 105.0, 210.0], abs=6.0)
    assert len([at for name, at in clock.started if name == "b"]) > 20  # it takes longer than its interval
    assert "c" not in dict(clock.started)


def test_a_failing_job_does_not_disturb_the_others() -> None:
    clock = FakeClock(takes=1.0, failing=("a",), ends=400.0)

    succeeded = clock.schedule([job("a", 10), job("b", 100)])

    assert not succeeded
    assert [at for name, at in clock.started if name == "a"] == [61.0 * n for n in range(7)]
    assert len([at for name, at in clock.started if name == "b"]) == 4
    assert clock.failures == [("a", "PEN-8002")] * 7


def test_a_job_with_a_defect_does_not_end_the_schedule_of_the_others() -> None:
    clock = FakeClock(takes=1.0, ends=100.0)

    def run(each: Job) -> None:
        clock.run(each)
        if each.name == "a":
            raise KeyError("partition")

    run_schedule(
        [job("a", 10), job("b", 30)],
        run,
        clock=clock,
        stopped=lambda: clock.time >= clock.ends,
        failed=clock.failed,
    )

    assert clock.failures == [("a", "PEN-8023")] * 2
    assert len([name for name, _ in clock.started if name == "b"]) == 4


def test_a_clock_that_is_set_back_delays_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    before = SystemClock().now()
    monkeypatch.setattr(time, "time", lambda: 0.0)

    assert SystemClock().now() >= before


def test_once_runs_every_job_one_time() -> None:
    clock = FakeClock(takes=1.0, failing=("a",))

    succeeded = clock.schedule([job("a", 1), job("b", 1), job("c", None)], once=True)

    assert not succeeded
    assert [name for name, _ in clock.started] == ["a", "b"]


def test_a_topic_that_appears_later_gets_its_job_and_an_unreachable_cluster_ends_none() -> None:
    clock = FakeClock(takes=1.0, ends=400.0)
    jobs = [job("a", 100)]

    def list_jobs() -> list[Job]:
        if clock.time > 1_000_000.0 + 2 * LISTED_SECONDS:
            raise SparkFailed(what="the cluster", reason="unreachable", log="")
        if clock.time >= 1_000_000.0 + LISTED_SECONDS:
            return [*jobs, job("b", 100)]
        return jobs

    run_schedule(
        ListedJobs(list_jobs, clock),
        clock.run,
        clock=clock,
        stopped=lambda: clock.time >= clock.ends,
        failed=clock.failed,
    )

    assert [name for name, _ in clock.started] == ["a", "b", "a", "b", "a", "b", "a", "b"]


def test_an_interval_of_zero_is_refused() -> None:
    with pytest.raises(JobInvalid, match="every_seconds"):
        job("a", 0)
