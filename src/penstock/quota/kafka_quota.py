"""Kafka's own client quotas as a backstop behind the gateways, for each user of a tenant.

The backstop is the whole quota and never a share, because a tenant may use all of it on one broker. It
throttles clients that bypass the gateway, and tenants that a gateway fails to throttle.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from penstock.model.events import Dimension

if TYPE_CHECKING:
    from collections.abc import Mapping

# Brokers measure over other windows, and a gateway lets a burst of one second pass: at exactly the quota,
# brokers would throttle in normal operation.
BACKSTOP_HEADROOM: Final = 1.25

_RATES: Final = {"producer_byte_rate": Dimension.INGRESS_BYTES, "consumer_byte_rate": Dimension.EGRESS_BYTES}


def backstop_quotas(quota: Mapping[str, float] | Mapping[Dimension, float]) -> dict[str, float]:
    """Kafka's client quotas by name, for the dimensions that are limited. Kafka takes whole bytes only."""
    return {
        rate: float(math.ceil(quota[dimension] * BACKSTOP_HEADROOM))
        for rate, dimension in _RATES.items()
        if dimension in quota
    }
