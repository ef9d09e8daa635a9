"""Fixtures: the example programs on a real Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.examples.programs import BankProgram, NewsroomProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.fleet import Fleet


@pytest.fixture
def bank(fleet: Fleet, unique: Callable[[str], str], tmp_path: Path) -> Iterator[BankProgram]:
    program = BankProgram(tmp_path, fleet.client_config(), unique("payments"))
    yield program
    program.end()


@pytest.fixture
def newsroom(fleet: Fleet, unique: Callable[[str], str], tmp_path: Path) -> Iterator[NewsroomProgram]:
    program = NewsroomProgram(tmp_path, fleet.client_config(), unique("newsroom"))
    yield program
    program.end()
