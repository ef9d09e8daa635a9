"""What an executor exports to Prometheus."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry

from penstock.olep.executor import TaskStatus
from penstock.olep.metrics import ExecutorCollector
from penstock.olep.partition_task import ExecutorCounters

if TYPE_CHECKING:
    from penstock.olep.executor import Executor


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
