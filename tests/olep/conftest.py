"""Fixtures of the event-processing tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.olep.log import create_log, open_log
from tests.harness import propagation
from tests.harness.postgres import PostgresServer, without_postgres
from tests.harness.valkey import ValkeyServer, without_valkey
from tests.olep.bank_harness import BankHarness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.olep.log import Log
    from tests.harness.fleet import Fleet


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    if reason := without_postgres():
        pytest.skip(reason)
    with PostgresServer.start() as server:
        yield server


@pytest.fixture
def harness(fleet: Fleet, unique: Callable[[str], str], tmp_path: Path) -> Iterator[BankHarness]:
    """A bank with its topics and no running process."""
    harness = BankHarness(tmp_path, fleet.client_config(), unique("bank"))
    propagation.run_in_thread(
        propagation.wait_for_topics(fleet, harness.settings.accounts, harness.settings.notices)
    )
    yield harness
    harness.end()


@pytest.fixture
def make_log(fleet: Fleet, unique: Callable[[str], str]) -> Callable[..., Log]:
    """`make_log("totals", 2)` creates a log of two partitions and waits until every broker knows it."""

    def create(name: str, partitions: int, **settings: Any) -> Log:
        topic = unique(name)
        create_log(fleet.client_config(), topic, partitions, **settings)
        propagation.run_in_thread(propagation.wait_for_topics(fleet, topic))
        return open_log(fleet.client_config(), topic, name=name)

    return create


@pytest.fixture
def log(make_log: Callable[..., Log]) -> Log:
    """A new log of three partitions, named `counts`."""
    return make_log("counts", 3)


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    if reason := without_valkey():
        pytest.skip(reason)
    with ValkeyServer.start() as server:
        yield server
