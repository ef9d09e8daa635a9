"""Metrics agents belong to the broker whose id they export, in whatever order they are listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.control.physical.gateway_files import free_ports
from penstock.fleet.spec import Listener
from penstock.kafka.broker_metrics import parse_metrics
from penstock.kafka.metrics_agents import Agent, assign, identify
from penstock.model.errors.fleet import AgentMismatch, AgentTwice, AgentUnidentified

if TYPE_CHECKING:
    from tests.harness.fleet import Fleet

ONE, TWO = Agent.parse("kafka-1:9404"), Agent.parse("kafka-2:9404")
DECLARED = Agent.parse("2=kafka-2:9404")


@pytest.mark.kafka
async def test_agents_of_a_real_cluster_are_identified_in_any_order(fleet: Fleet) -> None:
    agents = [f"127.0.0.1:{node.spec.ports[Listener.METRICS]}" for node in fleet.brokers]

    identified = await identify(agents[::-1], {node.spec.id for node in fleet.brokers})

    expected = [(node.spec.id, "127.0.0.1", node.spec.ports[Listener.METRICS]) for node in fleet.brokers]
    assert list(identified.agents) == expected
    assert identified.unreachable == ()


@pytest.mark.kafka
async def test_an_agent_that_does_not_respond_costs_only_its_own_broker(fleet: Fleet) -> None:
    first, second, *_ = (node.spec for node in fleet.brokers)
    (closed,) = free_ports(1)
    works = f"127.0.0.1:{first.ports[Listener.METRICS]}"
    ids = {first.id, second.id}

    agents, unreachable = await identify([f"127.0.0.1:{closed}", works], ids)
    assert [broker for broker, _, _ in agents] == [first.id]
    assert [f"127.0.0.1:{closed}" in each.message for each in unreachable] == [True]
    # The operator has assigned it: it is scraped when it is back.
    agents, _ = await identify([f"{second.id}=127.0.0.1:{closed}", works], ids)
    assert {broker: port for broker, _, port in agents}[second.id] == closed


@pytest.mark.parametrize(
    "line",
    [
        'penstock_app_info_start_time_ms{id="7"} 1.7E12',
        'kafka_server_app_info_starttimems{id="7",} 1.7E12',
        'kafka_server_app_info_start_time_ms{namespace="prod",id="7"} 1.7E12',
    ],
)
def test_the_node_id_is_read_from_every_dialect(line: str) -> None:
    assert parse_metrics(f"# HELP\n{line}\nprocess_cpu_seconds_total 1\n").node_id == 7


def test_an_agent_without_a_node_id_exports_none() -> None:
    assert parse_metrics('kafka_server_replica_manager{id="7"} 1\n').node_id is None


def test_an_agent_that_exports_no_id_is_assigned_by_the_operator() -> None:
    assert assign({ONE: 1, DECLARED: None}, {1, 2}) == {1: ONE, 2: DECLARED}
    with pytest.raises(AgentUnidentified, match="kafka-2:9404"):
        assign({ONE: 1, TWO: None}, {1, 2})


def test_an_agent_of_another_broker_or_cluster_is_refused_with_both_names() -> None:
    with pytest.raises(AgentMismatch, match="kafka-2:9404 belongs to broker 1, not to broker 2"):
        assign({DECLARED: 1}, {1, 2})
    with pytest.raises(AgentMismatch, match="kafka-1:9404 belongs to broker 9"):
        assign({ONE: 9}, {1, 2})


def test_two_agents_of_one_broker_are_refused_with_both_names() -> None:
    with pytest.raises(AgentTwice, match="kafka-1:9404 and kafka-2:9404 both belong to broker 1"):
        assign({ONE: 1, TWO: 1}, {1, 2})
