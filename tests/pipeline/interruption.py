"""Failures injected at fault points in this process, which a test then resumes from."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.model import fault_points

if TYPE_CHECKING:
    from collections.abc import Iterator


class Injected(Exception):
    """The failure of a test."""


@contextmanager
def interrupted(point: str, arrival: int = 1) -> Iterator[None]:
    """The block fails when it reaches a fault point for the n-th time; it must reach it."""
    assert point in fault_points.points("pipeline")
    arrivals = itertools.count(1)

    def reach(reached: str) -> None:
        if reached == point and next(arrivals) == arrival:
            raise Injected(point)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fault_points, "reach", reach)
        with pytest.raises(Injected, match=point):
            yield
