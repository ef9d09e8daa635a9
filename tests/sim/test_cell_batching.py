"""The paper's experiment with cells, as a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.sim.cell_batching import (
    PAPER_LOAD_WITH,
    PAPER_LOAD_WITHOUT,
    REQUEST_US,
    Costs,
    Experiment,
    compare,
    sensitivity,
    traffic,
)


def test_clients_connect_only_to_the_brokers_of_their_cell() -> None:
    result = compare(Experiment(), Costs())

    assert result.without.connections_per_client == 24
    assert result.within.connections_per_client == 6


def test_the_same_bytes_need_fewer_requests_in_cells() -> None:
    result = compare(Experiment(), Costs())

    assert result.within.kilobytes == result.without.kilobytes
    assert result.within.produces < 0.5 * result.without.produces
    assert result.within.fetches < 0.5 * result.without.fetches
    assert result.within.follower_fetches < result.without.follower_fetches


def test_load_falls_about_as_much_as_in_the_paper() -> None:
    result = compare(Experiment(), Costs())

    assert result.load_without == PAPER_LOAD_WITHOUT
    assert result.load_within == pytest.approx(PAPER_LOAD_WITH, abs=0.06)


def test_the_papers_load_is_within_the_range_of_plausible_request_costs() -> None:
    loads = sensitivity(Experiment(), REQUEST_US)

    assert list(loads.values()) == sorted(loads.values(), reverse=True)
    assert max(loads.values()) > PAPER_LOAD_WITH > min(loads.values())


def test_cells_as_large_as_the_cluster_save_nothing() -> None:
    whole = replace(Experiment(), cell_size=24)

    assert traffic(whole, cells=True) == traffic(whole, cells=False)
