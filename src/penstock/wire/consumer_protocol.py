"""Rename topics in the consumer protocol, which JoinGroup and SyncGroup carry as byte strings.

The broker's coordinator parses a member's subscription. It keeps committed offsets of the subscribed topics
alive, and needs them when a group migrates to KIP-848. So these topics must have the broker's names there,
and the tenant's on the way back. The client's user data and the fields of later versions stay unchanged. So
do bytes that cannot be read, since clients choose the protocol type freely.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.wire.codec_runtime import Malformed
from penstock.wire.codegen.whole import embedded_splicer
from penstock.wire.definitions import load
from penstock.wire.field_rules import Kind
from penstock.wire.plans import embedded_plan

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
        # Kafka's own clients, too, read an unknown version as the latest known one.
        renamed: bytes = _splicer(message, min(version, latest))(data, names)
    except (Malformed, IndexError, struct.error):
        return data
    return renamed


@cache
def _splicer(message: str, version: int) -> Callable[[bytes, Names], Any]:
    return embedded_splicer(embedded_plan(message, version), frozenset((Kind.TOPIC,)))
