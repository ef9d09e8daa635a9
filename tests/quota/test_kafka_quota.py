"""Kafka's client quotas for a tenant's users: the whole quota and some headroom, on every broker."""

from __future__ import annotations

from penstock.model.events import Dimension
from penstock.quota.kafka_quota import BACKSTOP_HEADROOM, backstop_quotas


def test_the_backstop_is_the_whole_quota_and_headroom_in_whole_bytes() -> None:
    quota = {Dimension.INGRESS_BYTES: 1_000_001.0, Dimension.EGRESS_BYTES: 4e6, Dimension.REQUESTS: 7.0}

    assert BACKSTOP_HEADROOM > 1
    assert backstop_quotas(quota) == {"producer_byte_rate": 1_250_002.0, "consumer_byte_rate": 5e6}


def test_dimensions_without_a_quota_have_no_backstop() -> None:
    assert backstop_quotas({Dimension.EGRESS_BYTES: 0.1}) == {"consumer_byte_rate": 1.0}
    assert backstop_quotas({}) == {}
