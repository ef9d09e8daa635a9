"""The counters of a broker's plugin, as its metrics agent exports them."""

from __future__ import annotations

from pathlib import Path

from penstock.fleet import jars
from penstock.model.metric_catalogue import TIER
from penstock.tier.status import parse_counters

RULES = Path(jars.__file__).with_name("jmx.yaml").read_text()


def test_counters_are_read_from_the_text() -> None:
    text = (
        "# TYPE penstock_tier_copies counter\n"
        "penstock_tier_copies_total 12.0\n"
        "penstock_tier_copies_blocked 1.0\n"
        'penstock_broker_requests_total{api="Fetch"} 3.0\n'
        "penstock_tier_copied_bytes_total 1.2E7\n"
    )

    assert parse_counters(text) == {"copies": 12, "copies_blocked": 1, "copied_bytes": 12_000_000}


def test_the_agent_exports_every_metric_of_the_catalogue() -> None:
    for metric in TIER.metrics.values():
        assert f"name: {metric.shown_name}\n" in RULES
    assert RULES.count("name: penstock_tier_") == len(TIER.metrics)
