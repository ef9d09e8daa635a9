"""The metric catalogue: names, units and bounds that agree with the code, and one entry for each metric."""

from __future__ import annotations

import re

import pytest

from penstock.gateway.connection.states import State
from penstock.gateway.limits.admission import Denial
from penstock.gateway.tenancy.telemetry import METRICS
from penstock.model import metric_catalogue as catalogue
from penstock.model.events import Dimension
from penstock.model.metric_catalogue import TABLES, Kind, Metric
from penstock.scale.decision.values import PartitionState

EVERY = [metric for table in TABLES for metric in table.metrics.values()]
UNITS = ("bytes", "seconds", "ratio", "records", "offsets", "events", "partitions")


def test_each_name_is_listed_once() -> None:
    names = [metric.name for metric in EVERY]

    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("metric", EVERY, ids=lambda metric: metric.name)
def test_a_metric_is_named_for_its_unit_and_explains_itself(metric: Metric) -> None:
    assert re.fullmatch(r"(penstock|process)_[a-z_]+", metric.name)
    assert not metric.name.endswith("_total"), "added for counters"
    assert metric.help.endswith(".")
    last = metric.name.rpartition("_")[2]
    if last in UNITS and metric.unit != "records per second":
        assert metric.unit == ("seconds" if last == "seconds" else last)
    assert bool(metric.buckets) <= (metric.kind is Kind.HISTOGRAM)


def test_bounds_of_labels_are_those_of_the_code() -> None:
    bounds = {
        catalogue.CONNECTION_STATE: len(State),
        catalogue.DENIAL: len(Denial),
        catalogue.DIMENSION: len(Dimension),
        catalogue.PARTITION_STATE: len(PartitionState),
        catalogue.CLIENT_METRIC: len(METRICS),
    }

    assert {label: label.bound for label in bounds} == bounds
