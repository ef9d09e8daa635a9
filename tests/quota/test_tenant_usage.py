"""A coordinator's tenants: decisions, gateways at rest, and taking over from a predecessor."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.model.events import Dimension, QuotaShares, UsageReport
from penstock.model.ids import LogicalClusterId, PhysicalClusterId
from penstock.quota.coordinator import Coordinator
from penstock.quota.tenant_usage import GATEWAYS_MAX, OwnedTenants
from penstock.wire.records import Record

if TYPE_CHECKING:
    from penstock.kafka.client import Client

INGRESS = str(Dimension.INGRESS_BYTES)
TENANT = LogicalClusterId("lkc-aaaaaa")
QUOTA = {TENANT: {INGRESS: 300.0, str(Dimension.CONNECTIONS): 10.0}}


def report(gateway: str, second: int, used: int, throttled: int = 0, connections: int = 1) -> UsageReport:
    return UsageReport(
        cluster=PhysicalClusterId("pkc-000000"),
        gateway=gateway,
        incarnation="1",
        sequence=second,
        tenant=TENANT,
        time_ms=second * 1000,
        used={INGRESS: used},
        throttled_ms={INGRESS: throttled},
        levels={str(Dimension.CONNECTIONS): connections},
    )


class OneBusyGateway:
    """Three gateways; `a` has all the traffic, beyond its limit. A decision every 10 s."""

    def __init__(self) -> None:
        self.published: QuotaShares | None = None
        self.reports: list[UsageReport] = []

    def second(self, tenants: OwnedTenants, second: int) -> QuotaShares:
        rate = 100 if self.published is None else int(self.published.limits["a"][INGRESS])
        before = self.reports[-3].used[INGRESS] if self.reports else 0
        waited = self.reports[-3].throttled_ms[INGRESS] if self.reports else 0
        arrived = [report("a", second, before + 10 * rate, waited + 8_000)]
        arrived += [report(gateway, second, 0) for gateway in ("b", "c")]
        self.reports += arrived
        for one in arrived:
            tenants.add_report(one, self.published)
        return self.decide(tenants, second)

    def decide(self, tenants: OwnedTenants, second: int) -> QuotaShares:
        (self.published,) = tenants.decide(QUOTA, second * 1000)
        return self.published


def after_three_decisions() -> tuple[OneBusyGateway, OwnedTenants]:
    scenario, tenants = OneBusyGateway(), OwnedTenants(epoch=5)
    for second in (10, 20, 30):
        scenario.second(tenants, second)
    return scenario, tenants


def test_a_tenant_with_all_its_traffic_at_one_gateway_has_its_quota_there_within_three_intervals() -> None:
    scenario, _ = after_three_decisions()

    assert scenario.published is not None
    assert scenario.published.shares["a"][INGRESS] >= 0.95 * 300
    assert sum(split[INGRESS] for split in scenario.published.shares.values()) <= 300
    assert scenario.published.used["a"][INGRESS] > 0
    assert scenario.published.throttled["a"][INGRESS] > 0
    assert scenario.published.levels == {"connections": 3}


def test_a_successor_decides_as_its_predecessor_would_have() -> None:
    scenario, tenants = after_three_decisions()
    successor = OwnedTenants(epoch=6)
    for one in scenario.reports:
        successor.add_report(one, scenario.published)

    expected = scenario.second(tenants, 40)
    for one in scenario.reports[-3:]:
        successor.add_report(one, scenario.published)
    actual = scenario.decide(successor, 40)

    assert actual.order > expected.order
    assert actual.shares["a"] == pytest.approx(expected.shares["a"])
    assert actual.used == expected.used


def test_a_successor_without_new_reports_keeps_the_shares() -> None:
    scenario, _ = after_three_decisions()
    assert scenario.published is not None
    successor = OwnedTenants(epoch=6)
    for one in scenario.reports:
        successor.add_report(one, scenario.published)

    (actual,) = successor.decide(QUOTA, 31_000)

    assert actual.shares["a"][INGRESS] == pytest.approx(scenario.published.shares["a"][INGRESS])


def test_a_gateway_at_rest_has_no_share_until_its_next_report() -> None:
    tenants = OwnedTenants(epoch=1)
    for second, rest in ((10, 0), (20, 0)):
        tenants.add_report(report("a", second, 10 * second), None)
        tenants.add_report(report("b", second, 0, connections=rest), None)
        (published,) = tenants.decide(QUOTA, second * 1000)

    assert set(published.shares) == {"a"}

    tenants.add_report(report("a", 30, 300), None)
    tenants.add_report(report("b", 30, 5), None)
    (published,) = tenants.decide(QUOTA, 30_000)

    assert set(published.shares) == {"a", "b"}


def test_only_rates_are_shared() -> None:
    tenants = OwnedTenants(epoch=1)
    tenants.add_report(report("a", 10, 0), None)

    (published,) = tenants.decide(QUOTA, 10_000)

    assert published.quota == {INGRESS: 300.0}


def test_a_tenant_without_a_quota_has_use_and_no_shares() -> None:
    tenants = OwnedTenants(epoch=1)
    for second in (10, 20):
        tenants.add_report(report("a", second, 100 * second), None)
        (published,) = tenants.decide({}, second * 1000)

    assert published.shares == {"a": {}}
    assert published.used == {"a": {INGRESS: 100.0}}


def test_a_tenant_without_recent_reports_is_forgotten() -> None:
    tenants = OwnedTenants(epoch=1)
    tenants.add_report(report("a", 10, 0), None)
    list(tenants.decide(QUOTA, 10_000))

    assert list(tenants.decide(QUOTA, 500_000)) == []


@pytest.mark.parametrize("changed", [{}, {TENANT: {INGRESS: 30.0}}])
def test_the_next_decision_applies_a_changed_quota(changed: Any) -> None:
    _, tenants = after_three_decisions()

    (published,) = tenants.decide(changed, 40_000)

    whole = changed.get(TENANT, {}).get(INGRESS, 0.0)
    assert sum(split.get(INGRESS, 0.0) for split in published.shares.values()) <= whole * (1 + 1e-9)


def test_gateways_of_one_tenant_are_bounded() -> None:
    """Their names come from reports, which a stolen gateway credential can write."""
    tenants = OwnedTenants(epoch=1)
    for number in range(GATEWAYS_MAX + 9):
        tenants.add_report(report(f"gw-{number}", 10, 0), None)
    (published,) = tenants.decide(QUOTA, 10_000)
    assert len(published.shares) == GATEWAYS_MAX

    tenants.add_report(report("gw-0", 20, 1000), None)
    (published,) = tenants.decide(QUOTA, 20_000)
    assert published.used["gw-0"] == {INGRESS: 100.0}


def test_reports_of_tenants_that_do_not_exist_are_not_kept() -> None:
    coordinator, tenants = Coordinator(cast("Client", None)), OwnedTenants(epoch=1)
    record = Record(0, 10_000, TENANT.encode(), report("a", 10, 0).to_bytes())

    coordinator._add_report(tenants, record)
    assert list(tenants.decide(QUOTA, 10_000)) == []

    coordinator._quotas[TENANT] = QUOTA[TENANT]
    coordinator._add_report(tenants, record)
    assert [each.tenant for each in tenants.decide(QUOTA, 10_000)] == [TENANT]


def test_a_report_from_the_future_does_not_stay_the_newest() -> None:
    """Of a gateway whose clock was ahead, or with a stolen credential."""
    coordinator = Coordinator(cast("Client", None))
    coordinator._quotas = dict(QUOTA)
    tenants = OwnedTenants(epoch=1)
    now_s = int(time.time())

    for one in (report("a", now_s + 1_000_000, 5), replace(report("a", now_s + 5, 7), sequence=1 << 40)):
        coordinator._add_report(tenants, Record(0, 0, one.key, one.to_bytes()))

    newest = tenants._records[TENANT].newest["a"]
    assert newest.used[INGRESS] == 7
    assert newest.time_ms <= time.time() * 1000
