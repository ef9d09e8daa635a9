"""Each thing the pipeline does, killed in its middle and done again: what is left equals a clean run."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from penstock.model import faults
from tests.pipeline.deeds import DEEDS, command, done_beside, environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.processes import Processes
    from tests.pipeline.conftest import Ground

KILLED_SECONDS_MAX = 600.0

CASES = [
    ("append", "pipeline.batch.begun@2"),
    ("append", "pipeline.rejected.committed@2"),
    ("upsert", "pipeline.batch.begun@2"),
    ("upsert", "pipeline.table.committed@2"),
    ("metering", "pipeline.table.committed@2"),
    ("metering", "pipeline.derive.begun@2"),  # by the hour it is made, by the day it is not
    ("slo", "pipeline.rejected.committed@1"),
    ("slo", "pipeline.derive.begun@1"),
    ("audit", "pipeline.table.committed@2"),
    ("audit", "pipeline.derive.begun@1"),
    ("rebuild", "pipeline.rebuild.folded@2"),
    ("rebuild", "pipeline.rebuild.stored@1"),
    ("rebuild", "pipeline.rebuild.forgotten@1"),
    ("backfill", "pipeline.backfill.put@1"),
    ("maintain", "pipeline.maintain.compacted@1"),
    ("maintain", "pipeline.maintain.expired@1"),
]


def test_every_point_of_the_pipeline_and_every_deed_is_killed() -> None:
    points = {point.partition("@")[0] for _, point in CASES}

    assert points == set(faults.points("pipeline"))
    assert {deed for deed, _ in CASES} == set(DEEDS)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("deed", "point"), CASES)
def test_what_is_killed_at_a_point_and_done_again_leaves_what_a_clean_run_leaves(
    ground: Ground, unique: Callable[[str], str], processes: Processes, deed: str, point: str
) -> None:
    topic = ground.make_topic(unique(deed))
    clean = done_beside(deed, ground, topic)
    child = processes.start(
        command(deed, ground, topic), env=environment(PENSTOCK_FAULT=point), cwd=ground.directory
    )
    assert child.wait(KILLED_SECONDS_MAX) == -signal.SIGKILL

    DEEDS[deed].carry_out(ground, topic)

    assert DEEDS[deed].left(ground, topic) == DEEDS[deed].left(clean, topic)
