"""Which topic ids are a tenant's: learned from responses, checked by every request that uses ids.

Ids are random but not secret, and nothing in an id shows its tenant. An id that this gateway has not seen in
a response to the tenant is *masked*: the broker gets another id that belongs to no topic, so another tenant's
id and an invented one get the same error, UNKNOWN_TOPIC_ID, and the response is unmasked. The tenant's own
id, learned through another gateway or before a restart, is masked once, too: clients retry this error, and
the id is looked up meanwhile. The retry must not be a session's next fetch, which does not name the id again:
see `UnknownIds`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Final

TOPICS_REMEMBERED_MAX: Final = 250_000  # per tenant
MISSES_MAX: Final = 100  # ids looked up at once; more are added when the client retries

ID_BYTES: Final = 16


class TopicIds:
    """One tenant's topics, by id and by Kafka's name."""

    __slots__ = ("_mask", "by_id", "by_name")

    def __init__(self, mask: bytes | None = None) -> None:
        self._mask = int.from_bytes(mask or os.urandom(ID_BYTES))
        self.by_id: OrderedDict[bytes, bytes] = OrderedDict()
        self.by_name: dict[bytes, bytes] = {}

    def learn(self, name: bytes, topic_id: bytes) -> None:
        before = self.by_name.get(name)
        if before == topic_id:
            return
        # A topic created again has a new id; the old one stays known, as it is still the tenant's.
        self.by_name[name] = topic_id
        self.by_id[topic_id] = name
        if len(self.by_id) > TOPICS_REMEMBERED_MAX:
            _, oldest = self.by_id.popitem(last=False)
            self.by_name.pop(oldest, None)

    def forget(self, name: bytes) -> None:
        topic_id = self.by_name.pop(name, None)
        if topic_id is not None:
            self.by_id.pop(topic_id, None)

    def forget_id(self, topic_id: bytes) -> None:
        name = self.by_id.pop(topic_id, None)
        if name is not None and self.by_name.get(name) == topic_id:
            del self.by_name[name]

    def masked(self, topic_id: bytes) -> bytes:
        """Another id in place of an unknown one; masking it again restores it."""
        return (int.from_bytes(topic_id) ^ self._mask).to_bytes(ID_BYTES)


class UnknownIds:
    """Unknown ids that one connection's requests have named.

    While there are any, no fetch session is opened: the broker would keep using the masked id, and a client
    that keeps its session never names the right one again.
    """

    __slots__ = ("_under_way", "ids", "open")

    def __init__(self) -> None:
        self.ids: set[bytes] = set()  # to be looked up
        self.open = False  # until the results of all lookups are known
        self._under_way = 0  # lookups; a fetch sent before the first result causes a second

    def add(self, topic_id: bytes) -> None:
        self.open = True
        if len(self.ids) < MISSES_MAX:
            self.ids.add(topic_id)

    def take(self) -> set[bytes]:
        taken, self.ids = self.ids, set()
        self._under_way += 1
        return taken

    def settle(self) -> None:
        """A lookup is complete: the tenant's ids in it are known now."""
        self._under_way -= 1
        self.open = self._under_way > 0 or bool(self.ids)
