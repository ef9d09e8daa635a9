"""What the sampler needs of a Kafka cluster: three questions, whoever answers them.

`kafka_source` answers from brokers. Tests and the simulator answer from memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.scale.values import GroupState, Log


class Position(NamedTuple):
    """Where a group is in one partition."""

    offset: int  # committed, or a share group's start
    beyond: int = 0  # completed past it, from the parallel consumer's offset map
    lag: int | None = None  # Kafka's own number, for share groups


@dataclass(frozen=True, slots=True)
class GroupLook:
    """One group, as its coordinator told it."""

    state: GroupState
    members: int
    generation: int
    positions: Mapping[str, Mapping[int, Position]]  # by topic, by partition
    owners: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # member number, likewise


class LagSource(Protocol):
    """Each answer leaves out what does not exist, has None for what cannot be told just now, and
    raises when the brokers cannot be seen at all."""

    async def groups(self, names: Collection[str], *, share: bool) -> dict[str, GroupLook | None]:
        """State, members and positions of these groups."""
        ...

    async def logs(self, topics: Collection[str]) -> dict[str, Log | None]:
        """Start and read-committed end of every partition of these topics."""
        ...

    async def markers(self, topic: str, partition: int, begin: int, end: int) -> int:
        """How many of the offsets from `begin` up to `end` are transaction markers."""
        ...

    async def close(self) -> None: ...
