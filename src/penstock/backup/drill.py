"""Drills: restores one archived topic to a scratch topic, compares, deletes it, and records the result."""

from __future__ import annotations

import json
import random
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.backup.layout import DRILLS, canonical, drill_key, entry_time
from penstock.backup.planning import Selection, make_plan
from penstock.kafka.admin import topics
from penstock.model.errors.backup import BackupMissing, RestoreRefused
from penstock.tier.format import joined

if TYPE_CHECKING:
    from penstock.backup.archive import Archive
    from penstock.backup.catalogue import Catalogue
    from penstock.backup.restorer import Restorer
    from penstock.kafka.client import Client
    from penstock.tier.store import Store

SCRATCH: Final = "penstock-drill-"
UNLIMITED_RETENTION: Final = -1
DRILL_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class DrillResult:
    topic: str
    topic_id: str
    partitions: int
    log_bytes: int
    replicas_proved: int
    seconds: float
    at_ms: int


async def drill(
    client: Client, archive: Archive, catalogue: Catalogue, restorer: Restorer, store: Store, topic: str
) -> DrillResult:
    """Restore a topic to a scratch topic and prove it; the scratch topic is deleted afterwards."""
    started, now_ms = time.monotonic(), int(time.time() * 1000)
    scratch = f"{SCRATCH}{now_ms}"
    await archive.load()
    topic_id = "" if topic else drilled_topic(archive, now_ms)
    selection = Selection(topic, topic_id, scratch, retention_ms=UNLIMITED_RETENTION)
    plan = await make_plan(client, archive, catalogue, selection)
    if plan.refusals:
        raise RestoreRefused(topic=scratch, reasons="; ".join(plan.refusals))
    await restorer.begin(plan, f"drill-{now_ms}")
    document = await restorer.run()
    for error in (await topics.delete(client, ids=[UUID(document["target_id"])])).values():
        if error is not None:
            raise error
    result = DrillResult(
        plan.request.topic, plan.request.topic_id, len(plan.partitions), plan.log_bytes,
        document["report"]["replicas_proved"], time.monotonic() - started, now_ms,
    )  # fmt: skip
    await store.create(drill_key(archive.cluster, now_ms), canonical(asdict(result)))
    return result


def drilled_topic(archive: Archive, seed: int) -> str:
    """A topic with records, another one each time, but none that is too large for a drill."""
    sizes: dict[str, int] = {}
    for key, one in archive.segments.items():
        sizes[key.topic_id] = sizes.get(key.topic_id, 0) + max(0, one.log_size)
    candidates = [topic_id for topic_id in archive.topic_ids() if sizes[topic_id] <= DRILL_BYTES_MAX]
    if not candidates:
        raise BackupMissing(
            what=f"topic of at most {DRILL_BYTES_MAX} bytes", known=f"{len(sizes)} larger ones"
        )
    return random.Random(seed).choice(candidates)


async def last_drill(store: Store, cluster: str) -> DrillResult | None:
    keys = [one.key async for one in store.list(joined(cluster, DRILLS)) if entry_time(one.key) is not None]
    for key in sorted(keys, reverse=True):
        try:
            return DrillResult(**json.loads(await store.read(key)))
        except (ValueError, TypeError):
            continue  # damaged: `verify` is not about results of drills, and an earlier one is as good
    return None
