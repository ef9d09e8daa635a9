"""What an executor exports to Prometheus."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry

from penstock.olep.executor import LaneView
from penstock.olep.lane import Figures
from penstock.olep.metrics import ExecutorCollector

if TYPE_CHECKING:
    from penstock.olep.executor import Executor


def test_an_executor_exports_what_it_has_done_and_where_its_partitions_stand() -> None:
    figures = Figures()
    figures.decided, figures.rejected = 7, 2
    executor = SimpleNamespace(
        group="bank",
        log=SimpleNamespace(topic="accounts"),
        figures=figures,
        lanes=lambda: [LaneView(3, 42, 5)],
    )
    registry = CollectorRegistry()
    registry.register(ExecutorCollector(cast("Executor", executor)))
    names = {"group": "bank", "topic": "accounts"}
    values = [
        registry.get_sample_value("penstock_olep_decided_events_total", names),
        registry.get_sample_value("penstock_olep_rejected_events_total", names),
        registry.get_sample_value("penstock_olep_position_offset", names | {"partition": "3"}),
        registry.get_sample_value("penstock_olep_unacknowledged_events", names | {"partition": "3"}),
    ]
    assert values == [7, 2, 42, 5]
