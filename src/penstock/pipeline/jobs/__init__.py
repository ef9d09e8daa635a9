"""The platform's own jobs, one module each; topics to tables are declared in the settings instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model.errors.pipeline import JobUnknown
from penstock.pipeline.jobs.audit import AUDIT
from penstock.pipeline.jobs.metering import METERING
from penstock.pipeline.jobs.slo import SLO

if TYPE_CHECKING:
    from penstock.pipeline.job import Job
    from penstock.pipeline.settings import PipelineSettings

PLATFORM_JOBS: tuple[Job, ...] = (METERING, SLO, AUDIT)


def all_jobs(settings: PipelineSettings) -> dict[str, Job]:
    """By name; a job of the settings takes the place of one of ours with the same name."""
    return {job.name: job for job in (*PLATFORM_JOBS, *settings.jobs)}


def find_job(settings: PipelineSettings, name: str) -> Job:
    jobs = all_jobs(settings)
    if name not in jobs:
        raise JobUnknown(job=name, known=", ".join(jobs))
    return jobs[name]
