"""Fixtures for faults; each undoes its faults when the test ends.

`make_disk(directory)` returns a `FaultyDisk`, `make_link(host, port)` a `Link`, and `processes` kills,
freezes and thaws processes.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.harness.disk import FaultyDisk, without_faulty_disk
from tests.harness.network import Link
from tests.harness.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def make_disk() -> Iterator[Callable[[Path], FaultyDisk]]:
    if reason := without_faulty_disk():
        pytest.skip(reason)
    with ExitStack() as made:
        yield lambda directory: made.enter_context(FaultyDisk(directory))


@pytest.fixture
def make_link() -> Iterator[Callable[[str, int], Link]]:
    with ExitStack() as made:
        yield lambda host, port: made.enter_context(Link(host, port))


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as made:
        yield made
