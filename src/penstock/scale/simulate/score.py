"""Score a result: scale events, flaps, replica-minutes, minutes above the objective."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from operator import add
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scale.simulate.run import Outcome

FLAP_SECONDS: Final = 600

Episode = tuple[int, int]  # (from, until), seconds of the trace


@dataclass(frozen=True, slots=True)
class Score:
    events: int  # changes of the replica count
    flaps: int  # changes that revert the previous one within FLAP_SECONDS
    replica_minutes: float
    late_minutes: float  # in which the oldest record waited longer than the objective
    reactions: tuple[float, ...]  # seconds from the start of each episode to its first scale-up

    def __add__(self, other: Score) -> Score:
        return Score(*map(add, astuple(self), astuple(other)))


NOTHING: Final = Score(0, 0, 0.0, 0.0, ())


def score(outcome: Outcome, objective: float, episodes: Sequence[Episode] = ()) -> Score:
    changes = np.diff(outcome.replicas)
    moments = np.flatnonzero(changes)
    flaps = 0
    for earlier, later in zip(moments[:-1].tolist(), moments[1:].tolist(), strict=True):
        turned = (changes[earlier] > 0) != (changes[later] > 0)
        flaps += bool(turned and later - earlier <= FLAP_SECONDS)
    return Score(
        len(moments),
        flaps,
        float(outcome.replicas.sum()) / 60,
        float((outcome.age > objective).sum()) / 60,
        tuple(_reaction(outcome, *episode) for episode in episodes),
    )


def pressure_episodes(untouched: Outcome, threshold: float, objective: float) -> list[Episode]:
    """Episodes in which scaling up is right, from a run without scaling.

    An episode starts when some partition's lag passes the threshold, if it then misses the objective
    before it falls back. A burst that drains by itself is none.
    """
    high = untouched.worst > threshold
    edges = np.flatnonzero(np.diff(np.concatenate([[False], high, [False]]).astype(np.int8))).tolist()
    stretches = zip(edges[::2], edges[1::2], strict=True)
    return [(begin, until) for begin, until in stretches if (untouched.age[begin:until] > objective).any()]


def _reaction(outcome: Outcome, begin: int, until: int) -> float:
    """Seconds until the first scale-up; 0 if already scaled above the initial count."""
    if outcome.replicas[begin] > outcome.trace.replicas:
        return 0.0
    raised = np.flatnonzero(np.diff(outcome.replicas[begin:until]) > 0)
    return float(raised[0]) if len(raised) else float(until - begin)
