"""Which tenants a gateway's metrics name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.gateway.process import metrics
from penstock.gateway.process.metrics import OTHERS, GatewayMetrics
from penstock.model.ids import LogicalClusterId
from tests.gateway.wires import TENANT, quiet_gateway

if TYPE_CHECKING:
    import pytest


def test_tenants_that_are_gone_leave_the_labels_to_those_that_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "TENANTS_SHOWN_MAX", 1)
    gateway = quiet_gateway()
    for tenant, requests in ((LogicalClusterId("lkc-zzzzzz"), 5), (TENANT.id, 7)):
        gateway.usage_of(tenant).requests = requests

    (family,) = [one for one in GatewayMetrics(gateway).collect() if one.name.endswith("gateway_requests")]

    assert {sample.labels["tenant"]: sample.value for sample in family.samples} == {TENANT.id: 7, OTHERS: 5}
