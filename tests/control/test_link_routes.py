"""Cluster links over the HTTP API: what is shown, what may be requested, and with which role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.link.states import Action, State
from penstock.model.entities import OperatorRole
from tests.control.in_memory_plane import Api, code

if TYPE_CHECKING:
    from penstock.control.links import Row

CLUSTER = "pkc-000000"
PATH = f"/links/{CLUSTER}/east"


def link(state: State = State.MIRRORING, **values: Any) -> Row:
    progress = {
        "orders-0": {"end": 90, "source_end": 100, "lag": 10, "failed": "", "truncating": False},
    }
    row: Row = {
        "name": "east", "state": state, "step": None, "patterns": ["orders"], "topics": ["orders"],
        "partitions": 1, "lag": 10, "failed": {}, "request": 0, "error": "", "problems": {},
        "progress": progress, "tails": {},
    }  # fmt: skip
    return row | values


def test_links_are_listed_and_a_cluster_that_does_not_respond_hides_none(api: Api) -> None:
    api.plane.links.known = {(CLUSTER, "east"): link()}
    api.plane.links.unread = {"pkc-000001": "no response within 10 s"}

    shown = api("GET", "/links").json()

    assert [(one["physical_cluster"], one["name"], one["state"], one["lag"]) for one in shown["items"]] == [
        (CLUSTER, "east", "mirroring", 10)
    ]
    assert shown["unread"] == {"pkc-000001": "no response within 10 s"}


def test_a_link_is_shown_with_its_partitions_and_saved_tails(api: Api) -> None:
    tail = {"start": 500, "end": 540, "kept": 500, "emptied": False, "batches": 4, "saved": True}
    api.plane.links.known = {(CLUSTER, "east"): link(tails={"orders-0": tail})}

    shown = api("GET", PATH).json()

    assert [(one["partition"], one["end"], one["lag"]) for one in shown["progress"]] == [("orders-0", 90, 10)]
    assert shown["tails"] == [
        {"partition": "orders-0", "start": 500, "end": 540, "batches": 4, "saved": True, "kept": 500}
    ]


@pytest.mark.parametrize(
    ("action", "state"),
    [
        (Action.PAUSE, State.MIRRORING),
        (Action.RESUME, State.PAUSED),
        (Action.PROMOTE, State.MIRRORING),
        (Action.FAILOVER, State.PAUSED),
    ],
)
def test_an_action_is_audited_and_recorded_for_the_process(api: Api, action: Action, state: State) -> None:
    api.plane.links.known = {(CLUSTER, "east"): link(state)}

    accepted = api("POST", f"{PATH}/{action}")

    assert accepted.status_code == 202
    assert accepted.json()["operation"]["action"] == f"link.{action}"
    assert accepted.json()["operation"]["state"] == "done"
    assert api.plane.links.requests == [(CLUSTER, "east", action)]


def test_an_action_that_the_state_does_not_allow_is_refused(api: Api) -> None:
    api.plane.links.known = {(CLUSTER, "east"): link(State.ACTIVE)}

    assert code(api("POST", f"{PATH}/promote"), 422) == "PEN-9302"
    assert code(api("POST", f"/links/{CLUSTER}/west/promote"), 404) == "PEN-9300"
    assert code(api("GET", "/links/pkc-zzzzzz/east"), 404)
    assert api.plane.links.requests == []


def test_only_an_admin_requests_an_action(api: Api) -> None:
    api.plane.links.known = {(CLUSTER, "east"): link()}
    api.plane.add_token("reader", OperatorRole.VIEWER, "reader-secret")
    reader = {"Authorization": "Bearer reader-secret"}

    assert api("GET", PATH, None, **reader).status_code == 200
    assert code(api("POST", f"{PATH}/failover", None, **reader), 403)
    assert api.plane.links.requests == []
