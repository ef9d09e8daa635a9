"""Elect one owner among several processes: the one that is assigned a group's single partition.

The owner keeps the partition for as long as it stays in the group (see `membership`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kafka.membership import SESSION_SECONDS, GroupMembership

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client


class Ownership(GroupMembership):
    """Calls `changed(True)` when this process becomes the owner, `changed(False)` when it stops being it."""

    def __init__(
        self,
        client: Client,
        group: str,
        topic: str,
        *,
        changed: Callable[[bool], None],
        session_seconds: float = SESSION_SECONDS,
    ) -> None:
        def owned_changed(owned: frozenset[int]) -> None:
            changed(bool(owned))

        super().__init__(
            client, group, topic, partitions=1, changed=owned_changed, session_seconds=session_seconds
        )

    def is_owner(self) -> bool:
        """Whether this process is the owner; false if the last confirmation is too old."""
        return bool(self.owned())
