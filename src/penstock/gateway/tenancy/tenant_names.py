"""Renames a tenant's names: prefixed towards the broker, without prefix towards the client, others left out.

`Outward` works on requests, `Inward` on responses, each for one connection. Neither does I/O: all they need
is in the `TenantContext` that all connections of a tenant share.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final, NoReturn

from penstock.gateway.limits.partition_reservations import Reservations
from penstock.gateway.tenancy.apis import INWARD_KINDS, OUTWARD_KINDS
from penstock.gateway.tenancy.fetch_sessions import FetchSessions
from penstock.gateway.tenancy.name_patterns import add_prefix, remove_prefix
from penstock.gateway.tenancy.tenant_configs import TENANT_CONFIGS
from penstock.gateway.tenancy.topic_ids import TopicIds, UnknownIds
from penstock.model.errors.gateway import BrokersUnknown
from penstock.model.errors.plans import NameRefused
from penstock.model.ids import KAFKA_NAME_LENGTH_MAX
from penstock.wire.field_rules import Kind
from penstock.wire.names import Names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.gateway.config import Tenant

SESSIONS_REMEMBERED_MAX: Final = 64  # fetch sessions of one connection; clients have one
GATEWAY_HOST: Final = b"/gateway"  # in place of a client's address, which the broker never sees
GROUP_KEY, TRANSACTION_KEY = 0, 1  # coordinator key types
TOPIC_CONFIG, GROUP_CONFIG = 2, 32  # config resource types
CONSUMERS: Final = (-1, -2)  # replica ids of consumers and debugging consumers; any other is a broker's
# The defaults of fields that only followers set: no epoch, no directory, no high watermark.
_FOLLOWER_DEFAULTS: Final = (-1, bytes(16), 2**63 - 1)
NO_SESSION: Final = 0
NO_BROKER: Final = -1

# Broker messages that match are blanked: they may reveal other tenants or addresses.
_PRIVATE: Final = re.compile(
    rb"lkc-[0-9a-z]{6}_|_penstock|User:|\b\d{1,3}(?:\.\d{1,3}){3}\b|[Ll]istener|:\d{4,5}\b|ConnectionId|Principal"
)


class TenantContext:
    """What all connections of one tenant share on this gateway. Rebuilt after a restart."""

    __slots__ = (
        "addresses", "auto_created", "clock", "cluster_id", "coordinators", "fetching", "prefix",
        "reservations", "tenant", "topics", "visible",
    )  # fmt: skip

    def __init__(
        self,
        tenant: Tenant,
        addresses: Mapping[int, tuple[bytes, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topics = TopicIds()
        self.reservations = Reservations()
        self.auto_created: dict[str, float] = {}  # topics, and until when they are not created again
        self.clock = clock
        self.fetching: dict[int, FetchSessions] = {}
        self.coordinators: set[int] = set()  # librdkafka drops a broker that Metadata does not list
        self.settle(tenant, addresses)

    def settle(self, tenant: Tenant, addresses: Mapping[int, tuple[bytes, int]]) -> None:
        """Apply a changed configuration; what was learned stays."""
        self.tenant = tenant
        self.prefix = tenant.prefix
        self.cluster_id = tenant.id.encode()
        self.addresses = addresses  # of every broker, as shown to this tenant
        self.visible: frozenset[int] = frozenset(tenant.brokers) or frozenset(addresses)
        for sessions in self.fetching.values():
            sessions.limit = tenant.limits.fetch_sessions_max

    def fetch_sessions(self, broker_id: int) -> FetchSessions:
        if broker_id not in self.fetching:
            self.fetching[broker_id] = FetchSessions(self.tenant.limits.fetch_sessions_max, self.clock)
        return self.fetching[broker_id]

    @property
    def restricted(self) -> bool:
        """Whether some brokers are not shown to this tenant."""
        return not self.visible >= self.addresses.keys()

    def shown(self, broker_id: int) -> bool:
        return broker_id in self.visible or broker_id in self.coordinators

    def controller(self) -> int:
        """The broker shown as controller. Any broker forwards requests to the controller."""
        return min(self.visible & self.addresses.keys(), default=-1)


class Outward(Names):
    """From a client to the broker."""

    kinds = OUTWARD_KINDS

    def __init__(
        self, context: TenantContext, sessions: dict[int, None], fetching: FetchSessions | None = None
    ) -> None:
        self.prefix = context.prefix
        self.topic_growth = len(context.prefix)
        self.fetching = fetching or context.fetch_sessions(NO_BROKER)
        self._session = NO_SESSION  # of the current fetch
        self.name_bytes_max = KAFKA_NAME_LENGTH_MAX - len(context.prefix)
        self.topics = context.topics
        self.known_ids = context.topics.by_id
        self.sessions = sessions
        self.unknown_ids = UnknownIds()
        self.fetch_bytes_max: Callable[[], int] | None = None  # set where egress may be limited

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
        self.unknown_ids.add(topic_id)
        return self.topics.masked(topic_id)

    def replica_id(self, replica_id: int) -> int | None:
        return replica_id if replica_id in CONSUMERS else None

    def follower(self, value: bytes | int) -> bytes | int | None:
        return value if value in _FOLLOWER_DEFAULTS else None

    def coordinator_key(self, key: bytes, key_type: int | None) -> bytes | None:
        return self.prefix + key if key_type in (GROUP_KEY, TRANSACTION_KEY) else None

    def config_resource(self, name: bytes, resource_type: int) -> bytes | None:
        if resource_type == TOPIC_CONFIG:
            return self.topic(name)
        return self.prefix + name if resource_type == GROUP_CONFIG else None

    def config_name(self, name: bytes) -> bytes | None:
        return name if name.decode(errors="replace") in TENANT_CONFIGS else None

    def topic_regex(self, regex: bytes) -> bytes | None:
        return add_prefix(self.prefix, regex)

    def transactional_id_regex(self, regex: bytes) -> bytes | None:
        return add_prefix(self.prefix, regex)

    def session(self, session_id: int) -> int:
        """Pass a session on only on the connection that opened it: the broker does not bind sessions to
        clients.

        With session 0 the broker responds to an incremental fetch as to an unknown session, and a full fetch
        opens a new one. Kafka 4.3 throws on an id out of range, so none is passed on.
        """
        self._session = session_id if session_id in self.sessions else NO_SESSION
        return self._session

    def session_epoch(self, epoch: int) -> int:
        return self.fetching.epoch(self._session, epoch)

    def fetch_bytes(self, bytes_max: int) -> int:
        """Brokers do the same for their own quotas: the response comes as soon as there is that much, and
        holds at least one batch."""
        return bytes_max if self.fetch_bytes_max is None else min(bytes_max, self.fetch_bytes_max())


class Inward(Names):
    """From the broker to a client."""

    kinds = INWARD_KINDS

    def __init__(
        self, context: TenantContext, sessions: dict[int, None], fetching: FetchSessions | None = None
    ) -> None:
        self.context = context
        self.fetching = fetching or context.fetch_sessions(NO_BROKER)
        self.prefix = context.prefix
        self.cut = len(context.prefix)
        self.topic_growth = -self.cut
        self.topics = context.topics
        self.known_ids = context.topics.by_id
        self.sessions = sessions
        self.unknown_ids = UnknownIds()  # those of the requests, once linked
        self.lists_brokers = False  # the current response lists brokers, not one coordinator
        self.needs_brokers = False  # it must list one, and none was seen yet
        self.wait_ms = 0  # that the current response demands of the client

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
        return remove_prefix(self.prefix, regex)

    def endpoint(self, broker_id: int, host: bytes, port: int) -> tuple[int, bytes, int] | None:
        self.needs_brokers = False
        if broker_id < 0:
            return broker_id, b"", -1
        offered = self.context.addresses.get(broker_id)
        if offered is None:
            return None
        if self.lists_brokers:
            return (broker_id, *offered) if self.context.shown(broker_id) else None
        self.context.coordinators.add(broker_id)
        return broker_id, *offered

    def broker_id(self, broker_id: int) -> int:
        """Called only if some brokers are not shown. The first id of a list is its controller."""
        if not self.lists_brokers:
            return broker_id
        self.lists_brokers = False
        return broker_id if self.context.shown(broker_id) else self.context.controller()

    def cluster_id(self, cluster_id: bytes) -> bytes:
        if self.needs_brokers:  # in Metadata, brokers come first
            raise BrokersUnknown
        return self.context.cluster_id

    def client_host(self, host: bytes) -> bytes:
        return GATEWAY_HOST

    def throttle(self, milliseconds: int) -> int:
        return max(milliseconds, self.wait_ms)

    def text(self, text: bytes) -> bytes | None:
        own = text.replace(self.prefix, b"")
        return None if _PRIVATE.search(own) else own

    def session(self, session_id: int) -> int:
        if self.unknown_ids.open:
            if session_id > 0:  # the broker has opened it, although the client does not learn of it
                self.fetching.use(session_id)
            return NO_SESSION
        if session_id > 0 and session_id not in self.sessions:
            if len(self.sessions) >= SESSIONS_REMEMBERED_MAX:
                self.sessions.pop(next(iter(self.sessions)))
            self.sessions[session_id] = None
            self.fetching.use(session_id)
        return session_id


class LearningInward(Inward):
    """Learns topic ids from responses that list topics with names and ids.

    Elements are (error, name, id) in that order. Only one without an error is learned, as only it has both.
    """

    kinds = INWARD_KINDS | {Kind.ERROR}

    def __init__(
        self, context: TenantContext, sessions: dict[int, None], fetching: FetchSessions | None = None
    ) -> None:
        super().__init__(context, sessions, fetching)
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
