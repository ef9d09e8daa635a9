from __future__ import annotations

from prometheus_client import generate_latest

from penstock.scale.decision.values import Memory
from penstock.scale.metrics import ScalerMetrics
from penstock.scale.sampler.records import Sampled
from penstock.scale.watched_groups import WatchedGroups
from tests.scale.scenarios import INTERVAL, Scenario


def page(record: Sampled, **metadata: str) -> str:
    among = WatchedGroups({"default": INTERVAL})
    watch = among.admit("shop/billing", {"group": "billing", "topic": "orders", **metadata}, 0.0)
    memory = Memory(requested=2, capacity=100.0, measured_at=record.at)
    for each in among.take(record, record.at):
        each.memory = memory
        each.verdict = None
        each.current_verdict(record.at)
    assert watch is not None
    return generate_latest(ScalerMetrics(among).registry).decode()


def test_the_capacity_of_a_replica_is_that_of_all_its_members() -> None:
    sample = Scenario().sample()
    record = Sampled("default", 1, sample.at, "one", {"billing": sample})

    text = page(record, consumersPerReplica="3")

    assert 'penstock_scale_replica_capacity_records_per_second{cluster="default",group="billing"' in text
    assert 'scaled_object="shop/billing"} 300.0' in text


def test_a_group_that_cannot_be_sampled_is_shown() -> None:
    sample = Scenario().sample()
    among = WatchedGroups({"default": INTERVAL})
    among.admit("shop/billing", {"group": "billing", "topic": "orders"}, 0.0)
    among.take(Sampled("default", 1, sample.at, "one", failures={"billing": "denied"}), sample.at)

    text = generate_latest(ScalerMetrics(among).registry).decode()

    labels = '{cluster="default",group="billing",scaled_object="shop/billing"}'
    assert f"penstock_scale_sample_failing{labels} 1.0" in text
