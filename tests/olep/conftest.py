"""What the tests of event processing share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.olep.log import create_log, open_log
from tests.ground.postgres import PostgresServer, without_postgres
from tests.ground.valkey import ValkeyServer, without_valkey
from tests.olep.ground import BankGround

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.olep.log import Log
    from tests.ground.fleet import Fleet


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    if reason := without_postgres():
        pytest.skip(reason)
    with PostgresServer.start() as server:
        yield server


@pytest.fixture
def ground(fleet: Fleet, unique: Callable[[str], str], tmp_path: Path) -> Iterator[BankGround]:
    """A bank with its topics; no process of it runs."""
    made = BankGround(tmp_path, fleet.client_config(), unique("bank"))
    yield made
    made.end()


@pytest.fixture
def log(fleet: Fleet, unique: Callable[[str], str]) -> Log:
    """A new log of three partitions, named `counts`."""
    topic = unique("log")
    create_log(fleet.client_config(), topic, 3)
    return open_log(fleet.client_config(), topic, name="counts")


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    if reason := without_valkey():
        pytest.skip(reason)
    with ValkeyServer.start() as server:
        yield server
