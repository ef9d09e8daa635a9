"""What the tests of event processing share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.olep.log import create_log, open_log
from tests.ground import heard
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
    heard.now(heard.topics_heard(fleet, made.setting.accounts, made.setting.notices))
    yield made
    made.end()


@pytest.fixture
def make_log(fleet: Fleet, unique: Callable[[str], str]) -> Callable[..., Log]:
    """`make_log("told", 2)` is a new log of two partitions, which every broker knows."""

    def make(name: str, partitions: int, **settings: str) -> Log:
        topic = unique(name)
        create_log(fleet.client_config(), topic, partitions, **settings)
        heard.now(heard.topics_heard(fleet, topic))
        return open_log(fleet.client_config(), topic, name=name)

    return make


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
