"""What a backup has, for people: its topics and its state."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.backup.drill import last_drill
from penstock.backup.holds import holds
from penstock.backup.restore_store import RestoreStore
from penstock.kafka.admin import topics
from penstock.model.errors import PenstockError
from penstock.tier.format import MANIFEST, id_text

if TYPE_CHECKING:
    from penstock.backup.archive import Archive
    from penstock.backup.catalogue import Catalogue
    from penstock.kafka.client import Client
    from penstock.tier.store import Store


async def listed_topics(client: Client, archive: Archive, catalogue: Catalogue) -> list[dict[str, Any]]:
    """Every topic with segments, by name and then by age."""
    await archive.load()
    known = await catalogue.topics()
    present = {
        id_text(topic.id)
        for topic in (await topics.describe(client)).values()
        if not isinstance(topic, PenstockError)
    }
    rows: dict[str, dict[str, Any]] = {}
    for key, one in sorted(archive.segments.items()):
        if MANIFEST not in one.suffixes:
            continue
        row = rows.setdefault(key.topic_id, {"topic_id": key.topic_id, "segments": 0, "log_bytes": 0})
        row["segments"] += 1
        row["log_bytes"] += max(0, one.log_size)
    for topic_id, row in rows.items():
        history = known.get(topic_id)
        last = next(key for key in archive.last_segments().values() if key.topic_id == topic_id)
        row["topic"] = history.name if history else (await archive.manifest(last)).topic
        row["partitions"] = history.partitions if history else len(archive.partitions(topic_id))
        row["last_seen"] = time_text(history.last_ms) if history else None
        row["exists"] = topic_id in present
    return sorted(rows.values(), key=lambda row: (row["topic"], row["last_seen"] or ""))


async def status_of(client: Client, archive: Archive, catalogue: Catalogue, store: Store) -> dict[str, Any]:
    await archive.load()
    newest = 0
    for manifest in await archive.last_manifests():
        newest = max(newest, manifest.event_timestamp_ms)
    times = await catalogue.times()
    drilled = await last_drill(store, archive.cluster)
    restores = RestoreStore(client)
    if await restores.exists():
        await restores.refresh()
    running = restores.running()
    return {
        "cluster": archive.cluster,
        "store": store.name,
        "topics": len(archive.topic_ids()),
        "segments": len(archive.segments),
        "gaps": len(archive.gaps),
        "last_archived": time_text(newest),
        "last_catalogue": time_text(times[-1] if times else 0),
        "last_drill": time_text(drilled.at_ms if drilled else 0),
        "holds": ", ".join(one.name for one in await holds(store, archive.cluster)),
        "restore_running": f"{running[0]} ({running[1]['step']})" if running else "",
        "restores": len(restores.restores()),
    }


def time_text(at_ms: int) -> str | None:
    if at_ms <= 0:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
