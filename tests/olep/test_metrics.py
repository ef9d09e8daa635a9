"""What executors and views export to Prometheus."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry, generate_latest

from penstock.model.metric_catalogue import OLEP, OLEP_VIEW
from penstock.olep.executor import TaskStatus
from penstock.olep.metrics import ExecutorCollector, ViewCollector
from penstock.olep.partition_task import ExecutorCounters
from penstock.olep.position import Position
from penstock.olep.view.runner import Progress
from tests.harness.metrics import differences

if TYPE_CHECKING:
    from penstock.olep.executor import Executor
    from penstock.olep.view.runner import ViewRunner


def test_an_executor_exports_its_counters_and_the_position_of_its_partitions() -> None:
    counters = ExecutorCounters()
    counters.decided, counters.rejected = 7, 2
    executor = SimpleNamespace(
        group="bank",
        log=SimpleNamespace(topic="accounts"),
        counters=counters,
        tasks=lambda: [TaskStatus(3, 42, 5)],
        suspended=lambda: {4: "the server is down"},
    )
    registry = CollectorRegistry()
    registry.register(ExecutorCollector(cast("Executor", executor)))
    names = {"group": "bank", "topic": "accounts"}
    values = [
        registry.get_sample_value("penstock_olep_decided_events_total", names),
        registry.get_sample_value("penstock_olep_rejected_events_total", names),
        registry.get_sample_value("penstock_olep_position_offset", names | {"partition": "3"}),
        registry.get_sample_value("penstock_olep_unacknowledged_events", names | {"partition": "3"}),
        registry.get_sample_value("penstock_olep_suspended_partitions", names),
    ]
    assert values == [7, 2, 42, 5, 1]
    assert differences(generate_latest(registry).decode(), OLEP) == []


def test_a_view_exports_its_progress_and_whether_it_fails() -> None:
    progress = Progress("balances", 2, Position({}), 9, 7, 2, rate=1.0, lag=3, failure="the disk is full")
    runner = SimpleNamespace(log=SimpleNamespace(topic="accounts"), progress=lambda: progress)
    registry = CollectorRegistry()
    registry.register(ViewCollector(cast("ViewRunner", runner)))

    names = {"view": "balances", "topic": "accounts"}
    values = {
        name: registry.get_sample_value(f"penstock_olep_view_{name}", names)
        for name in (
            "records_total",
            "applied_events_total",
            "skipped_events_total",
            "lag_offsets",
            "failing",
        )
    }

    assert list(values.values()) == [9, 7, 2, 3, 1]
    assert differences(generate_latest(registry).decode(), OLEP_VIEW) == []
