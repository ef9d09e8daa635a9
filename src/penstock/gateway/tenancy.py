"""What becomes of a tenant's names: outward below its prefix, inward without it, others not at all.

`Outward` works on requests, `Inward` on answers, both for one connection. They never ask anybody:
what they need to know stands in the `Realm` that all connections of a tenant share.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final, NoReturn

from penstock.gateway.apis import INWARD_KINDS, OUTWARD_KINDS
from penstock.gateway.fetches import FetchSessions
from penstock.gateway.patterns import above, below
from penstock.gateway.topics import Misses, TopicIds
from penstock.model.errors.gateway import BrokersUnknown
from penstock.model.errors.plans import NameRefused
from penstock.model.ids import KAFKA_NAME_LENGTH_MAX
from penstock.wire.names import Names
from penstock.wire.rules import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.gateway.config import Tenant

SESSIONS_REMEMBERED_MAX: Final = 64  # fetch sessions of one connection; clients have one
GATEWAY_HOST: Final = b"/gateway"  # in the place of a client's address, which the broker never saw
GROUP_KEY, TRANSACTION_KEY = 0, 1  # kinds of coordinator
TOPIC_CONFIG, GROUP_CONFIG = 2, 32  # kinds of config resource
REPLICA_NONE: Final = -1
NO_SESSION: Final = 0
NO_BROKER: Final = -1

# Texts of brokers that speak of what is none of a tenant's business are blanked.
_PRIVATE: Final = re.compile(
    rb"lkc-[0-9a-z]{6}_|_penstock|User:|\b\d{1,3}(?:\.\d{1,3}){3}\b|[Ll]istener|:\d{4,5}\b|ConnectionId|Principal"
)

# What a tenant may set on its topics and groups. Others steer replication, which is the platform's.
CONFIGS_ALLOWED: Final = frozenset(
    name.encode()
    for name in (
        "cleanup.policy",
        "compression.type",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "local.retention.bytes",
        "local.retention.ms",
        "remote.storage.enable",
        # of groups
        "consumer.heartbeat.interval.ms",
        "consumer.session.timeout.ms",
        "share.auto.offset.reset",
        "share.heartbeat.interval.ms",
        "share.isolation.level",
        "share.record.lock.duration.ms",
        "share.session.timeout.ms",
    )
)


class Realm:
    """What all connections of one tenant share on this gateway. Rebuilt when it starts anew."""

    __slots__ = (
        "addresses", "clock", "cluster_id", "coordinators", "fetching", "prefix", "tenant", "topics",
        "visible",
    )  # fmt: skip

    def __init__(
        self,
        tenant: Tenant,
        addresses: Mapping[int, tuple[bytes, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topics = TopicIds()
        self.clock = clock
        self.fetching: dict[int, FetchSessions] = {}
        self.coordinators: set[int] = set()  # librdkafka drops a broker that Metadata does not list
        self.settle(tenant, addresses)

    def settle(self, tenant: Tenant, addresses: Mapping[int, tuple[bytes, int]]) -> None:
        """Take over a changed configuration; what was learned stays."""
        self.tenant = tenant
        self.prefix = tenant.prefix
        self.cluster_id = tenant.id.encode()
        self.addresses = addresses  # of every broker, as this tenant may know it
        self.visible: frozenset[int] = frozenset(tenant.brokers) or frozenset(addresses)
        for sessions in self.fetching.values():
            sessions.limit = tenant.limits.fetch_sessions_max

    def fetch_sessions(self, broker_id: int) -> FetchSessions:
        found = self.fetching.get(broker_id)
        if found is None:
            found = FetchSessions(self.tenant.limits.fetch_sessions_max, self.clock)
            self.fetching[broker_id] = found
        return found

    @property
    def restricted(self) -> bool:
        """Are there brokers that this tenant is not shown?"""
        return not self.visible >= self.addresses.keys()

    def shown(self, broker_id: int) -> bool:
        return broker_id in self.visible or broker_id in self.coordinators

    def controller(self) -> int:
        """Whom a tenant asks for what only a controller can do. Any broker passes it on."""
        return min(self.visible & self.addresses.keys(), default=-1)


class Outward(Names):
    """From a client to the broker."""

    kinds = OUTWARD_KINDS

    def __init__(
        self, realm: Realm, sessions: dict[int, None], fetching: FetchSessions | None = None
    ) -> None:
        self.prefix = realm.prefix
        self.topic_growth = len(realm.prefix)
        self.fetching = fetching or realm.fetch_sessions(NO_BROKER)
        self._session = NO_SESSION  # that the fetch at hand names
        self.name_bytes_max = KAFKA_NAME_LENGTH_MAX - len(realm.prefix)
        self.topics = realm.topics
        self.known_ids = realm.topics.by_id
        self.sessions = sessions
        self.misses = Misses()

    def topic(self, name: bytes) -> bytes:
        if len(name) > self.name_bytes_max:
            _refuse(Kind.TOPIC)
        return self.prefix + name

    def group(self, group: bytes) -> bytes:
        return self.prefix + group

    def transactional_id(self, transactional_id: bytes) -> bytes:
        return self.prefix + transactional_id

    def topic_id(self, topic_id: bytes) -> bytes:
        if topic_id in self.known_ids:
            return topic_id
        self.misses.add(topic_id)
        return self.topics.masked(topic_id)

    def replica_id(self, replica_id: int) -> int:
        return replica_id if replica_id < 0 else REPLICA_NONE

    def coordinator_key(self, key: bytes, key_type: int | None) -> bytes | None:
        return self.prefix + key if key_type in (GROUP_KEY, TRANSACTION_KEY) else None

    def config_resource(self, name: bytes, resource_type: int) -> bytes | None:
        if resource_type == TOPIC_CONFIG:
            return self.topic(name)
        return self.prefix + name if resource_type == GROUP_CONFIG else None

    def config_name(self, name: bytes) -> bytes | None:
        return name if name in CONFIGS_ALLOWED else None

    def topic_regex(self, regex: bytes) -> bytes | None:
        return below(self.prefix, regex)

    def transactional_id_regex(self, regex: bytes) -> bytes | None:
        return below(self.prefix, regex)

    def session(self, session_id: int) -> int:
        """Sessions belong to the connection that opened them: the broker binds them to nobody.

        With no session (0) the broker answers an incremental fetch as it answers an unknown one,
        and a full fetch opens a new one. An id out of range makes 4.3 throw, so none is passed on.
        """
        self._session = session_id if session_id in self.sessions else NO_SESSION
        return self._session

    def session_epoch(self, epoch: int) -> int:
        return self.fetching.epoch(self._session, epoch)


class Inward(Names):
    """From the broker to a client."""

    kinds = INWARD_KINDS

    def __init__(
        self, realm: Realm, sessions: dict[int, None], fetching: FetchSessions | None = None
    ) -> None:
        self.realm = realm
        self.fetching = fetching or realm.fetch_sessions(NO_BROKER)
        self.prefix = realm.prefix
        self.cut = len(realm.prefix)
        self.topic_growth = -self.cut
        self.topics = realm.topics
        self.known_ids = realm.topics.by_id
        self.sessions = sessions
        self.misses = Misses()  # those of the requests, once there is a connection
        self.lists_brokers = False  # the answer at hand is a list of brokers, not one coordinator
        self.needs_brokers = False  # it is no answer without one, and none was seen yet

    def topic(self, name: bytes) -> bytes | None:
        return name[self.cut :] if name.startswith(self.prefix) else None

    def group(self, group: bytes) -> bytes | None:
        return group[self.cut :] if group.startswith(self.prefix) else None

    def transactional_id(self, transactional_id: bytes) -> bytes | None:
        return transactional_id[self.cut :] if transactional_id.startswith(self.prefix) else None

    def coordinator_key(self, key: bytes, key_type: int | None) -> bytes | None:
        return key[self.cut :] if key.startswith(self.prefix) else None

    def config_resource(self, name: bytes, resource_type: int) -> bytes | None:
        return name[self.cut :] if name.startswith(self.prefix) else None

    def topic_id(self, topic_id: bytes) -> bytes:
        return topic_id if topic_id in self.known_ids else self.topics.masked(topic_id)

    def topic_regex(self, regex: bytes) -> bytes:
        return above(self.prefix, regex)

    def endpoint(self, broker_id: int, host: bytes, port: int) -> tuple[int, bytes, int] | None:
        self.needs_brokers = False
        if broker_id < 0:
            return broker_id, b"", -1
        offered = self.realm.addresses.get(broker_id)
        if offered is None:
            return None
        if self.lists_brokers:
            return (broker_id, *offered) if self.realm.shown(broker_id) else None
        self.realm.coordinators.add(broker_id)
        return broker_id, *offered

    def broker_id(self, broker_id: int) -> int:
        """Only asked where some brokers are not shown. The first of a list is its controller."""
        if not self.lists_brokers:
            return broker_id
        self.lists_brokers = False
        return broker_id if self.realm.shown(broker_id) else self.realm.controller()

    def cluster_id(self, cluster_id: bytes) -> bytes:
        if self.needs_brokers:  # in Metadata they come before
            raise BrokersUnknown
        return self.realm.cluster_id

    def client_host(self, host: bytes) -> bytes:
        return GATEWAY_HOST

    def text(self, text: bytes) -> bytes | None:
        own = text.replace(self.prefix, b"")
        return None if _PRIVATE.search(own) else own

    def session(self, session_id: int) -> int:
        if self.misses.open:
            return NO_SESSION
        if session_id > 0 and session_id not in self.sessions:
            if len(self.sessions) >= SESSIONS_REMEMBERED_MAX:
                self.sessions.pop(next(iter(self.sessions)))
            self.sessions[session_id] = None
            self.fetching.use(session_id)
        return session_id


class Teaching(Inward):
    """For answers that list topics with their names and ids: from these the ids are learned.

    An element is (error, name, id) in that order, and only one without an error teaches, since
    only such a one is sure to have both.
    """

    kinds = INWARD_KINDS | {Kind.ERROR}

    def __init__(
        self, realm: Realm, sessions: dict[int, None], fetching: FetchSessions | None = None
    ) -> None:
        super().__init__(realm, sessions, fetching)
        self._erred = False
        self._name: bytes | None = None

    def error(self, code: int) -> int:
        self._erred = True
        self._name = None
        return code

    def topic(self, name: bytes) -> bytes | None:
        own = super().topic(name)
        self._name = None if self._erred or own is None else name
        self._erred = False
        return own

    def topic_id(self, topic_id: bytes) -> bytes:
        name, self._name = self._name, None
        self._erred = False
        if name is None:
            return super().topic_id(topic_id)
        self.topics.learn(name, topic_id)
        return topic_id


def _refuse(kind: Kind) -> NoReturn:
    raise NameRefused(path=kind, kind=kind)
