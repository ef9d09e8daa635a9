"""The paper's experiment with cells, as a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.sim.batching import (
    PAPER_LOAD_WITH,
    PAPER_LOAD_WITHOUT,
    REQUEST_US,
    Costs,
    Experiment,
    compare,
    sensitivity,
    traffic,
)


def test_clients_connect_to_their_cells_brokers_alone() -> None:
    found = compare(Experiment(), Costs())

    assert found.without.connections_per_client == 24
    assert found.within.connections_per_client == 6


def test_the_same_bytes_need_fewer_requests_in_cells() -> None:
    found = compare(Experiment(), Costs())

    assert found.within.kilobytes == found.without.kilobytes
    assert found.within.produces < 0.5 * found.without.produces
    assert found.within.fetches < 0.5 * found.without.fetches
    assert found.within.follower_fetches < found.without.follower_fetches


def test_load_falls_by_about_as_much_as_in_the_paper() -> None:
    found = compare(Experiment(), Costs())

    assert found.load_without == PAPER_LOAD_WITHOUT
    assert found.load_within == pytest.approx(PAPER_LOAD_WITH, abs=0.06)


def test_the_papers_figure_lies_within_what_a_request_may_cost() -> None:
    loads = sensitivity(Experiment(), REQUEST_US)

    assert list(loads.values()) == sorted(loads.values(), reverse=True)
    assert max(loads.values()) > PAPER_LOAD_WITH > min(loads.values())


def test_cells_as_large_as_the_cluster_save_nothing() -> None:
    whole = replace(Experiment(), cell_size=24)

    assert traffic(whole, cells=True) == traffic(whole, cells=False)
