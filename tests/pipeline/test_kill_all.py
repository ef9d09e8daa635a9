"""Every operation killed half-way and run again gives the result of an undisturbed run."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from penstock.model import fault_points
from tests.pipeline.operations import OPERATIONS, command, environment, run_beside

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.processes import Processes
    from tests.pipeline.conftest import PipelineHarness

KILLED_SECONDS_MAX = 600.0

CASES = [
    ("append", "pipeline.batch.started@2"),
    ("append", "pipeline.rejected.committed@2"),
    ("append", "pipeline.commit.staged@2"),
    ("upsert", "pipeline.batch.started@2"),
    ("upsert", "pipeline.table.committed@2"),
    ("metering", "pipeline.table.committed@2"),
    ("metering", "pipeline.derived.refresh-started@2"),  # the hourly table is refreshed, the daily one is not
    ("metering", "pipeline.derived.rollup-started@1"),
    ("slo", "pipeline.rejected.committed@1"),
    ("slo", "pipeline.derived.refresh-started@1"),
    ("durability", "pipeline.table.committed@2"),
    ("durability", "pipeline.derived.refresh-started@1"),
    ("rebuild", "pipeline.rebuild.folded@2"),
    ("rebuild", "pipeline.rebuild.stored@1"),
    ("rebuild", "pipeline.rebuild.task-discarded@1"),
    ("backfill", "pipeline.backfill.written@1"),
    ("maintain", "pipeline.maintain.compacted@1"),
    ("maintain", "pipeline.maintain.expired@1"),
]


def test_every_fault_point_and_every_operation_is_covered() -> None:
    points = {point.partition("@")[0] for _, point in CASES}

    assert points == set(fault_points.points("pipeline"))
    assert {operation for operation, _ in CASES} == set(OPERATIONS)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("operation", "point"), CASES)
def test_an_operation_killed_at_a_fault_point_and_run_again_gives_the_same_result(
    harness: PipelineHarness, unique: Callable[[str], str], processes: Processes, operation: str, point: str
) -> None:
    topic = harness.make_topic(unique(operation))
    clean = run_beside(operation, harness, topic)
    child = processes.start(
        command(operation, harness, topic), env=environment(PENSTOCK_FAULT=point), cwd=harness.directory
    )
    assert child.wait(KILLED_SECONDS_MAX) == -signal.SIGKILL

    OPERATIONS[operation].run(harness, topic)

    assert OPERATIONS[operation].result(harness, topic) == OPERATIONS[operation].result(clean, topic)
