"""Gateways for tests: one shared with two tenants, and as many of one's own as a test wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.ground.gateway import Access, RunningGateway, new_access, start_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.ground.fleet import Fleet


@pytest.fixture(scope="session")
def gateway(fleet: Fleet) -> Iterator[RunningGateway]:
    """One gateway before the shared fleet, with two tenants; tests leave it as they found it."""
    running = start_gateway(fleet, [new_access(), new_access()])
    yield running
    running.stop()


@pytest.fixture
def ada(gateway: RunningGateway) -> Access:
    return _living(gateway).accesses[0]


@pytest.fixture
def bob(gateway: RunningGateway) -> Access:
    return _living(gateway).accesses[1]


@pytest.fixture
def make_gateway(fleet: Fleet) -> Iterator[Callable[..., RunningGateway]]:
    made: list[RunningGateway] = []

    def make(*accesses: Access, **more: Any) -> RunningGateway:
        running = start_gateway(fleet, accesses, **more)
        made.append(running)
        return running

    yield make
    for running in made:
        running.stop()


def _living(running: RunningGateway) -> RunningGateway:
    assert running.thread.is_alive(), (
        "a test before this one ended the shared gateway; use make_gateway for that"
    )
    return running
