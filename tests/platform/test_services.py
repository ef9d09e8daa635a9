"""The state of the control plane, as `status` and `doctor` show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.control.home import Home
from penstock.control.registry import Put, Registry
from penstock.model.entities import ActiveControlPlane
from penstock.model.errors.control import NoneActive, NotActive
from penstock.platform.services import control_plane_state

if TYPE_CHECKING:
    from tests.control.in_memory_plane import InMemoryPlane
    from tests.harness.control_api import ControlApi

HERE = "http://here:1"


def registry(url: str | None) -> Registry:
    made = Registry()
    if url is not None:
        active = ActiveControlPlane(id="active", version=1, url=url, incarnation="x", since_ms=0)
        made.accept([Put(active)])
    return made


@pytest.mark.parametrize("registered", [None, HERE])
def test_a_control_plane_that_is_not_active_never_refers_to_itself(registered: str | None) -> None:
    error = Home("pkc-000000", HERE, ()).not_active(registry(registered))

    assert isinstance(error, NoneActive)
    assert "url" not in error.facts


def test_a_standby_refers_to_another_control_plane() -> None:
    error = Home("pkc-000000", HERE, ()).not_active(registry("http://elsewhere:1"))

    assert (type(error), error.facts["url"]) == (NotActive, "http://elsewhere:1")


def test_a_control_plane_is_ready_while_one_is_known_to_be_active(
    plane: InMemoryPlane, control_api: ControlApi
) -> None:
    assert control_plane_state(control_api.url) == "ready"

    plane.active_url = ""

    assert control_plane_state(control_api.url) == "none active"
    assert control_plane_state("http://127.0.0.1:1") == "no response"
