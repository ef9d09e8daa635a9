"""Compares what a process exports with the metric catalogue, both ways."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from penstock.model.metric_catalogue import Table

OF_BUCKETS = "le"


def differences(page: str, *tables: Table) -> list[str]:
    """Metrics that only one side has, and series whose type, help, labels or bounds differ."""
    catalogue = {metric.name: metric for table in tables for metric in table.metrics.values()}
    parsed = [each for each in text_string_to_metric_families(page) if not each.name.endswith("_created")]
    families = {family.name: family for family in parsed}
    wrong = [f"{name}: not in the catalogue" for name in families.keys() - catalogue.keys()]
    wrong += [f"{name}: not exported" for name in catalogue.keys() - families.keys()]
    for name in families.keys() & catalogue.keys():
        family, metric = families[name], catalogue[name]
        if (family.type, family.documentation) != (metric.kind, metric.help):
            wrong.append(f"{name}: {family.type} {family.documentation!r}")
        values: defaultdict[str, set[str]] = defaultdict(set)
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            for label, value in sample.labels.items():
                values[label].add(value)
            if sample.labels.keys() - {OF_BUCKETS} != {label.name for label in metric.labels}:
                wrong.append(f"{name}: labels {sorted(sample.labels)}")
        wrong += [
            f"{name}: {len(values[label.name])} values of {label.name}"
            for label in metric.labels
            if label.bound is not None and len(values[label.name]) > label.bound
        ]
    return sorted(set(wrong))
