"""The client of the control plane's HTTP API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.control.service import Role
from penstock.fleet.layout import Layout
from penstock.model.entities import OperationState
from penstock.model.errors.control import (
    ControlUnreachable,
    OperationFailed,
    OperationSlow,
    ProblemResponse,
    TokenRefused,
)
from penstock.platform.control_client import ControlClient, local_url
from tests.control.in_memory_plane import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.control.in_memory_plane import InMemoryPlane
    from tests.harness.control_api import ControlApi


def test_a_server_without_problem_documents_is_no_control_plane(control_api: ControlApi) -> None:
    for url in ("ftp://x", "http://127.0.0.1:1", f"{control_api.url}/elsewhere\x20"):
        with pytest.raises((ControlUnreachable, ProblemResponse)):
            ControlClient(url, "t")._once("GET", "/clusters", None, {})


def test_an_operation_that_fails_or_takes_too_long_is_an_error(plane: InMemoryPlane) -> None:
    del plane
    running: dict[str, object] = {
        "id": "op-1",
        "action": "cluster.create",
        "state": "running",
        "step": "access",
        "detail": "1 of 2",
    }
    running |= {"steps_done": 0, "steps_total": 2, "error": ""}
    with pytest.raises(OperationSlow):
        ControlClient("http://127.0.0.1:1", "t").wait(dict(running), seconds=-1)

    with pytest.raises(OperationFailed):
        ControlClient("http://127.0.0.1:1", "t").wait(
            running | {"state": str(OperationState.FAILED), "error": "no"}
        )


def test_a_reference_to_a_control_plane_without_tls_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def once(control: ControlClient, *_: object) -> None:
        called.append(control.url)
        standby = ProblemResponse(message="", advice="", active="http://elsewhere:1")
        standby.retriable = True  # type: ignore[misc]  # of this error alone
        raise standby

    monkeypatch.setattr(ControlClient, "_once", once)

    with pytest.raises(ControlUnreachable, match="without TLS"):
        ControlClient("https://control:1", "t").get("/clusters")

    assert called == ["https://control:1"]


def test_a_standby_refers_to_the_active_control_plane(plane: InMemoryPlane, control_api: ControlApi) -> None:
    plane.role = Role.STANDBY
    control = ControlClient(control_api.url, ROOT)

    with pytest.raises(ProblemResponse) as caught:
        control._once("POST", "/clusters", {"name": "shop"}, {})

    assert caught.value.facts["active"] == "http://elsewhere:1"
    assert caught.value.retriable


def test_where_the_local_control_plane_is(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert local_url(layout) == "http://127.0.0.1:28080"

    (tmp_path / "control.json").write_text(json.dumps({"url": "http://127.0.0.1:5"}))

    assert local_url(layout) == "http://127.0.0.1:5"


def test_without_a_token_nothing_is_called() -> None:
    with pytest.raises(TokenRefused):
        ControlClient("http://127.0.0.1:1", "").get("/clusters")
