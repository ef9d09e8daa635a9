"""The fuse behind gateways' quotas: what Kafka itself holds each of a tenant's users to, on each broker.

It is the whole quota and never a share, since a tenant may use all of it on any one broker. It blows for
whoever goes round the gateway, or when one fails to hold a tenant.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from penstock.model.events import Dimension

if TYPE_CHECKING:
    from collections.abc import Mapping

# Brokers measure over windows of their own, and a gateway lets a saved-up second pass: at exactly the
# quota the fuse would blow in ordinary use.
FUSE_HEADROOM: Final = 1.25

_RATES: Final = {
    "producer_byte_rate": Dimension.INGRESS_BYTES,
    "consumer_byte_rate": Dimension.EGRESS_BYTES,
}


def fuse(quota: Mapping[str, float] | Mapping[Dimension, float]) -> dict[str, float]:
    """Kafka's rates by name; what the quota does not limit has none. Kafka takes whole bytes only."""
    return {
        rate: float(math.ceil(quota[dimension] * FUSE_HEADROOM))
        for rate, dimension in _RATES.items()
        if dimension in quota
    }
