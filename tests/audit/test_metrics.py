"""What the audit's metrics are computed from."""

from __future__ import annotations

from penstock.audit.metrics import scrub_age
from penstock.audit.rules.state import SubjectState
from penstock.model.durability import Scrubbed
from tests.audit.history import PLACEMENT


def partition(number: int, *runs: int) -> SubjectState:
    scrubs = tuple(Scrubbed("broker 1", 0, 9, "aa", run=run) for run in runs)
    return SubjectState("pkc-000000", f"partition/x/{number}", placement=PLACEMENT, scrubs=scrubs)


def test_the_age_is_that_of_the_partition_that_was_scrubbed_longest_ago() -> None:
    states = [partition(0), partition(1, 1000, 9000), partition(2, 5000)]

    assert scrub_age(states) == (1, 5000)
    assert scrub_age([partition(0), SubjectState("pkc-000000", "topic/orders")]) == (1, None)
