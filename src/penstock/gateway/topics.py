"""Which topic ids are a tenant's: learned from answers, asked about by every request that uses ids.

Ids are random but no secret, and nothing in an id says whose it is. An id this gateway has not seen
in an answer to the tenant is *masked*: it goes to the broker as another id that belongs to nothing,
so that a foreign id and an invented one get the very same answer, UNKNOWN_TOPIC_ID, and comes back
unmasked. An id that is the tenant's all the same (learned through another gateway, or before a
restart) is masked once, too: the error is one that clients repeat, and meanwhile the id is looked up.
What they repeat must not be a session's next fetch, which names nothing again: see `Misses`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Final

TOPICS_REMEMBERED_MAX: Final = 100_000  # of one tenant
MISSES_MAX: Final = 100  # ids looked up at once; more are met again when the client tries again

ID_BYTES: Final = 16


class TopicIds:
    """One tenant's topics, by id and by name as the broker knows them."""

    __slots__ = ("_mask", "by_id", "by_name")

    def __init__(self, mask: bytes | None = None) -> None:
        self._mask = int.from_bytes(mask or os.urandom(ID_BYTES))
        self.by_id: OrderedDict[bytes, bytes] = OrderedDict()
        self.by_name: dict[bytes, bytes] = {}

    def learn(self, name: bytes, topic_id: bytes) -> None:
        before = self.by_name.get(name)
        if before == topic_id:
            return
        # A name made again has another id; the old one stays known, as it is still the tenant's.
        self.by_name[name] = topic_id
        self.by_id[topic_id] = name
        if len(self.by_id) > TOPICS_REMEMBERED_MAX:
            _, oldest = self.by_id.popitem(last=False)
            self.by_name.pop(oldest, None)

    def forget(self, name: bytes) -> None:
        topic_id = self.by_name.pop(name, None)
        if topic_id is not None:
            self.by_id.pop(topic_id, None)

    def masked(self, topic_id: bytes) -> bytes:
        """An id in the place of one that is not known; masking it again gives the first one back."""
        return (int.from_bytes(topic_id) ^ self._mask).to_bytes(ID_BYTES)


class Misses:
    """Ids that one connection's requests have named and nobody knows yet.

    While there are any, no fetch session comes about: the broker would go on with the masked id, and a
    client that keeps to its session never names the right one again.
    """

    __slots__ = ("_under_way", "ids", "open")

    def __init__(self) -> None:
        self.ids: set[bytes] = set()  # to be looked up
        self.open = False  # until those that were looked up are known
        self._under_way = 0  # look-ups; a fetch that goes before the first one's answer causes a second

    def add(self, topic_id: bytes) -> None:
        self.open = True
        if len(self.ids) < MISSES_MAX:
            self.ids.add(topic_id)

    def take(self) -> set[bytes]:
        taken, self.ids = self.ids, set()
        self._under_way += 1
        return taken

    def settle(self) -> None:
        """What was taken is known now, as far as it is the tenant's."""
        self._under_way -= 1
        self.open = self._under_way > 0 or bool(self.ids)
