"""Whether the source has deleted only what its retention allows.

A mirror follows the log start of its source, so its replicas delete what the source has deleted, also by
mistake. A link with `--hold-start` follows it only as far as the source's own retention explains it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.kafka.admin import configs, log_dirs
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.model.errors.shadow import PartitionNotLed
from penstock.model.shadow_ids import is_shadow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kafka.admin.configs import Entry
    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.link.mirror_partition import MirrorPartition
    from penstock.shadow.broker import ShadowBroker

CLOCKS_DIFFER_MS_MAX: Final = 300_000  # between the source's brokers and this process
UNLIMITED: Final = -1
NAMES: Final = ("cleanup.policy", "retention.ms", "retention.bytes")


@dataclass(frozen=True, slots=True)
class Retention:
    deletes: bool  # not only compacts
    ms: int
    log_bytes: int

    def kept_since_ms(self, now_ms: int) -> int:
        """A record of this time or later is not deleted for its age."""
        return now_ms - self.ms + min(CLOCKS_DIFFER_MS_MAX, self.ms // 2)


def retention_of(entries: Mapping[str, Entry]) -> Retention:
    return Retention(
        "delete" in (entries["cleanup.policy"].value or "delete"),
        int(entries["retention.ms"].value or UNLIMITED),
        int(entries["retention.bytes"].value or UNLIMITED),
    )


def unexplained_rise(retention: Retention, start: int, first_kept: int | None, log_bytes: int) -> str:
    """Why the source's log must not start at `start`; empty if its retention explains it.

    `first_kept` is the first offset that is not deleted for its age, and `log_bytes` what the source has
    left: retention by size leaves at least its limit."""
    by_age = retention.ms != UNLIMITED and (first_kept is None or first_kept >= start)
    by_size = retention.log_bytes != UNLIMITED and log_bytes >= retention.log_bytes
    if retention.deletes and (by_age or by_size):
        return ""
    return (
        f"the source's log starts at {start}, and its retention does not explain it; to follow it, pause and "
        "resume the link"
    )


async def check_rise(
    source: Client, leader: int, shadow: ShadowBroker, one: MirrorPartition, start: int
) -> str:
    """Why this partition must not follow its source to `start`; empty if it may."""
    place: TopicPartition = one.place
    resource = configs.topic(place.topic)
    described = results_or_raise(await configs.describe(source, [resource], names=NAMES))[resource]
    retention = retention_of(described)
    first_kept: int | None = one.led.start
    if retention.ms != UNLIMITED:
        first_kept = await _first_since(shadow, one, retention.kept_since_ms(int(time.time() * 1000)))
    log_bytes = 0
    if retention.log_bytes != UNLIMITED:
        directories = (await log_dirs.describe(source, [leader], partitions=[place]))[leader]
        log_bytes = sum(row.size_bytes for d in directories if (row := d.replicas.get(place)) is not None)
    return unexplained_rise(retention, start, first_kept, log_bytes)


async def _first_since(shadow: ShadowBroker, one: MirrorPartition, at_ms: int) -> int | None:
    """The first mirrored offset of this time or later, from a real replica; None if there is none."""
    state = shadow.image.partitions[one.led.id]
    for replica in state.isr:
        if not is_shadow(replica):
            offset = await shadow.end_on(replica, *one.place, timestamp=at_ms)
            if offset is not None:
                return offset if offset >= 0 else None
    raise PartitionNotLed(partition=one.place, epoch=state.leader_epoch)  # no replica responds: tried again
