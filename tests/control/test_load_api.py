"""Broker load over the HTTP API and in metrics: known, unknown, and by which profile."""

from __future__ import annotations

import pytest

from penstock.balance.broker_load import NO_AGENT
from penstock.model.entities import OperatorRole, PhysicalCluster
from penstock.model.events import BrokerLoad
from penstock.model.ids import BrokerId, PhysicalClusterId
from tests.control.in_memory_plane import Api, code

CLUSTER = PhysicalClusterId("pkc-000000")
PATH = f"/physical-clusters/{CLUSTER}"


def measured(broker: int, load: float | None) -> BrokerLoad:
    missing = () if load is not None else (NO_AGENT,)
    return BrokerLoad(CLUSTER, BrokerId(broker), 1_000, 40 if load is not None else None, load, missing)


def test_the_load_of_a_cluster_is_shown_with_its_brokers(api: Api) -> None:
    api.plane.broker_loads = {CLUSTER: (measured(1, 0.75), measured(2, 0.25))}

    shown = api("GET", f"{PATH}/load").json()

    assert (shown["load"], shown["imbalance"], shown["unknown"]) == (0.75, pytest.approx(1.5), [])
    assert [(each["broker"], each["load"]) for each in shown["brokers"]] == [(1, 0.75), (2, 0.25)]


def test_an_unknown_broker_is_named_and_makes_the_cluster_unknown(api: Api) -> None:
    api.plane.broker_loads = {CLUSTER: (measured(1, 0.75), measured(2, None))}

    shown = api("GET", f"{PATH}/load").json()

    assert (shown["load"], shown["imbalance"]) == (None, None)
    assert shown["unknown"] == [f"broker 2: {NO_AGENT}"]
    assert code(api("GET", "/physical-clusters/pkc-zzzzzz/load"), 404)


def test_an_unknown_load_has_no_sample_in_the_metrics(api: Api) -> None:
    api.plane.broker_loads = {CLUSTER: (measured(1, 0.75), measured(2, None))}
    partly = api.client.get("/metrics").text
    api.plane.broker_loads = {CLUSTER: (measured(1, 0.75), measured(2, 0.25))}
    whole = api.client.get("/metrics").text

    assert f'penstock_balance_broker_load_ratio{{broker="1",cluster="{CLUSTER}"}} 0.75' in partly
    assert 'broker="2"' not in partly
    assert "penstock_balance_imbalance_ratio{" not in partly
    assert f'penstock_balance_imbalance_ratio{{cluster="{CLUSTER}"}} 1.5' in whole


def test_a_cell_without_measurements_has_no_load(api: Api) -> None:
    api.plane.loads = {f"{CLUSTER}/cell-1": 0.25}

    assert [cell["load"] for cell in api("GET", "/cells").json()["items"]] == [0.25, None]


def test_a_profile_is_stored_with_the_cluster(api: Api) -> None:
    made = api("PUT", f"{PATH}/load-profile", {"wait_factor": 0.4, "blend_from": 0.3})

    assert made.status_code == 200
    assert api.plane.registry.need(PhysicalCluster, CLUSTER).load_profile["wait_factor"] == 0.4
    assert api("GET", f"{PATH}/load").json()["profile"]["blend_from"] == 0.3


@pytest.mark.parametrize("values", [{"wait_factor": 0}, {"blend_from": 0.9}, {"weight": 1}])
def test_an_impossible_profile_is_refused(api: Api, values: dict[str, float]) -> None:
    assert code(api("PUT", f"{PATH}/load-profile", values), 422)
    assert not api.plane.registry.need(PhysicalCluster, CLUSTER).load_profile


def test_only_an_admin_sets_the_profile(api: Api) -> None:
    api.plane.add_token("reader", OperatorRole.VIEWER, "reader-secret")

    assert code(api("PUT", f"{PATH}/load-profile", {}, Authorization="Bearer reader-secret"), 403)
