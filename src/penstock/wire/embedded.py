"""Names inside byte strings: the consumer protocol that classic groups carry in Join- and SyncGroup.

The broker's coordinator parses a member's subscription: it keeps committed offsets alive by the
topics it finds there, and needs them when a group migrates to KIP-848. So the topics inside have
to be the broker's names, and the members' when they come back. What a client put beside them (its
user data, and whatever a later version appends) stays byte for byte. Bytes that cannot be read
pass as they are, since the protocol type is only a word that a client chose.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.wire.definitions import load
from penstock.wire.plans import embedded_plan
from penstock.wire.primitives import Malformed
from penstock.wire.rules import Kind
from penstock.wire.splicing import embedded_splicer

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.wire.names import Names

_SUBSCRIPTION: Final = "ConsumerProtocolSubscription"
_ASSIGNMENT: Final = "ConsumerProtocolAssignment"
_version = struct.Struct(">h")


def renamed_subscription(data: bytes, names: Names) -> bytes:
    return _renamed(_SUBSCRIPTION, data, names)


def renamed_assignment(data: bytes, names: Names) -> bytes:
    return _renamed(_ASSIGNMENT, data, names)


def _renamed(message: str, data: bytes, names: Names) -> bytes:
    if len(data) < _version.size:
        return data
    (version,) = _version.unpack_from(data)
    latest = load().message(message).valid_versions.last
    if version < 0:
        return data
    try:
        # A version from the future is read as the latest known one, as Kafka's own clients do.
        renamed: bytes = _splicer(message, min(version, latest))(data, names)
    except (Malformed, IndexError, struct.error):
        return data
    return renamed


@cache
def _splicer(message: str, version: int) -> Callable[[bytes, Names], Any]:
    return embedded_splicer(embedded_plan(message, version), frozenset((Kind.TOPIC,)))
