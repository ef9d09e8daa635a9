"""The resume property: an operation that fails anywhere and is run again ends as if it had not failed.

Random events, failures at random arrivals at named fault points or in the code of a job, sometimes a lost
checkpoint; then repaired code. The result equals that of an undisturbed run.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from penstock.model import fault_points
from penstock.pipeline.lake.columns import OFFSET
from tests.pipeline.interruption import Injected
from tests.pipeline.operations import APPEND, OPERATIONS, prepare_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import DataFrame

    from tests.pipeline.conftest import PipelineHarness

SOAK_SECONDS = 600.0
FAILURES_MAX = 2


def interrupt_and_resume(
    operation: str,
    harness: PipelineHarness,
    topic: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    seen: Collection[str] = (),
) -> set[str]:
    """Checks the property for one example; returns the points where it failed, others than `seen` first."""
    chance = random.Random(seed)
    arrivals: list[str] = []
    failed: set[str] = set()
    fatal = ("", 0)  # the point, and the arrival at it

    def reach(point: str) -> None:
        arrivals.append(point)
        if (point, arrivals.count(point)) == fatal:
            raise Injected(point)

    clean = prepare_beside(operation, harness, topic, seed)
    monkeypatch.setattr(fault_points, "reach", reach)
    OPERATIONS[operation].run(clean, topic)
    reached = list(arrivals)
    for _ in range(chance.randint(1, FAILURES_MAX)):
        arrivals.clear()
        points = sorted(set(reached))
        point = chance.choice([each for each in points if each not in {*seen, *failed}] or points)
        fatal = point, chance.randint(1, reached.count(point))
        try:
            OPERATIONS[operation].run(harness, topic)
        except Exception:
            if (arrivals[-1], arrivals.count(arrivals[-1])) != fatal:
                raise
            failed.add(point)
        else:
            break  # what was left to do did not reach the point
        if chance.random() < 0.3:
            for checkpoint in harness.settings.state.glob("*/checkpoint"):
                shutil.rmtree(checkpoint)
    else:
        fatal = "", 0
        OPERATIONS[operation].run(harness, topic)

    about = f"{operation}, seed {seed}, failed at {failed}"
    assert OPERATIONS[operation].result(harness, topic) == OPERATIONS[operation].result(clean, topic), about
    return failed


# In every run, each job resumes from one failure in the test of its results.
@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_that_failed_at_a_fault_point_ends_as_if_it_had_not(
    harness: PipelineHarness,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
) -> None:
    topic = harness.make_topic(unique(operation))

    assert interrupt_and_resume(operation, harness, topic, sum(operation.encode()), monkeypatch)


@pytest.mark.spark
def test_a_job_whose_code_failed_in_the_middle_continues_with_repaired_code(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    topic = harness.make_topic(unique("orders"), partitions=1)
    harness.send(topic, [json.dumps({"id": n, "note": "x"}).encode() for n in range(200)])
    job = replace(APPEND, source=replace(APPEND.source, topic=topic))

    def broken(rows: DataFrame) -> DataFrame:
        return rows.filter(F.when(F.col(OFFSET) == 150, F.raise_error(F.lit("a bug"))).otherwise(True))

    with pytest.raises(Exception, match="a bug"):
        harness.run(replace(job, transform=broken))
    assert len(harness.rows("shop.orders")) == 120  # the first batch

    harness.run(job)

    assert sorted(harness.rows("shop.orders", "id", OFFSET)) == [(n, n) for n in range(200)]


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_any_operation_that_failed_anywhere_ends_as_if_it_had_not(
    harness: PipelineHarness, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    until = time.monotonic() + SOAK_SECONDS
    seen: set[str] = set()
    for example in itertools.count():
        seed = random.SystemRandom().randrange(1 << 32)
        operation = list(OPERATIONS)[example % len(OPERATIONS)]
        place = replace(harness, directory=harness.directory / str(example), sessions=[])
        place.directory.mkdir()
        topic = harness.make_topic(unique(operation))
        with monkeypatch.context() as patched:
            seen |= interrupt_and_resume(operation, place, topic, seed, patched, seen)
        shutil.rmtree(place.directory)
        if time.monotonic() > until and seen == set(fault_points.points("pipeline")):
            break
