"""What the command line does with links: create, list, request, wait."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.admin import acls, brokers, configs, topics
from penstock.kafka.admin.acls import AclFilter
from penstock.link.mirror_topics import check_names, matching
from penstock.link.placement import COPIES_MIN
from penstock.link.states import Action, State, next_state
from penstock.link.store import LinkStore
from penstock.model.errors import PenstockError
from penstock.model.errors.link import (
    AuthorizerMissing,
    BrokersTooFew,
    LinkExists,
    LinkNotRunning,
    LinkStateConflict,
    LinkUnknown,
    MirrorTopicInvalid,
    MirrorTopicTaken,
    NotTheOldSource,
    ShadowIdUsed,
)
from penstock.model.key_names import LINKS_TOPIC as LINKS
from penstock.model.shadow_ids import SHADOW_IDS, is_shadow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client

WAIT_SECONDS: Final = 300.0
POLL_SECONDS: Final = 0.3
TIERED: Final = "remote.storage.enable"


async def create(
    source: Client,
    brokers_client: Client,
    link: str,
    patterns: Sequence[str],
    *,
    follow_deletes: bool = False,
    hold_start: bool = False,
    shadow_id: int | None = None,
) -> None:
    """Check that a link is possible, and record it. `penstock link run` starts it."""
    check_names(patterns)
    real = await _usable_brokers(brokers_client)
    there = await topics.describe(source)
    here = await topics.describe(brokers_client)
    mirrors = {name for row in await links(source) if row["state"] != State.ACTIVE for name in row["topics"]}
    for name in matching(patterns, list(there)):
        if name in mirrors:
            raise MirrorTopicInvalid(topic=name, reason="it is a mirror there")
        if name in here:
            raise MirrorTopicTaken(topic=name)
    store = LinkStore(brokers_client)
    await store.ensure(real)
    await store.refresh()
    if f"definition/{link}" in store.documents:
        raise LinkExists(link=link)
    await _forget(store, link)  # a process may have written its state once more after the link was deleted
    definition = {
        "topics": list(patterns),
        "follow_deletes": follow_deletes,
        "hold_start": hold_start,
        "shadow_id": await _free_shadow_id(brokers_client, store, shadow_id),
        "at_ms": int(time.time() * 1000),
    }
    await store.put(f"definition/{link}", definition)


async def reverse(
    active: Client, old_source: Client, link: str, *, shadow_id: int | None = None
) -> dict[str, Any]:
    """Check that an active link can be reversed, and record the link back on its old source.

    It has the same name. One from an earlier reversal is replaced: its lineage is part of the active one."""
    there = LinkStore(active)
    before = await show(active, link)
    if State(before["state"]) is not State.ACTIVE:
        raise LinkStateConflict(
            link=link, state=before["state"], action="reverse", possible="failover, promote"
        )
    await there.refresh()
    status = there.documents[f"status/{link}"]
    cluster, active_cluster = (await old_source.cluster()).id, (await active.cluster()).id
    if status["source_cluster"] != cluster:
        raise NotTheOldSource(link=link, cluster=cluster, source=status["source_cluster"])
    real = await _usable_brokers(old_source)
    await _check_reversible(active, old_source, status["topics"])
    store = LinkStore(old_source)
    await store.ensure(real)
    await store.refresh()
    if f"definition/{link}" in store.documents:
        earlier = store.documents.get(f"status/{link}", {})
        if earlier.get("state") != State.ACTIVE or earlier.get("source_cluster") != active_cluster:
            raise LinkExists(link=link)
        await delete(old_source, link)
        await store.refresh()
    definition = there.documents[f"definition/{link}"]
    await store.put(
        f"definition/{link}",
        {
            "topics": definition["topics"],
            "follow_deletes": definition.get("follow_deletes", False),
            "hold_start": definition.get("hold_start", False),
            "shadow_id": await _free_shadow_id(old_source, store, shadow_id),
            "at_ms": int(time.time() * 1000),
            "reverses": {"topics": sorted(status["topics"])},
        },
    )
    return await show(old_source, link)


async def _check_reversible(active: Client, old_source: Client, mirrored: Mapping[str, str]) -> None:
    """Each topic is the one that was mirrored, on both sides, and can be a mirror."""
    names = list(mirrored)
    here, there = await topics.describe(old_source, names), await topics.describe(active, names)
    resources = [configs.topic(name) for name in names]
    described = await configs.describe(old_source, resources, names=[TIERED])
    for name, resource in zip(names, resources, strict=True):
        old, new, entries = here[name], there[name], described[resource]
        if isinstance(old, PenstockError) or str(old.id) != mirrored[name]:
            reason = "it was deleted on the old source, or created again; delete it there and create a link"
            raise MirrorTopicInvalid(topic=name, reason=reason)
        if isinstance(new, PenstockError):
            raise MirrorTopicInvalid(topic=name, reason="it was deleted on the active side")
        if len(old.partitions) > len(new.partitions):
            reason = (
                f"the old source has {len(old.partitions)} partitions, the active side {len(new.partitions)}"
            )
            raise MirrorTopicInvalid(topic=name, reason=reason)
        if not isinstance(entries, PenstockError) and TIERED in entries and entries[TIERED].value == "true":
            raise MirrorTopicInvalid(topic=name, reason="it is tiered on the old source, and mirrors are not")


async def _usable_brokers(client: Client) -> list[int]:
    """The real brokers of a destination; raises if it cannot have mirrors."""
    registered = await brokers.describe(client)
    real = sorted(broker for broker in registered.brokers if not is_shadow(broker))
    if len(real) < COPIES_MIN:
        raise BrokersTooFew(count=len(real), needed=COPIES_MIN)
    try:
        await acls.describe(client, AclFilter())
    except PenstockError as error:
        raise AuthorizerMissing(reason=error.message) from error
    return real


async def _free_shadow_id(client: Client, store: LinkStore, requested: int | None) -> int:
    """The requested broker id, or the first one that no other link and no registered shadow has."""
    used = {one.get("shadow_id", SHADOW_IDS[0]): name for name, one in store.named("definition").items()}
    if requested is not None:
        if requested in used:
            raise ShadowIdUsed(broker=requested, link=used[requested])
        return requested
    registered = await brokers.describe(client, fenced=True, shadows=True)
    free = (one for one in SHADOW_IDS if one not in used and one not in registered.brokers)
    if (first := next(free, None)) is None:
        raise ShadowIdUsed(broker=SHADOW_IDS[-1], link="another")
    return first


async def links(client: Client) -> list[dict[str, Any]]:
    """Every link with its state, as last reported."""
    store = LinkStore(client)
    if isinstance((await topics.describe(client, [LINKS]))[LINKS], PenstockError):
        return []
    await store.refresh()
    return [_row(store, name) for name in sorted(store.named("definition"))]


async def show(client: Client, link: str) -> dict[str, Any]:
    rows = {row["name"]: row for row in await links(client)}
    if link not in rows:
        raise LinkUnknown(link=link, known=", ".join(rows) or "none")
    return rows[link]


async def request(
    client: Client, link: str, action: Action, *, seconds: float = WAIT_SECONDS
) -> dict[str, Any]:
    """Record an action, and wait until the running link has carried it out."""
    before = await show(client, link)
    next_state(link, State(before["state"]), action)
    number = time.time_ns()
    await record_request(client, link, action, number)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        row = await show(client, link)
        done = row["request"] == number and State(row["state"]) not in (State.PROMOTING, State.FAILING_OVER)
        if done and row["error"]:
            raise LinkStateConflict(link=link, state=row["state"], action=action, possible=row["error"])
        if done:
            return row
        await asyncio.sleep(POLL_SECONDS)
    raise LinkNotRunning(link=link, action=action, seconds=seconds)


async def record_request(client: Client, link: str, action: Action, number: int) -> None:
    """For the process that runs the link. `number` rises with time; an older request is not repeated."""
    store = LinkStore(client)
    await store.refresh()
    last = store.documents.get(f"request/{link}", {"id": 0})["id"]
    if number > last:
        await store.put(f"request/{link}", {"id": number, "action": action})


async def delete(client: Client, link: str) -> None:
    """Forget an active link, or one that never started. Mirrors and their records stay."""
    row = await show(client, link)
    if State(row["state"]) not in (State.ACTIVE, State.CREATING):
        raise LinkStateConflict(link=link, state=row["state"], action="delete", possible="failover, promote")
    store = LinkStore(client)
    await store.refresh()
    await _forget(store, link)


async def _forget(store: LinkStore, link: str) -> None:
    keys = [key for key in store.documents if key.split("/")[1] == link]
    for key in sorted(keys, key=lambda key: key.startswith("definition/")):
        await store.put(key, None)


def _row(store: LinkStore, name: str) -> dict[str, Any]:
    status = store.documents.get(f"status/{name}", {})
    progress = status.get("progress", {})
    lags = [one["lag"] for one in progress.values()]
    return {
        "name": name,
        "state": status.get("state", State.CREATING),
        "step": status.get("step"),
        "patterns": store.documents[f"definition/{name}"]["topics"],
        "topics": sorted(status.get("topics", {})),
        "partitions": len(progress),
        "lag": None if None in lags else sum(lags),
        "failed": {place: one["failed"] for place, one in progress.items() if one["failed"]},
        "request": status.get("request", 0),
        "error": status.get("error", ""),
        "problems": status.get("problems", {}),
        "at_ms": status.get("at_ms", 0),
        "progress": progress,
        "tails": status.get("tails", {}),
    }
