"""Compares the committed offsets of groups with the logs they refer to.

A round reads the offsets of every group, some in each cycle. It is judged by log starts from before it and
log ends from after it, so that no offset that was legal when it was read is reported. What a round finds is
reported if the next one finds it too. These are no losses, and are left out:

  - An offset that this log never had: of an earlier topic of the same name, or made up by a client.
  - An offset behind the start of the log, of a group without members: what it has not read expired legally.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import structlog

from penstock.kafka.admin import group_offsets, groups
from penstock.kafka.admin.groups import GroupType
from penstock.model import key_names
from penstock.model.durability import UNKNOWN, Group, partition_subject
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.audit.metadata_history import MetadataHistory, Observation
    from penstock.audit.sweep import Key, LogRange, Sweeper
    from penstock.kafka.admin.groups import GroupListing
    from penstock.kafka.client import Client

ROUND_SECONDS: Final = 60.0
GROUPS_PER_CYCLE: Final = 50
GROUPS_MAX: Final = 10_000  # read in a round
WITHOUT_MEMBERS: Final = frozenset(("", "Empty", "Dead"))

log = structlog.get_logger("penstock.audit")

Place = tuple[str, "Key"]  # a group, and a partition it has committed an offset of


@dataclass(frozen=True, slots=True)
class Commit:
    offset: int
    has_members: bool


class Problem(StrEnum):
    BEHIND = "behind"  # the log starts later
    BEYOND = "beyond"  # the log ends earlier
    FELL = "fell"


@dataclass(slots=True)
class GroupWatch:
    """What is remembered of groups between rounds. No I/O."""

    ends: dict[Key, int] = field(default_factory=dict)  # the highest end each log has had
    offsets: dict[Place, int] = field(default_factory=dict)  # the last one without a problem
    problems: dict[Place, Problem] = field(default_factory=dict)  # of the last round
    reported: set[Place] = field(default_factory=set)

    def judge(
        self,
        commits: Mapping[Place, Commit],
        before: Mapping[Key, LogRange],
        after: Mapping[Key, LogRange],
    ) -> list[Observation]:
        """One round of commits; ranges of the logs from before and after they were read."""
        for key, range_ in (*before.items(), *after.items()):
            self.ends[key] = max(self.ends.get(key, 0), range_.end)
        self.ends = {key: end for key, end in self.ends.items() if key in after}
        observations: list[Observation] = []
        problems: dict[Place, Problem] = {}
        offsets: dict[Place, int] = {}
        for place, commit in commits.items():
            group, key = place
            if key not in before or key not in after or commit.offset > self.ends[key]:
                continue
            last = self.offsets.get(place, UNKNOWN)
            problem = _problem(commit, before[key], after[key], last)
            if problem is None:
                offsets[place] = commit.offset
                continue
            offsets[place] = last
            problems[place] = problem
            if self.problems.get(place) is not problem or place in self.reported:
                continue
            facts = Group(group, commit.offset, last, before[key].start, after[key].end)
            observations.append((partition_subject(*key), facts))
            self.reported.add(place)
            if problem is Problem.FELL:  # it is where the group is now
                offsets[place] = commit.offset
                del problems[place]
        self.offsets, self.problems = offsets, problems
        self.reported &= problems.keys()
        return observations


def _problem(commit: Commit, before: LogRange, after: LogRange, last: int) -> Problem | None:
    if commit.offset > after.end:
        return Problem.BEYOND
    if commit.offset < before.start:
        return Problem.BEHIND if commit.has_members else None
    return Problem.FELL if commit.offset < last else None


@dataclass(slots=True)
class GroupCollector:
    """Reads rounds of commits. A group that cannot be read is left out of its round."""

    watch: GroupWatch = field(default_factory=GroupWatch)
    _due: list[GroupListing] = field(default_factory=list)
    _commits: dict[Place, Commit] = field(default_factory=dict)
    _before: Mapping[Key, LogRange] = field(default_factory=dict)
    _sweep: int | None = None  # the last one before the round was complete; None: it is not
    _began_at: float = float("-inf")

    async def collect(
        self, client: Client, history: MetadataHistory, sweeper: Sweeper, now: float
    ) -> list[Observation]:
        """A step of a round, and what became certain by it."""
        if self._due:
            await self._read_some(client, history, sweeper)
        elif self._sweep is not None and sweeper.sweeps > self._sweep:
            self._sweep = None
            return self.watch.judge(self._commits, self._before, sweeper.ranges)
        elif self._sweep is None and sweeper.sweeps and now - self._began_at >= ROUND_SECONDS:
            self._began_at = now
            await self._begin(client, sweeper)
        return []

    async def _begin(self, client: Client, sweeper: Sweeper) -> None:
        try:
            listed = await groups.list_all(client)
        except PenstockError as failure:
            log.warning("groups not listed", **{key_names.ERROR: str(failure)})
            return
        due = [one for _, one in sorted(listed.items()) if one.type is not GroupType.SHARE]
        if len(due) > GROUPS_MAX:
            log.warning("groups not audited", groups=len(due) - GROUPS_MAX)
        self._due = due[:GROUPS_MAX]
        self._commits, self._before = {}, sweeper.ranges

    async def _read_some(self, client: Client, history: MetadataHistory, sweeper: Sweeper) -> None:
        some, self._due = self._due[:GROUPS_PER_CYCLE], self._due[GROUPS_PER_CYCLE:]
        ids = {name: topic_id for topic_id, name in history.names.items()}
        for read in await asyncio.gather(*(_read(client, one, ids) for one in some)):
            self._commits |= read
        if not self._due:
            self._sweep = sweeper.sweeps


async def _read(client: Client, group: GroupListing, ids: Mapping[str, str]) -> dict[Place, Commit]:
    try:
        committed = await group_offsets.committed(client, group.id)
    except PenstockError as failure:
        log.info("group not read", group=group.id, **{key_names.ERROR: str(failure)})
        return {}
    has_members = group.state not in WITHOUT_MEMBERS
    return {
        (group.id, (ids[place.topic], place.partition)): Commit(one.offset, has_members)
        for place, one in committed.items()
        if place.topic in ids
    }
