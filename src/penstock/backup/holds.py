"""Holds: what the sweeper must keep, as objects of the backup store.

A hold is one object, its release another: the store never overwrites. A name is used once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.backup.layout import HOLDS, RELEASED, canonical
from penstock.model.errors.backup import BackupMissing, CatalogueInvalid, ObjectExists
from penstock.tier.format import joined
from penstock.tier.sweep import Hold

if TYPE_CHECKING:
    from penstock.tier.store import Store


async def holds(store: Store, cluster: str) -> list[Hold]:
    """Those that are not released."""
    keys = {one.key async for one in store.list(joined(cluster, HOLDS))}
    result = []
    for key in sorted(key for key in keys if key.endswith(".json")):
        if key.removesuffix(".json") + RELEASED in keys:
            continue
        try:
            document = json.loads(await store.read(key))
            result.append(Hold(str(document["name"]), document["topic_id"]))
        except (ValueError, KeyError, TypeError) as failure:
            raise CatalogueInvalid(key=key, reason=str(failure) or repr(failure)) from failure
    return result


async def hold(store: Store, cluster: str, name: str, topic_id: str | None, at_ms: int) -> Hold:
    document = {"name": name, "topic_id": topic_id, "at_ms": at_ms}
    key = joined(cluster, HOLDS, f"{name}.json")
    await store.create(key, canonical(document))
    return Hold(name, topic_id)


async def release(store: Store, cluster: str, name: str, at_ms: int) -> None:
    """Raises if there is no such hold. Twice is harmless."""
    known = {one.key.rpartition("/")[2] async for one in store.list(joined(cluster, HOLDS))}
    if f"{name}.json" not in known:
        listed = ", ".join(sorted(one.removesuffix(".json") for one in known if one.endswith(".json")))
        raise BackupMissing(what=f"hold {name!r}", known=listed or "none")
    try:
        key = joined(cluster, HOLDS, f"{name}{RELEASED}")
        await store.create(key, canonical({"name": name, "at_ms": at_ms}))
    except ObjectExists:
        return
