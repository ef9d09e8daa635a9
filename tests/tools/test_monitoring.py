"""Alert rules and the dashboard: every metric exists, with the labels that expressions use."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from penstock.model.metric_catalogue import CONTROL, HEALTH, TABLES, Kind
from tools.monitoring import SICK_STATES, alert_rules, dashboard, metric, panels

METRICS = {metric.shown_name: metric for table in TABLES for metric in table.metrics.values()}
NAMES = {f"{m.name}_bucket" if m.kind is Kind.HISTOGRAM else shown for shown, m in METRICS.items()}


def expressions() -> list[str]:
    rules = yaml.safe_load(alert_rules())["groups"][0]["rules"]
    return [*(rule["expr"] for rule in rules), *(expression for _, _, expression, _ in panels())]


@pytest.mark.parametrize("expression", expressions())
def test_expressions_name_metrics_of_the_catalogue_and_close_what_they_open(expression: str) -> None:
    assert set(re.findall(r"\b(?:penstock|process)_\w+", expression)) <= NAMES
    for pair in ("()", "{}", "[]"):
        assert expression.count(pair[0]) == expression.count(pair[1])


def test_an_unknown_metric_or_label_is_refused() -> None:
    with pytest.raises(KeyError):
        metric(HEALTH, "mood")
    with pytest.raises(ValueError, match="penstock_control_active has no label cluster"):
        metric(CONTROL, "active", 'cluster="pkc-7hq2mz"')


def test_alerts_have_distinct_names_a_severity_and_a_page_that_exists() -> None:
    rules = yaml.safe_load(alert_rules())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert {rule["labels"]["severity"] for rule in rules} == {"page", "ticket"}
    assert "cut-off" in SICK_STATES


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    shown = json.loads(dashboard())["panels"]
    places = {(each["gridPos"]["x"], each["gridPos"]["y"]) for each in shown}
    assert len(places) == len(shown) == len({each["id"] for each in shown})
