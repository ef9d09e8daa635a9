"""A control plane in memory, behind its real HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.control.in_memory_plane import ROOT
from tests.harness.control_api import ControlApi, serve_control_api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.control.in_memory_plane import InMemoryPlane


@pytest.fixture(scope="module")
def control_api() -> Iterator[ControlApi]:
    with serve_control_api() as api:
        yield api


@pytest.fixture
def plane(control_api: ControlApi, monkeypatch: pytest.MonkeyPatch) -> InMemoryPlane:
    monkeypatch.setenv("PENSTOCK_TOKEN", ROOT)
    return control_api.new_plane()
