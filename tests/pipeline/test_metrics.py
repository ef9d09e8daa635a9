"""The metrics of jobs, as Prometheus scrapes them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from urllib.request import urlopen

from penstock.metrics_server import MetricsServer, page_of
from penstock.model.metric_catalogue import PIPELINE, PROCESS
from penstock.pipeline.metrics import JobsCollector
from penstock.pipeline.status import JobStatus, State, job_files, write_status
from penstock.process_identity import this_process
from tests.harness.metrics import differences

if TYPE_CHECKING:
    from pathlib import Path


def test_metrics_label_a_job_with_its_consumer_group(tmp_path: Path) -> None:
    here = this_process()
    status = JobStatus(
        "orders", State.RUNNING, here.pid, here.started, updated_ms=1_700_000_000_500, records=7, lag=3
    )
    write_status(job_files(tmp_path, "orders"), status)
    write_status(job_files(tmp_path, "audit"), JobStatus("audit", State.FAILED, rejected=2))

    with (
        closing(MetricsServer(page_of(JobsCollector(tmp_path)), "127.0.0.1", 0)) as server,
        urlopen(f"http://127.0.0.1:{server.port}/metrics") as response,
    ):
        page = response.read().decode()
    lines = set(page.splitlines())
    assert differences(page, PROCESS, PIPELINE) == []

    orders, audit = '{group="penstock-pipeline-orders"}', '{group="penstock-pipeline-audit"}'
    assert lines >= {
        f"penstock_pipeline_running{orders} 1.0",
        f"penstock_pipeline_failed{orders} 0.0",
        f"penstock_pipeline_lag_offsets{orders} 3.0",
        f"penstock_pipeline_run_records{orders} 7.0",
        f"penstock_pipeline_updated_seconds{orders} 1.7000000005e+09",
        f"penstock_pipeline_failed{audit} 1.0",
        f"penstock_pipeline_run_rejected_records{audit} 2.0",
    }
    assert f"penstock_pipeline_lag_offsets{audit}" not in str(lines)  # not known yet
