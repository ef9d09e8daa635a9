"""A coordinator's knowledge of its tenants: decisions, gateways at rest, and taking over."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.model.events import Dimension, QuotaShares, UsageReport
from penstock.model.ids import LogicalClusterId, PhysicalClusterId
from penstock.quota.tenants import Tenants

INGRESS = str(Dimension.INGRESS_BYTES)
TENANT = LogicalClusterId("lkc-aaaaaa")
QUOTA = {TENANT: {INGRESS: 300.0, str(Dimension.CONNECTIONS): 10.0}}
POINTS = ("a", "b", "c")


def report(point: str, second: int, used: int, throttled: int = 0, connections: int = 1) -> UsageReport:
    return UsageReport(
        cluster=PhysicalClusterId("pkc-000000"),
        gateway=point,
        incarnation="1",
        sequence=second,
        tenant=TENANT,
        time_ms=second * 1000,
        used={INGRESS: used},
        throttled_ms={INGRESS: throttled},
        levels={str(Dimension.CONNECTIONS): connections},
    )


class Ground:
    """Three gateways, of which `a` has all the traffic, more than it may; a decision every 10 s."""

    def __init__(self) -> None:
        self.told: QuotaShares | None = None
        self.past: list[UsageReport] = []

    def second(self, tenants: Tenants, second: int) -> QuotaShares:
        rate = 100 if self.told is None else int(self.told.limits["a"][INGRESS])
        before = self.past[-3].used[INGRESS] if self.past else 0
        waited = self.past[-3].throttled_ms[INGRESS] if self.past else 0
        arrived = [report("a", second, before + 10 * rate, waited + 8_000)]
        arrived += [report(point, second, 0) for point in ("b", "c")]
        self.past += arrived
        for one in arrived:
            tenants.take(one, self.told)
        return self.decided(tenants, second)

    def decided(self, tenants: Tenants, second: int) -> QuotaShares:
        (self.told,) = tenants.decide(QUOTA, second * 1000)
        return self.told


def lopsided() -> tuple[Ground, Tenants]:
    ground, tenants = Ground(), Tenants(epoch=5)
    for second in (10, 20, 30):
        ground.second(tenants, second)
    return ground, tenants


def test_a_tenant_with_all_its_traffic_at_one_gateway_has_its_quota_there_within_three_intervals() -> None:
    ground, _ = lopsided()

    assert ground.told is not None
    assert ground.told.shares["a"][INGRESS] >= 0.95 * 300
    assert sum(split[INGRESS] for split in ground.told.shares.values()) <= 300
    assert ground.told.used["a"][INGRESS] > 0
    assert ground.told.throttled["a"][INGRESS] > 0
    assert ground.told.levels == {"connections": 3}


def test_whoever_takes_over_goes_on_from_what_was_told_and_counted() -> None:
    ground, tenants = lopsided()
    successor = Tenants(epoch=6)
    for past in ground.past:
        successor.take(past, ground.told)

    expected, found = ground.second(tenants, 40), None
    for past in ground.past[-3:]:
        successor.take(past, ground.told)
    found = ground.decided(successor, 40)

    assert found.order > expected.order
    assert found.shares["a"] == pytest.approx(expected.shares["a"])
    assert found.used == expected.used


def test_whoever_takes_over_and_hears_nothing_new_leaves_the_shares_where_they_are() -> None:
    ground, _ = lopsided()
    assert ground.told is not None
    successor = Tenants(epoch=6)
    for past in ground.past:
        successor.take(past, ground.told)

    (found,) = successor.decide(QUOTA, 31_000)

    assert found.shares["a"][INGRESS] == pytest.approx(ground.told.shares["a"][INGRESS])


def test_a_gateway_at_rest_is_given_no_share_and_one_with_its_next_report() -> None:
    tenants = Tenants(epoch=1)
    for second, rest in ((10, 0), (20, 0)):
        tenants.take(report("a", second, 10 * second), None)
        tenants.take(report("b", second, 0, connections=rest), None)
        (told,) = tenants.decide(QUOTA, second * 1000)

    assert set(told.shares) == {"a"}

    tenants.take(report("a", 30, 300), None)
    tenants.take(report("b", 30, 5), None)
    (told,) = tenants.decide(QUOTA, 30_000)

    assert set(told.shares) == {"a", "b"}


def test_only_rates_are_shared() -> None:
    tenants = Tenants(epoch=1)
    tenants.take(report("a", 10, 0), None)

    (told,) = tenants.decide(QUOTA, 10_000)

    assert told.quota == {INGRESS: 300.0}


def test_a_tenant_without_a_quota_is_told_of_its_use_alone() -> None:
    tenants = Tenants(epoch=1)
    for second in (10, 20):
        tenants.take(report("a", second, 100 * second), None)
        (told,) = tenants.decide({}, second * 1000)

    assert told.shares == {"a": {}}
    assert told.used == {"a": {INGRESS: 100.0}}


def test_a_tenant_of_which_nothing_is_heard_any_more_is_forgotten() -> None:
    tenants = Tenants(epoch=1)
    tenants.take(report("a", 10, 0), None)
    list(tenants.decide(QUOTA, 10_000))

    assert list(tenants.decide(QUOTA, 500_000)) == []


@pytest.mark.parametrize("changed", [{}, {TENANT: {INGRESS: 30.0}}])
def test_a_changed_quota_is_shared_out_with_the_next_decision(changed: Any) -> None:
    ground, tenants = lopsided()
    del ground

    (told,) = tenants.decide(changed, 40_000)

    whole = changed.get(TENANT, {}).get(INGRESS, 0.0)
    assert sum(split.get(INGRESS, 0.0) for split in told.shares.values()) <= whole * (1 + 1e-9)
