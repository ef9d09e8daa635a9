"""What a sampler needs of a cluster, as a protocol: `kafka_source` in production, a fake in tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.model.errors import PenstockError
    from penstock.scale.decision.values import GroupState, Log


class Position(NamedTuple):
    """A group's position in one partition."""

    offset: int  # the committed offset, or a share group's start offset
    completed_beyond: int = 0  # from the parallel consumer's offset map
    lag: int | None = None  # as Kafka reports it, for share groups


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One group, as its coordinator describes it."""

    state: GroupState
    members: int
    generation: int
    positions: Mapping[str, Mapping[int, Position]]  # by topic, by partition
    owners: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # member numbers, likewise

    @property
    def topics(self) -> set[str]:
        """The topics that the group has offsets in or reads now."""
        return {*self.positions, *self.owners}


class LagSource(Protocol):
    """Results leave out what does not exist, and have an error for what cannot be read.

    So a failure belongs to the group or topic that caused it, and the others are sampled.
    """

    async def groups(
        self, names: Collection[str], *, share: bool
    ) -> dict[str, GroupSnapshot | PenstockError]:
        """State, members and positions of these groups."""
        ...

    async def logs(self, topics: Collection[str]) -> dict[str, Log | PenstockError]:
        """Start and read-committed end of every partition of these topics."""
        ...

    async def markers(self, topic: str, partition: int, begin: int, end: int) -> int:
        """How many of the offsets from `begin` up to `end` are transaction markers."""
        ...
