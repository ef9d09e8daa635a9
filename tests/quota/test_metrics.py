"""A coordinator's metrics, as scraped."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from urllib.request import urlopen

from penstock.metrics_server import MetricsServer, page_of
from penstock.model.events import QuotaShares
from penstock.model.ids import LogicalClusterId
from penstock.model.metric_catalogue import PROCESS, QUOTA
from penstock.quota.metrics import CoordinatorMetrics
from tests.harness.metrics import differences

if TYPE_CHECKING:
    from penstock.quota.coordinator import Coordinator

ADA = LogicalClusterId("lkc-00000a")


def test_use_and_grants_of_a_tenant_are_summed_over_all_gateways() -> None:
    shares = QuotaShares(
        ADA, 1, 1, time_ms=0, valid_ms=1,
        quota={"ingress_bytes": 100.0},
        shares={"g1": {"ingress_bytes": 60.0}, "g2": {"ingress_bytes": 40.0}},
        used={"g1": {"ingress_bytes": 30.0}, "g2": {"ingress_bytes": 5.0}},
        throttled={"g1": {"ingress_bytes": 0.25}},
    )  # fmt: skip
    coordinator = SimpleNamespace(
        owned={0, 3}, decisions=7, decide_seconds=0.5, shares=SimpleNamespace(latest={ADA: shares})
    )

    page = page_of(CoordinatorMetrics({"home": cast("Coordinator", coordinator)}))
    with (
        closing(MetricsServer(page, "127.0.0.1", 0)) as server,
        urlopen(f"http://127.0.0.1:{server.port}/metrics") as response,
    ):
        page_text = response.read().decode()
    lines = set(page_text.splitlines())
    assert differences(page_text, PROCESS, QUOTA) == []

    labels = '{dimension="ingress_bytes",tenant="lkc-00000a"}'
    assert lines >= {
        f"penstock_quota_used{labels} 35.0",
        f"penstock_quota_granted{labels} 100.0",
        f"penstock_quota_throttled_ratio{labels} 0.25",
        'penstock_quota_partitions_owned{cluster="home"} 2.0',
        'penstock_quota_decisions_total{cluster="home"} 7.0',
        'penstock_quota_decide_seconds_total{cluster="home"} 0.5',
    }
