"""What a scraper sees of a coordinator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from urllib.request import urlopen

from penstock.cli.metrics import serving
from penstock.model.events import QuotaShares
from penstock.model.ids import LogicalClusterId
from penstock.quota.metrics import Figures

if TYPE_CHECKING:
    from penstock.quota.coordinator import Coordinator

ADA = LogicalClusterId("lkc-00000a")


def test_tenants_are_scraped_with_what_they_use_and_were_granted_over_all_gateways() -> None:
    told = QuotaShares(
        ADA, 1, 1, time_ms=0, valid_ms=1,
        quota={"ingress_bytes": 100.0},
        shares={"g1": {"ingress_bytes": 60.0}, "g2": {"ingress_bytes": 40.0}},
        used={"g1": {"ingress_bytes": 30.0}, "g2": {"ingress_bytes": 5.0}},
        throttled={"g1": {"ingress_bytes": 0.25}},
    )  # fmt: skip
    coordinator = SimpleNamespace(
        owned={0, 3}, decided=7, decide_seconds=0.5, told=SimpleNamespace(last={ADA: told})
    )

    with (
        serving(Figures({"home": cast("Coordinator", coordinator)}), "127.0.0.1", 0) as port,
        urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        lines = set(answer.read().decode().splitlines())

    of = '{dimension="ingress_bytes",tenant="lkc-00000a"}'
    assert lines >= {
        f"penstock_quota_used{of} 35.0",
        f"penstock_quota_granted{of} 100.0",
        f"penstock_quota_throttled_ratio{of} 0.25",
        'penstock_quota_parts_owned{cluster="home"} 2.0',
        'penstock_quota_decisions_total{cluster="home"} 7.0',
        'penstock_quota_decide_seconds_total{cluster="home"} 0.5',
    }
