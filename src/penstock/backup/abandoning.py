"""Gives up a restore that cannot be completed. Until then no other one begins, and nothing is swept.

Its topic stays as it is: closed for writes, and without the shadow as far as real replicas have caught up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from penstock.backup.restore_store import RESTORE, RestoreStore
from penstock.kafka.admin import topics
from penstock.link import promotion
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.kafka.client import Client

log = structlog.get_logger()


async def abandon(client: Client, shadow: int) -> dict[str, Any] | None:
    """Give up the restore that is not complete; None if there is none. A process that still restores ends."""
    store = RestoreStore(client)
    if not await store.exists():
        return None
    await store.claim()
    running = store.running()
    if running is None:
        return None
    restore, document = running
    await store.put(f"{RESTORE}{restore}", document | {"abandoned": True})
    row = {"restore": restore, "topic": document["target"], "step": document["step"], "left": ""}
    described = (await topics.describe(client, [document["target"]]))[document["target"]]
    ours = not isinstance(described, PenstockError) and any(
        shadow in partition.replicas for partition in described.partitions
    )
    try:
        await promotion.remove_shadow(client, [document["target"]] if ours else [], shadow)
    except PenstockError as error:  # no real replica has caught up: only deleting the topic helps
        log.warning("shadow not removed", restore=restore, topic=document["target"], error=str(error))
        row["left"] = error.message
    return row
