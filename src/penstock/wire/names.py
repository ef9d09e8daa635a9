"""What becomes of each kind of name: the interface that a tenant's renaming implements.

One object speaks for one direction of one connection. `kinds` says which kinds it has an opinion
on; programs are made for exactly those, so a kind that is not listed costs nothing and its method
is never called. Values are the raw bytes of the frame, of the side they come from; results are
those of the side they go to.

- A result of None says that the name has no place on the other side. In an answer the innermost
  array element (or optional struct) around it is left out and the count corrected; where there is
  none, and in every request, the frame is refused. A text becomes null, or empty where null is
  not allowed.
- Null names are not asked about: "no name" is the same on both sides. Empty ones are.
- A method may raise `NameRefused` (or `AnswerRefused`) itself, to say more than None does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.wire.embedded import renamed_assignment, renamed_subscription

if TYPE_CHECKING:
    from penstock.wire.rules import Kind

CONSUMER: Final = b"consumer"  # the protocol type of classic consumer groups


class Names:
    """Lets everything pass as it is; subclasses override what they rename, and list it in `kinds`."""

    kinds: frozenset[Kind] = frozenset()
    topic_growth: int = 0  # bytes that `topic` adds to a name, the same for every name

    def topic(self, name: bytes) -> bytes | None:
        return name

    def topic_id(self, topic_id: bytes) -> bytes | None:
        """Sixteen bytes; the zero id, which stands for none, is not asked about."""
        return topic_id

    def group(self, group: bytes) -> bytes | None:
        return group

    def transactional_id(self, transactional_id: bytes) -> bytes | None:
        return transactional_id

    def broker_id(self, broker_id: int) -> int:
        return broker_id

    def replica_id(self, replica_id: int) -> int:
        """Who a client claims to be: −1 is a consumer, −2 a debugging one, the rest play broker."""
        return replica_id

    def endpoint(self, broker_id: int, host: bytes, port: int) -> tuple[int, bytes, int] | None:
        """A broker's address; −1 stands for no broker, in answers that are errors."""
        return broker_id, host, port

    def host(self, host: bytes) -> bytes | None:
        return host

    def port(self, port: int) -> int:
        return port

    def cluster_id(self, cluster_id: bytes) -> bytes | None:
        return cluster_id

    def text(self, text: bytes) -> bytes | None:
        """A text of the broker's, never empty. In a stream it is cut or padded to the size it had."""
        return text

    def coordinator_key(self, key: bytes, key_type: int | None) -> bytes | None:
        """0 group, 1 transactional id, 2 share partition (`group:topicId:partition`). An answer does
        not repeat the type: None, to be remembered from the request."""
        return key

    def config_resource(self, name: bytes, resource_type: int) -> bytes | None:
        """2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group."""
        return name

    def config_name(self, name: bytes) -> bytes | None:
        return name

    def acl_resource(self, name: bytes, resource_type: int, pattern_type: int) -> bytes | None:
        return name

    def principal(self, principal: bytes) -> bytes | None:
        return principal

    def user(self, user: bytes) -> bytes | None:
        return user

    def quota_entity(self, name: bytes, entity_type: bytes, match_type: int = 0) -> bytes | None:
        return name

    def topic_regex(self, regex: bytes) -> bytes | None:
        return regex

    def transactional_id_regex(self, regex: bytes) -> bytes | None:
        return regex

    def subscription(self, data: bytes, protocol_type: bytes | None) -> bytes | None:
        """A member's subscription; the type is None where the version does not carry it."""
        return renamed_subscription(data, self) if protocol_type in (CONSUMER, None) else data

    def assignment(self, data: bytes, protocol_type: bytes | None) -> bytes | None:
        return renamed_assignment(data, self) if protocol_type in (CONSUMER, None) else data

    def client_host(self, host: bytes) -> bytes | None:
        return host

    def log_dir(self, path: bytes) -> bytes | None:
        return path

    def envelope(self, data: bytes) -> bytes | None:
        return data

    def telemetry(self, data: bytes) -> bytes | None:
        return data

    def operations(self, bits: int) -> int:
        return bits

    def throttle(self, milliseconds: int) -> int:
        return milliseconds

    def error(self, code: int) -> int:
        """An error code other than 0."""
        return code

    def session(self, session_id: int) -> int:
        return session_id

    def session_epoch(self, epoch: int) -> int:
        """Asked right behind `session`: 0 wants a new session, −1 none."""
        return epoch
