"""Metrics built from the catalogue."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock.metric_families import Samples, instrument
from penstock.model.metric_catalogue import CONSUME, GATEWAY, SCALE


def test_every_metric_of_a_table_is_exported_even_without_a_sample() -> None:
    samples = Samples(GATEWAY)
    samples.add("connections", 3, "serving")

    families = {family.name: family for family in samples}

    assert families.keys() == {metric.name for metric in GATEWAY.metrics.values()}
    (sample,) = families["penstock_gateway_connections"].samples
    assert (sample.labels, sample.value) == ({"state": "serving"}, 3)


def test_a_metric_or_label_that_is_not_in_the_catalogue_is_refused() -> None:
    samples = Samples(GATEWAY)

    with pytest.raises(KeyError):
        samples.add("temperature", 21.5)
    with pytest.raises(AssertionError, match="labels"):
        samples.add("connections", 3)
    with pytest.raises(AssertionError, match="labels"):
        Samples(CONSUME).add_histogram("handler_seconds", [("+Inf", 1)], 0.5)


def test_a_kept_metric_has_the_kind_labels_and_help_of_the_catalogue() -> None:
    registry = CollectorRegistry()

    instrument(Counter, SCALE, "round_failures", registry).labels("home", "PEN-1").inc()

    value = registry.get_sample_value(
        "penstock_scale_round_failures_total", {"cluster": "home", "error": "PEN-1"}
    )
    assert value == 1
    with pytest.raises(AssertionError):
        instrument(Gauge, SCALE, "sampler_exits", registry)
