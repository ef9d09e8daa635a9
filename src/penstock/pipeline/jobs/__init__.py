"""The platform's own jobs: metering, fleet SLO, audit and durability.

What it is: one declaration per job, with its pure transformations, and the reports made from their
tables.

What it is not: a tenant's topic-to-table jobs. Those are declared in the settings file.

What it promises: transformations are pure functions of data frames; refreshing them twice gives the same
table.

Modules:
  audit       operators' actions as a table
  durability  what happened to logs, and findings of the durability audit (Kora §4.6.3)
  invoices    exports usage per tenant as CSV, JSON or Parquet
  metering    gateway counters to usage per tenant, by hour and day
  slo         health probes to weekly latency and availability (Kora §4.4.2)
  slo_report  the weekly fleet SLO as a table and a plot
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.model.errors.pipeline import JobUnknown
from penstock.pipeline.jobs.audit import AUDIT
from penstock.pipeline.jobs.durability import DURABILITY
from penstock.pipeline.jobs.metering import METERING
from penstock.pipeline.jobs.slo import SLO

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.pipeline.job import Job
    from penstock.pipeline.settings import PipelineSettings

PLATFORM_JOBS: tuple[Job, ...] = (METERING, SLO, AUDIT, DURABILITY)


def all_jobs(settings: PipelineSettings) -> dict[str, Job]:
    """Jobs by name; a job in the settings replaces a platform job of the same name."""
    return {job.name: job for job in (*PLATFORM_JOBS, *settings.jobs)}


def with_topics(settings: PipelineSettings, topics: Iterable[str]) -> PipelineSettings:
    """The settings with a job for each topic that matches a pattern."""
    names = list(topics)
    matched = (job for pattern in settings.patterns for job in pattern.jobs(names))
    return replace(settings, jobs=(*settings.jobs, *matched))


def find_jobs(settings: PipelineSettings, name: str) -> list[Job]:
    """The job of this name, or the jobs of a pattern of this name."""
    jobs = all_jobs(settings)
    patterns = [pattern for pattern in settings.patterns if pattern.name == name]
    if name not in jobs and not patterns:
        raise JobUnknown(job=name, known=", ".join((*jobs, *(each.name for each in settings.patterns))))
    if name in jobs:
        return [jobs[name]]
    return [job for pattern in patterns for job in jobs.values() if job.name.startswith(f"{pattern.name}-")]


def find_job(settings: PipelineSettings, name: str) -> Job:
    jobs = find_jobs(settings, name)
    if len(jobs) != 1:
        raise JobUnknown(job=name, known=", ".join(all_jobs(settings)))
    return jobs[0]
