"""The resume property: after any failure, repaired code ends where an undisturbed run ends."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.olep.resume import DEFECTS, POINTS, check_resumes

SOAK_SECONDS = 600


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_a_failure_at_any_point_changes_nothing_once_repaired_code_has_resumed(seed: int) -> None:
    check_resumes(seed)


def test_failures_cover_the_commit_the_sending_and_the_snapshots() -> None:
    areas = {point.split(".")[1] for point in POINTS}
    assert areas >= {"commit", "send", "sent", "snapshot"}
    assert len(DEFECTS) == len({defect.__name__ for defect in DEFECTS})


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_ten_minutes_of_failures_change_nothing_once_repaired_code_has_resumed() -> None:
    base = os.environ.get("PENSTOCK_SEED", str(time.time_ns()))
    end, number = time.monotonic() + SOAK_SECONDS, 0
    while time.monotonic() < end:
        check_resumes(f"{base}-{number}")
        number += 1
    print(f"{number} runs, seed {base}")
