"""The HTTP API: what it answers, whom it lets in, and how it says no."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from penstock.balance.cells import CellId, NewCell
from penstock.control.api import PROBLEMS, make_api
from penstock.control.checker import Difference, Kind
from penstock.control.relieving import needs_cell
from penstock.control.routes import router
from penstock.control.service import Role
from penstock.model.entities import ApiKey, LogicalCluster, Operation, OperatorRole
from penstock.model.errors.control import ControlError
from penstock.model.errors.wire import KafkaBusy
from tests.control.ground import PHYSICAL, Paper
from tests.control.paper_plane import ROOT, PaperPlane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI


class Api:
    """A client with a token."""

    def __init__(self, plane: PaperPlane, client: TestClient) -> None:
        self.plane, self.client, self.secret = plane, client, ROOT

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = {"Authorization": f"Bearer {self.secret}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return self.client.request(method, f"/v1{path}", json=body, headers=sent)

    def made(self, name: str = "shop", **more: Any) -> dict[str, Any]:
        answer = self("POST", "/clusters", {"name": name, **more})
        assert answer.status_code == 202, answer.text
        cluster: dict[str, Any] = answer.json()["cluster"]
        return cluster


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """One app for all: to make it takes longer than most tests."""
    with TestClient(make_api(), raise_server_exceptions=False) as one:
        yield one


@pytest.fixture
def api(client: TestClient) -> Api:
    plane = PaperPlane()
    cast("FastAPI", client.app).state.plane = plane  # the client knows it as any application
    return Api(plane, client)


def code(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: str = answer.json()["code"]
    return found


def test_a_cluster_is_asked_for_in_terms_of_its_workload(api: Api) -> None:
    answer = api("POST", "/clusters", {"name": "shop", "needs": {"ingress_bytes": 2e7, "partitions": 300}})

    body = answer.json()
    assert answer.status_code == 202
    assert body["cluster"]["units"] == 4
    assert body["cluster"]["quota"]["ingress_bytes"] == 2e7
    assert body["cluster"]["bootstrap"] == "127.0.0.1:28001"
    assert answer.headers["Location"] == f"/v1/operations/{body['operation']['id']}"
    assert api("GET", answer.headers["Location"].removeprefix("/v1")).json()["state"] == "done"


def test_a_cluster_is_found_by_id_and_by_name(api: Api) -> None:
    made = api.made()

    assert api("GET", f"/clusters/{made['id']}").json() == api("GET", "/clusters/shop").json()
    assert code(api("GET", "/clusters/nobody"), 404) == "PEN-5001"


def test_two_editors_cannot_overwrite_each_other(api: Api) -> None:
    api.made()
    etag = api("GET", "/clusters/shop").headers["ETag"]
    assert code(api("PATCH", "/clusters/shop", {"units": 2}), 428) == "PEN-5012"
    assert api("PATCH", "/clusters/shop", {"units": 2}, If_Match=etag).status_code == 202

    assert code(api("PATCH", "/clusters/shop", {"units": 3}, If_Match=etag), 412) == "PEN-5002"

    assert api("GET", "/clusters/shop").json()["units"] == 2
    assert api("PATCH", "/clusters/shop", {"units": 3}, If_Match="*").status_code == 202
    assert code(api("PATCH", "/clusters/shop", {"units": 3}, If_Match="x"), 422) == "PEN-5013"


def test_an_update_changes_what_it_names_and_nothing_else(api: Api) -> None:
    before = api.made(labels={"team": "web"})
    change = {"network": {"allow": ["10.0.0.0/8"]}, "overrides": {"requests": 9}, "name": "store"}

    after = api("PATCH", "/clusters/shop", change, If_Match="*").json()["cluster"]

    assert (after["name"], after["network"]["allow"], after["quota"]["requests"]) == (
        "store",
        ["10.0.0.0/8"],
        9,
    )
    assert (after["labels"], after["id"]) == (before["labels"], before["id"])


def test_a_change_that_is_sent_twice_is_made_once(api: Api) -> None:
    first = api("POST", "/clusters", {"name": "shop"}, Idempotency_Key="abc")

    again = api("POST", "/clusters", {"name": "shop"}, Idempotency_Key="abc")

    assert first.json()["operation"]["id"] == again.json()["operation"]["id"]
    assert api.plane.registry.count(LogicalCluster) == 1
    assert code(api("POST", "/clusters", {"name": "other"}, Idempotency_Key="abc"), 422) == "PEN-5009"
    assert code(api("POST", "/clusters", {"name": "shop"}), 409) == "PEN-5003"


def test_a_secret_is_told_once(api: Api) -> None:
    api.made()
    first = api("POST", "/clusters/shop/keys", {}, Idempotency_Key="k").json()
    again = api("POST", "/clusters/shop/keys", {}, Idempotency_Key="k").json()
    key = api("GET", f"/keys/{first['key']['id']}")

    assert len(first["secret"]) == 64
    assert again["secret"] is None
    assert again["key"]["id"] == first["key"]["id"]
    assert first["secret"] not in json.dumps([key.json(), api("GET", "/export").json()])
    assert "sha256" not in key.text


def test_keys_are_rotated_and_revoked(api: Api) -> None:
    api.made()
    old = api("POST", "/clusters/shop/keys", {"description": "app"}).json()["key"]["id"]

    new = api("POST", f"/keys/{old}/rotate", {"grace_seconds": 5}).json()

    assert new["secret"]
    assert new["key"]["description"] == "app"
    assert [key["id"] for key in api("GET", "/clusters/shop/keys").json()["items"]] == [new["key"]["id"]]
    assert api("DELETE", f"/keys/{new['key']['id']}", Idempotency_Key="r").json()["key"] is None
    assert api("DELETE", f"/keys/{new['key']['id']}", Idempotency_Key="r").status_code == 202
    assert code(api("DELETE", f"/keys/{new['key']['id']}"), 404) == "PEN-5001"
    assert api.plane.registry.count(ApiKey) == 0


def test_accounts_and_their_grants(api: Api) -> None:
    api.made()
    grant = {"resource": "topic", "name": "orders", "operation": "read"}
    made = api("POST", "/clusters/shop/accounts", {"name": "app", "grants": [grant]}).json()["account"]
    path = f"/accounts/{made['id']}"
    etag = api("GET", path).headers["ETag"]

    changed = api("PATCH", path, {"grants": []}, If_Match=etag).json()["account"]

    assert made["grants"] == [grant | {"pattern": "literal"}]
    assert changed["grants"] == []
    assert {a["name"] for a in api("GET", "/clusters/shop/accounts").json()["items"]} == {"owner", "app"}
    assert api("DELETE", path, Idempotency_Key="d").status_code == 202
    assert api("DELETE", path, Idempotency_Key="d").status_code == 202
    assert code(api("GET", path), 404) == "PEN-5001"


def test_pages_go_by_cursor(api: Api) -> None:
    made = {api.made(f"shop-{n}")["id"] for n in range(5)}
    seen, cursor = set(), ""
    while True:
        page = api("GET", f"/clusters?limit=2&cursor={cursor}").json()
        assert 0 < len(page["items"]) <= 2
        seen |= {cluster["id"] for cluster in page["items"]}
        cursor = page["cursor"]
        if cursor is None:
            break

    assert seen == made
    assert [c["name"] for c in api("GET", "/clusters?name=shop-3").json()["items"]] == ["shop-3"]
    assert code(api("GET", "/clusters?cursor=%C3%BC"), 422) == "PEN-5013"
    assert code(api("GET", "/clusters?limit=0"), 422) == "PEN-5013"


def test_operations_are_listed_by_cluster_and_state(api: Api) -> None:
    api.made("one")
    api.made("two")

    mine = api("GET", "/operations?cluster=one").json()["items"]

    assert [operation["action"] for operation in mine] == ["cluster.create"]
    assert api("GET", "/operations?state=running").json()["items"] == []
    assert len(api("GET", "/operations?state=done&limit=1").json()["items"]) == 1


def test_every_list_is_asked_for_and_answered_in_one_way(api: Api) -> None:
    document = api.client.get("/v1/openapi.json").json()
    lists = [
        operation
        for path, methods in document["paths"].items()
        if path in {route.path for route in router.routes if isinstance(route, APIRoute)}
        for operation in methods.values()
        if operation["operationId"].startswith("list")
    ]

    assert len(lists) == 8
    for operation in lists:
        asked = {parameter["name"] for parameter in operation["parameters"]}
        shape = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        assert {"limit", "cursor"} <= asked, operation["operationId"]
        assert "/Page_" in shape
        assert set(document["components"]["schemas"][shape.rpartition("/")[2]]["properties"]) == {
            "items",
            "cursor",
        }


@pytest.mark.parametrize(
    "path",
    ["/clusters", "/clusters/shop/accounts", "/clusters/shop/keys", "/operations", "/cells", "/tokens"],
)
def test_pages_of_one_make_up_the_whole_list(api: Api, path: str) -> None:
    for name in ("shop", "mill"):
        api.made(name)
        api("POST", "/clusters/shop/accounts", {"name": f"of-{name}"})
        api("POST", "/clusters/shop/keys", {})
        api("POST", "/tokens", {"name": f"of-{name}", "role": "viewer"})
    whole = api("GET", path).json()
    found, cursor = [], ""

    while True:
        page = api("GET", f"{path}?limit=1&cursor={cursor}").json()
        found += page["items"]
        cursor = page["cursor"]
        if cursor is None:
            break

    assert whole["cursor"] is None
    assert len(found) > 1
    assert found == whole["items"]


def test_a_cluster_is_moved_and_deleted(api: Api) -> None:
    before = api.made()["cell"]

    moved = api("POST", "/clusters/shop/move", {})

    assert moved.status_code == 202
    assert api("GET", "/clusters/shop").json()["cell"] != before
    cells = {cell["id"]: cell["clusters"] for cell in api("GET", "/cells").json()["items"]}
    assert cells[before] == 0
    assert api("DELETE", "/clusters/shop").json()["operation"]["action"] == "cluster.delete"
    assert code(api("GET", "/clusters/shop"), 404) == "PEN-5001"


def test_a_dedicated_cluster_on_an_adopted_one_needs_it_to_be_empty(api: Api) -> None:
    api.plane.not_empty = ("west",)
    wanted = {"name": "alone", "tenancy": "dedicated", "needs": {"ingress_bytes": 60e6}}

    assert code(api("POST", "/clusters", wanted | {"adopted": "west"}), 422) == "PEN-2027"
    made = api("POST", "/clusters", wanted | {"adopted": "east"}, Idempotency_Key="once").json()
    api.plane.not_empty = ("east",)  # what was made is there now
    again = api("POST", "/clusters", wanted | {"adopted": "east"}, Idempotency_Key="once").json()

    assert made["cluster"]["units"] == 1  # by the table of real brokers
    assert again["cluster"]["id"] == made["cluster"]["id"]


def test_physical_clusters_are_shown(api: Api) -> None:
    (listed,) = api("GET", "/physical-clusters").json()["items"]

    assert api("GET", f"/physical-clusters/{listed['id']}").json() == listed
    assert (listed["brokers"], listed["cells"], listed["zones"]) == (6, 2, ["a", "b", "c"])


def test_a_cluster_that_needs_a_cell_says_so_with_its_cells_and_in_metrics(api: Api) -> None:
    wanted = NewCell(3, "cell-1 full", (CellId("cell-1"),))
    paper = api.plane.paper
    paper.accept(needs_cell(paper.registry, paper.ask(), PHYSICAL, wanted, "buy three"))

    full, other = api("GET", "/cells").json()["items"]
    (physical,) = api("GET", "/physical-clusters").json()["items"]

    (condition,) = full["conditions"]
    assert (condition["kind"], condition["remedy"]) == ("needs-cell", "buy three")
    assert other["conditions"] == []
    assert physical["conditions"] == full["conditions"]
    line = f'penstock_control_cell_needed_brokers{{cluster="{PHYSICAL}"}} 3.0'
    assert line in api.client.get("/metrics").text


@pytest.mark.parametrize("header", ["", "Basic abc", "Bearer wrong", "Bearer"])
def test_without_a_token_nothing_is_answered(api: Api, header: str) -> None:
    answer = api.client.get("/v1/clusters", headers={"Authorization": header})

    assert code(answer, 401) == "PEN-5010"
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_before_there_is_any_token_a_caller_is_asked_to_wait(api: Api) -> None:
    api.plane.registry.apply(b"operator-token/root", None)

    assert code(api("GET", "/clusters"), 503) == "PEN-5007"


def test_a_viewer_sees_everything_and_changes_nothing(api: Api) -> None:
    api.made()
    api.plane.add_token("eye", OperatorRole.VIEWER, "v")
    api.secret = "v"

    assert api("GET", "/clusters/shop").status_code == 200
    for method, path, body in (
        ("POST", "/clusters", {"name": "other"}),
        ("DELETE", "/clusters/shop", None),
        ("POST", "/clusters/shop/keys", {}),
        ("POST", "/tokens", {"name": "me", "role": "admin"}),
        ("GET", "/tokens", None),
        ("GET", "/export", None),
        ("GET", "/check", None),
        ("POST", "/repair", None),
    ):
        assert code(api(method, path, body), 403) == "PEN-5011"


def test_a_cluster_admin_of_one_cluster_touches_no_other(api: Api) -> None:
    mine, other = api.made("mine"), api.made("other")
    key = api("POST", "/clusters/other/keys", {}).json()["key"]["id"]
    api.plane.add_token("lead", OperatorRole.CLUSTER_ADMIN, "c", mine["id"])
    api.secret = "c"

    assert api("POST", "/clusters/mine/keys", {}).status_code == 202
    assert [c["id"] for c in api("GET", "/clusters").json()["items"]] == [mine["id"]]
    assert {o["cluster"] for o in api("GET", "/operations").json()["items"]} == {mine["id"]}
    for method, path, body in (
        ("GET", f"/clusters/{other['id']}", None),
        ("PATCH", f"/clusters/{other['id']}", {"units": 2}),
        ("DELETE", f"/keys/{key}", None),
        ("POST", "/clusters", {"name": "third"}),
        ("POST", "/clusters/mine/move", {}),
    ):
        assert code(api(method, path, body, If_Match="*"), 403) == "PEN-5011"


def test_tokens_are_made_listed_and_deleted(api: Api) -> None:
    made = api("POST", "/tokens", {"name": "ci", "role": "viewer"}, Idempotency_Key="t").json()
    again = api("POST", "/tokens", {"name": "ci", "role": "viewer"}, Idempotency_Key="t").json()

    assert (len(made["secret"]), again["secret"]) == (48, None)
    assert {token["name"] for token in api("GET", "/tokens").json()["items"]} == {"root", "ci"}
    assert api("DELETE", "/tokens/ci").json()["operation"]["state"] == "done"
    api.secret = made["secret"]
    assert code(api("GET", "/clusters"), 401) == "PEN-5010"


def test_one_that_is_not_active_says_who_is(api: Api) -> None:
    api.plane.role = Role.STANDBY

    answer = api("POST", "/clusters", {"name": "shop"})

    assert code(answer, 503) == "PEN-5006"
    assert answer.json()["active"] == "http://elsewhere:1"
    assert answer.headers["Retry-After"] == "1"
    assert api("GET", "/status").json()["role"] == "standby"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "UPPER"},
        {"name": "shop", "units": 0},
        {"name": "shop", "colour": "blue"},
        {"name": "shop", "network": {"allow": ["nowhere"]}},
        {"name": "shop", "tenancy": "some"},
        [],
        "x",
    ],
)
def test_bad_input_gets_one_error_that_names_the_place(api: Api, body: Any) -> None:
    answer = api("POST", "/clusters", body)

    assert code(answer, 422) == "PEN-5013"
    assert answer.json()["hint"]
    assert api.plane.registry.count(LogicalCluster) == 0


@pytest.mark.parametrize("error", ControlError.__subclasses__())
def test_every_error_of_the_control_plane_has_a_status_that_the_interface_tells_of(
    error: type[ControlError],
) -> None:
    assert error.status in (*PROBLEMS, 504)


def test_a_path_or_method_that_is_not_there_is_a_problem_too(api: Api) -> None:
    assert code(api("GET", "/nothing"), 404) == "PEN-5023"
    assert code(api("PUT", "/clusters"), 405) == "PEN-5023"


def test_trouble_with_kafka_is_told_as_such(api: Api) -> None:
    async def busy(*_: object, **__: object) -> None:
        raise KafkaBusy(subject="", api="Produce", said="NOT_ENOUGH_REPLICAS")

    api.plane.decide = busy  # type: ignore[assignment,method-assign]  # as if Kafka were busy

    assert code(api("POST", "/clusters", {"name": "shop"}), 503) == "PEN-3023"


def test_metrics_and_health_are_told_to_anybody(api: Api) -> None:
    api.made()
    api.plane.loads = {"pkc-000000/cell-1": 0.25}

    text = api.client.get("/metrics").text

    assert "penstock_control_active 1.0" in text
    assert "penstock_control_clusters 1.0" in text
    assert 'penstock_control_cell_load_ratio{cell="cell-1",cluster="pkc-000000"} 0.25' in text
    assert api.client.get("/healthz").json() == {"role": "active"}


def test_differences_are_shown_and_repaired(api: Api) -> None:
    api.plane.found = (Difference(Kind.MISSING, "user", "lkc-000000_sa-000000"),)

    assert api("GET", "/check").json()["differences"][0]["what"] == "user"
    assert api("POST", "/repair").json()["differences"] == []


def test_an_export_is_imported_into_an_empty_registry_only(api: Api) -> None:
    api.made("one")
    api("POST", "/clusters/one/keys", {})
    export = api("GET", "/export").json()["export"]
    other = PaperPlane(paper=Paper.with_cells())
    with TestClient(make_api(other)) as client:
        there = Api(other, client)

        answer = there("POST", "/import", {"export": export})

        assert answer.json()["records"] == 3  # the cluster, its account, its key
        assert there("GET", "/clusters/one").json()["state"] == "ready"
        assert code(there("POST", "/import", {"export": export}), 409) == "PEN-5019"


def test_every_operation_of_the_interface_has_an_id_and_says_which_problems_it_has(api: Api) -> None:
    document = api.client.get("/v1/openapi.json").json()
    calls = [call for path in document["paths"].values() for call in path.values()]

    assert document["openapi"].startswith("3.1")
    assert len({call["operationId"] for call in calls}) == len(calls)
    assert all("application/problem+json" in call["responses"]["404"]["content"] for call in calls)
    assert api.plane.registry.count(Operation) == 0
