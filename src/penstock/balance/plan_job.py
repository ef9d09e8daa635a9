"""Jobs for the executor that come from lists of moves: a plan, and leaders that return to their brokers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.balance.executing import Status, Work
from penstock.balance.leader_return import can_return
from penstock.balance.plan_document import PlanProgress, PlanState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from penstock.balance.executing import Observation, Round, Standing
    from penstock.balance.plan_document import PlanDocument, PlanHeader, PlannedMove
    from penstock.model.errors import PenstockError


class PlanJob:
    """Runs a plan, cancels it, or undoes it, as its header demands. `header` may change meanwhile."""

    def __init__(self, document: PlanDocument, changed: Callable[[PlanJob], None] = lambda _: None) -> None:
        self.header = document.header
        self.dropped: dict[int, str] = dict(document.header.dropped_moves)
        self.progress = document.header.progress
        self._moves = document.moves
        self._changed = changed
        self._numbers: list[int] = []  # of the moves of the last work
        self._done: dict[int, int] = {}  # moves, and the bytes they copied
        self._undoing = False

    @property
    def rate(self) -> float:
        return self.header.rate

    @property
    def outcome(self) -> PlanHeader:
        """The header once the job has ended."""
        cancelled = self.header.state is PlanState.CANCELLING
        state = PlanState.CANCELLED if cancelled else PlanState.DONE
        progress = replace(self.progress, copying=0, waiting="")
        return replace(self.reported, state=state, progress=progress)

    @property
    def reported(self) -> PlanHeader:
        return replace(self.header.with_dropped(self.dropped), progress=self.progress)

    def topics(self) -> Collection[str]:
        return {self._moves[number].topic for number in self._open()}

    def owned(self) -> Mapping[str, Collection[int]]:
        owned: dict[str, set[int]] = {}
        for move in self._moves:
            owned.setdefault(move.topic, set()).add(move.partition)
        return owned

    def sized(self, seen: Observation) -> Collection[tuple[str, int]]:
        keys = ((self._moves[n].topic, self._moves[n].partition) for n in self._open())
        return [key for key in keys if key in seen.partitions and seen.partitions[key].reassigning]

    def work(self, seen: Observation) -> Work:
        del seen
        header = self.header
        cancelling = header.state is PlanState.CANCELLING
        if cancelling and header.roll_back and not self._undoing:
            self._undoing = True
            self._done.clear()
        self._numbers = self._open()
        moves = [self._moves[number] for number in self._numbers]
        if self._undoing:
            return Work([move.reversed for move in moves], undoing=True, take_over=header.take_over)
        return Work(moves, stopping=cancelling, take_over=header.take_over)

    def report(self, seen: Observation, standings: Sequence[Standing], round_: Round) -> None:
        copied = copying = 0
        for number, standing in zip(self._numbers, standings, strict=True):
            move = self._moves[number]
            if standing.status is Status.DONE:
                self._done[number] = move.bytes * len(move.adding)
            elif standing.status is Status.DROPPED:
                self.dropped[number] = standing.reason
            elif standing.status is Status.COPYING:
                copying += 1
                state = seen.partitions.get((move.topic, move.partition))
                copied += 0 if state is None else state.copied_bytes * len(state.adding)
        self.progress = PlanProgress(
            done=len(self._done),
            copying=copying,
            bytes_done=sum(self._done.values()) + copied,
            rate=self.rate * round_.memory.share,
            waiting=round_.waiting,
        )
        self._changed(self)

    def refused(self, key: tuple[str, int], error: PenstockError) -> None:
        for number in self._numbers:
            if (self._moves[number].topic, self._moves[number].partition) == key:
                self.dropped[number] = str(error)

    def _open(self) -> list[int]:
        return [n for n in range(len(self._moves)) if n not in self._done and n not in self.dropped]


class LeaderReturnJob:
    """Elects preferred leaders, and gives up those that cannot lead any more."""

    rate = 0.0

    def __init__(self, moves: Sequence[PlannedMove]) -> None:
        self._moves = moves

    def topics(self) -> Collection[str]:
        return {move.topic for move in self._moves}

    def owned(self) -> Mapping[str, Collection[int]]:
        """Nothing is copied, so nothing is throttled."""
        return {}

    def sized(self, seen: Observation) -> Collection[tuple[str, int]]:
        del seen
        return ()

    def work(self, seen: Observation) -> Work:
        self._moves = [move for move in self._moves if can_return(move, seen)]
        return Work(self._moves)

    def report(self, seen: Observation, standings: Sequence[Standing], round_: Round) -> None:
        del seen, round_
        self._moves = [m for m, each in zip(self._moves, standings, strict=True) if not each.ended]

    def refused(self, key: tuple[str, int], error: PenstockError) -> None:
        """Nothing is reassigned."""
