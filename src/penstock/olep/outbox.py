"""The outgoing events of a batch: as one value of the outbox, and as messages of the Kafka client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.olep.fold import Outgoing
from penstock.olep.partitioner import partition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# A batch adds one row to the outbox. Only an executor of the same application reads it.
pack: Final[Callable[[Sequence[Outgoing]], bytes]] = msgspec.msgpack.Encoder().encode
unpack: Final[Callable[[bytes], list[Outgoing]]] = msgspec.msgpack.Decoder(list[Outgoing]).decode


def addressed(
    outgoing: Iterable[Outgoing], targets: Mapping[str, tuple[str, int]]
) -> tuple[list[tuple[Any, ...]], list[int]]:
    """(topic, value, key, partition) of each event, and the number of the last one for each partition."""
    messages: list[tuple[Any, ...]] = []
    last_of: dict[tuple[str, int], int] = {}
    for log, key, value in outgoing:
        topic, partitions = targets[log]
        partition = partition_of(key, partitions)
        last_of[topic, partition] = len(messages)
        messages.append((topic, value, key, partition))
    return messages, list(last_of.values())
