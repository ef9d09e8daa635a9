"""One owner among several processes: whoever the single partition of a group is assigned to.

The partition stays where it is while that member is there (`membership`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kafka.membership import SESSION_SECONDS, Membership

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client


class Ownership(Membership):
    """`changed(True)` when it becomes the owner, `changed(False)` when it is that no more."""

    def __init__(
        self,
        client: Client,
        group: str,
        topic: str,
        *,
        changed: Callable[[bool], None],
        session_seconds: float = SESSION_SECONDS,
    ) -> None:
        super().__init__(
            client,
            group,
            topic,
            partitions=1,
            changed=lambda owned: changed(bool(owned)),
            session_seconds=session_seconds,
        )

    def holds(self) -> bool:
        """Whether we own as far as anybody can know without asking."""
        return bool(self.owned())
