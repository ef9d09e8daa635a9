"""What Kafka holds a tenant's users to: the whole quota and some more, on every broker."""

from __future__ import annotations

from penstock.model.events import Dimension
from penstock.quota.fuse import FUSE_HEADROOM, fuse


def test_a_fuse_is_the_whole_quota_and_headroom_in_whole_bytes() -> None:
    quota = {Dimension.INGRESS_BYTES: 1_000_001.0, Dimension.EGRESS_BYTES: 4e6, Dimension.REQUESTS: 7.0}

    assert FUSE_HEADROOM > 1
    assert fuse(quota) == {"producer_byte_rate": 1_250_002.0, "consumer_byte_rate": 5e6}


def test_what_a_quota_does_not_limit_has_no_fuse() -> None:
    assert fuse({Dimension.EGRESS_BYTES: 0.1}) == {"consumer_byte_rate": 1.0}
    assert fuse({}) == {}
