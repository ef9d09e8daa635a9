"""What the tests of the examples share: the programs, on a real Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.examples.programs import Bank, Paper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.ground.fleet import Fleet


@pytest.fixture
def bank(fleet: Fleet, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Bank]:
    made = Bank(tmp_path, fleet.client_config(), unique("payments"))
    yield made
    made.end()


@pytest.fixture
def paper(fleet: Fleet, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Paper]:
    made = Paper(tmp_path, fleet.client_config(), unique("newsroom"))
    yield made
    made.end()
