"""The interface that maps names between client and broker, one method per kind of name.

An object serves one direction of one connection. Programs are generated for exactly the kinds in `kinds`, so
other kinds cost nothing and their methods are never called. Arguments are the raw bytes as received, results
the bytes to send.

- None means that the name does not exist on the other side. In a response, the innermost array element or
  optional struct around it is omitted. If there is none, and in every request, the frame is refused. A text
  becomes null, or empty where null is not allowed.
- Methods are called for empty names but not for null.
- Arguments are positional, so that one method can serve several kinds: `group = topic`.
- A method may raise `NameRefused` or `ResponseRefused` itself, with more detail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.wire.consumer_protocol import renamed_assignment, renamed_subscription

if TYPE_CHECKING:
    from penstock.wire.field_rules import Kind

NO_LIMIT: Final = 1 << 62
CONSUMER: Final = b"consumer"  # the protocol type of classic consumer groups


class Names:
    """Leaves every name unchanged. Subclasses override methods and list their kinds in `kinds`."""

    kinds: frozenset[Kind] = frozenset()
    # Of the request that is read, with those of messages inside it; responses have no limit.
    elements_left: int = NO_LIMIT
    elements_max: int = NO_LIMIT
    topic_growth: int = 0  # bytes that `topic` adds to a name, the same for every name

    def topic(self, name: bytes, /) -> bytes | None:
        return name

    def topic_id(self, topic_id: bytes, /) -> bytes | None:
        """Sixteen bytes. Not called for the zero id, which means no topic."""
        return topic_id

    def group(self, group: bytes, /) -> bytes | None:
        return group

    def transactional_id(self, transactional_id: bytes, /) -> bytes | None:
        return transactional_id

    def broker_id(self, broker_id: int, /) -> int:
        return broker_id

    def replica_id(self, replica_id: int, /) -> int | None:
        """The role a client claims: −1 is a consumer, −2 a debugging consumer, any other a broker."""
        return replica_id

    def follower(self, value: bytes | int, /) -> bytes | int | None:
        return value

    def endpoint(self, broker_id: int, host: bytes, port: int, /) -> tuple[int, bytes, int] | None:
        """A broker's address. The id −1 means no broker, in responses with an error."""
        return broker_id, host, port

    def host(self, host: bytes, /) -> bytes | None:
        return host

    def port(self, port: int, /) -> int:
        return port

    def cluster_id(self, cluster_id: bytes, /) -> bytes | None:
        return cluster_id

    def text(self, text: bytes, /) -> bytes | None:
        """A message of the broker, never empty. In a stream the result is cut or padded to the old size."""
        return text

    def coordinator_key(self, key: bytes, key_type: int | None, /) -> bytes | None:
        """Types: 0 group, 1 transactional id, 2 share partition (`group:topicId:partition`). None in a
        response, which does not repeat the type of the request."""
        return key

    def config_resource(self, name: bytes, resource_type: int, /) -> bytes | None:
        """Types: 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group."""
        return name

    def config_name(self, name: bytes, /) -> bytes | None:
        return name

    def acl_resource(self, name: bytes, resource_type: int, pattern_type: int, /) -> bytes | None:
        return name

    def principal(self, principal: bytes, /) -> bytes | None:
        return principal

    def user(self, user: bytes, /) -> bytes | None:
        return user

    def quota_entity(self, name: bytes, entity_type: bytes, match_type: int = 0, /) -> bytes | None:
        return name

    def topic_regex(self, regex: bytes, /) -> bytes | None:
        return regex

    def transactional_id_regex(self, regex: bytes, /) -> bytes | None:
        return regex

    def subscription(self, data: bytes, protocol_type: bytes | None, /) -> bytes | None:
        """A member's subscription. The type is None if the version lacks it."""
        return renamed_subscription(data, self) if protocol_type in (CONSUMER, None) else data

    def assignment(self, data: bytes, protocol_type: bytes | None, /) -> bytes | None:
        return renamed_assignment(data, self) if protocol_type in (CONSUMER, None) else data

    def client_host(self, host: bytes, /) -> bytes | None:
        return host

    def log_dir(self, path: bytes, /) -> bytes | None:
        return path

    def envelope(self, data: bytes, /) -> bytes | None:
        return data

    def telemetry(self, data: bytes, /) -> bytes | None:
        return data

    def operations(self, bits: int, /) -> int:
        return bits

    def throttle(self, milliseconds: int, /) -> int:
        return milliseconds

    def error(self, code: int, /) -> int:
        """An error code other than 0."""
        return code

    def session(self, session_id: int, /) -> int:
        return session_id

    def session_epoch(self, epoch: int, /) -> int:
        """Called right after `session`: 0 opens a session, −1 closes it or uses none."""
        return epoch

    def fetch_bytes(self, bytes_max: int, /) -> int:
        return bytes_max
