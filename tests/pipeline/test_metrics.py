"""What a scraper sees of jobs: their last words."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.request import urlopen

from penstock.cli.metrics import serving
from penstock.pipeline.metrics import JobsCollector
from penstock.pipeline.status import JobStatus, State, job_files, write_status

if TYPE_CHECKING:
    from pathlib import Path


def test_jobs_are_scraped_by_the_group_that_shows_their_lag(tmp_path: Path) -> None:
    said = JobStatus("orders", State.RUNNING, os.getpid(), updated_ms=1_700_000_000_500, rows=7, behind=3)
    write_status(job_files(tmp_path, "orders"), said)
    write_status(job_files(tmp_path, "audit"), JobStatus("audit", State.FAILED, rejected=2))

    with (
        serving(JobsCollector(tmp_path), "127.0.0.1", 0) as port,
        urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        lines = set(answer.read().decode().splitlines())

    orders, audit = '{group="penstock-pipeline-orders"}', '{group="penstock-pipeline-audit"}'
    assert lines >= {
        f"penstock_pipeline_running{orders} 1.0",
        f"penstock_pipeline_failed{orders} 0.0",
        f"penstock_pipeline_behind_offsets{orders} 3.0",
        f"penstock_pipeline_run_records{orders} 7.0",
        f"penstock_pipeline_updated_seconds{orders} 1.7000000005e+09",
        f"penstock_pipeline_failed{audit} 1.0",
        f"penstock_pipeline_run_rejected_records{audit} 2.0",
    }
    assert f"penstock_pipeline_behind_offsets{audit}" not in str(lines)  # nobody knows yet
