"""Broker ids that are reserved for shadow brokers, which every component recognizes by them, and the
metadata versions that shadows are tested with."""

from __future__ import annotations

from typing import Final

SHADOW_IDS: Final = range(900_000_000, 900_001_000)
METADATA_VERSION: Final = "metadata.version"
METADATA_VERSIONS_TESTED: Final = (30,)  # 4.3-IV0: Fetch 18, ListOffsets 11, OffsetForLeaderEpoch 4


def is_shadow(broker: int) -> bool:
    """Whether this id belongs to a shadow broker, which stores nothing and receives no placement."""
    return broker in SHADOW_IDS
