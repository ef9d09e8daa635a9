"""The HTTP API: responses, authorization and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from penstock.balance.cells import CellId, NewCell
from penstock.control.api.app import PROBLEMS, make_api
from penstock.control.api.routes import router
from penstock.control.checker import Difference, Kind
from penstock.control.load.relief_service import needs_cell
from penstock.control.service import Role
from penstock.model.entities import ApiKey, LogicalCluster, Operation, OperatorRole
from penstock.model.errors.control import ControlError
from penstock.model.errors.wire import KafkaBusy
from penstock.model.events import AuditEvent, Outcome
from penstock.model.ids import PhysicalClusterId
from tests.control.in_memory_control import PHYSICAL, InMemoryControl
from tests.control.in_memory_plane import Api, InMemoryPlane, code


def test_a_cluster_is_requested_in_terms_of_its_workload(api: Api) -> None:
    response = api("POST", "/clusters", {"name": "shop", "needs": {"ingress_bytes": 2e7, "partitions": 300}})

    body = response.json()
    assert response.status_code == 202
    assert body["cluster"]["units"] == 4
    assert body["cluster"]["quota"]["ingress_bytes"] == 2e7
    assert body["cluster"]["bootstrap"] == "127.0.0.1:28001"
    assert response.headers["Location"] == f"/v1/operations/{body['operation']['id']}"
    assert api("GET", response.headers["Location"].removeprefix("/v1")).json()["state"] == "done"


def test_a_cluster_is_addressed_by_id_or_name(api: Api) -> None:
    made = api.create()

    assert api("GET", f"/clusters/{made['id']}").json() == api("GET", "/clusters/shop").json()
    assert code(api("GET", "/clusters/nobody"), 404) == "PEN-5001"


def test_two_editors_cannot_overwrite_each_other(api: Api) -> None:
    api.create()
    etag = api("GET", "/clusters/shop").headers["ETag"]
    assert code(api("PATCH", "/clusters/shop", {"units": 2}), 428) == "PEN-5012"
    assert api("PATCH", "/clusters/shop", {"units": 2}, If_Match=etag).status_code == 202

    assert code(api("PATCH", "/clusters/shop", {"units": 3}, If_Match=etag), 412) == "PEN-5002"

    assert api("GET", "/clusters/shop").json()["units"] == 2
    assert api("PATCH", "/clusters/shop", {"units": 3}, If_Match="*").status_code == 202
    assert code(api("PATCH", "/clusters/shop", {"units": 3}, If_Match="x"), 422) == "PEN-5013"


def test_an_update_changes_only_the_given_fields(api: Api) -> None:
    before = api.create(labels={"team": "web"})
    change = {"network": {"allow": ["10.0.0.0/8"]}, "overrides": {"requests": 9}, "name": "store"}

    after = api("PATCH", "/clusters/shop", change, If_Match="*").json()["cluster"]

    assert (after["name"], after["network"]["allow"], after["quota"]["requests"]) == (
        "store",
        ["10.0.0.0/8"],
        9,
    )
    assert (after["labels"], after["id"]) == (before["labels"], before["id"])


def test_a_change_sent_twice_is_made_once(api: Api) -> None:
    first = api("POST", "/clusters", {"name": "shop"}, Idempotency_Key="abc")

    again = api("POST", "/clusters", {"name": "shop"}, Idempotency_Key="abc")

    assert first.json()["operation"]["id"] == again.json()["operation"]["id"]
    assert api.plane.registry.count(LogicalCluster) == 1
    assert code(api("POST", "/clusters", {"name": "other"}, Idempotency_Key="abc"), 422) == "PEN-5009"
    assert code(api("POST", "/clusters", {"name": "shop"}), 409) == "PEN-5003"


def test_a_secret_is_returned_once(api: Api) -> None:
    api.create()
    first = api("POST", "/clusters/shop/keys", {}, Idempotency_Key="k").json()
    again = api("POST", "/clusters/shop/keys", {}, Idempotency_Key="k").json()
    key = api("GET", f"/keys/{first['key']['id']}")

    assert len(first["secret"]) == 64
    assert again["secret"] is None
    assert again["key"]["id"] == first["key"]["id"]
    assert first["secret"] not in json.dumps([key.json(), api("GET", "/export").json()])
    assert "sha256" not in key.text


def test_keys_are_rotated_and_revoked(api: Api) -> None:
    api.create()
    old = api("POST", "/clusters/shop/keys", {"description": "app"}).json()["key"]["id"]

    new = api("POST", f"/keys/{old}/rotate", {"grace_seconds": 5}).json()

    assert new["secret"]
    assert new["key"]["description"] == "app"
    assert [key["id"] for key in api("GET", "/clusters/shop/keys").json()["items"]] == [new["key"]["id"]]
    assert api("DELETE", f"/keys/{new['key']['id']}", Idempotency_Key="r").json()["key"] is None
    assert api("DELETE", f"/keys/{new['key']['id']}", Idempotency_Key="r").status_code == 202
    assert code(api("DELETE", f"/keys/{new['key']['id']}"), 404) == "PEN-5001"
    assert api.plane.registry.count(ApiKey) == 0


def test_a_rotated_key_stays_valid_for_a_day_by_default(api: Api) -> None:
    api.create()
    old = api("POST", "/clusters/shop/keys", {}).json()["key"]["id"]

    operation = api("POST", f"/keys/{old}/rotate", {}).json()["operation"]["id"]

    arguments = api.plane.registry.need(Operation, operation).arguments
    assert arguments == {"replaces": old, "grace_ms": 24 * 3600 * 1000}


def test_accounts_and_their_grants(api: Api) -> None:
    api.create()
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


def test_lists_are_paged_by_cursor(api: Api) -> None:
    made = {api.create(f"shop-{n}")["id"] for n in range(5)}
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
    api.create("one")
    api.create("two")

    listed = api("GET", "/operations?cluster=one").json()["items"]

    assert [operation["action"] for operation in listed] == ["cluster.create"]
    assert api("GET", "/operations?state=running").json()["items"] == []
    assert len(api("GET", "/operations?state=done&limit=1").json()["items"]) == 1


def test_every_list_has_the_same_parameters_and_response(api: Api) -> None:
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
        parameters = {parameter["name"] for parameter in operation["parameters"]}
        reference = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        assert {"limit", "cursor"} <= parameters, operation["operationId"]
        assert "/Page_" in reference
        assert set(document["components"]["schemas"][reference.rpartition("/")[2]]["properties"]) == {
            "items",
            "cursor",
        }


@pytest.mark.parametrize(
    "path",
    ["/clusters", "/clusters/shop/accounts", "/clusters/shop/keys", "/operations", "/cells", "/tokens"],
)
def test_pages_of_one_make_up_the_whole_list(api: Api, path: str) -> None:
    for name in ("shop", "mill"):
        api.create(name)
        api("POST", "/clusters/shop/accounts", {"name": f"of-{name}"})
        api("POST", "/clusters/shop/keys", {})
        api("POST", "/tokens", {"name": f"of-{name}", "role": "viewer"})
    whole = api("GET", path).json()
    items, cursor = [], ""

    while True:
        page = api("GET", f"{path}?limit=1&cursor={cursor}").json()
        items += page["items"]
        cursor = page["cursor"]
        if cursor is None:
            break

    assert whole["cursor"] is None
    assert len(items) > 1
    assert items == whole["items"]


def test_a_cluster_is_moved_and_deleted(api: Api) -> None:
    before = api.create()["cell"]

    moved = api("POST", "/clusters/shop/move", {})

    assert moved.status_code == 202
    assert api("GET", "/clusters/shop").json()["cell"] != before
    cells = {cell["id"]: cell["clusters"] for cell in api("GET", "/cells").json()["items"]}
    assert cells[before] == 0
    assert api("DELETE", "/clusters/shop").json()["operation"]["action"] == "cluster.delete"
    assert code(api("GET", "/clusters/shop"), 404) == "PEN-5001"


def test_a_dedicated_cluster_on_an_adopted_one_needs_it_to_be_empty(api: Api) -> None:
    api.plane.not_empty = ("west",)
    request = {"name": "alone", "tenancy": "dedicated", "needs": {"ingress_bytes": 60e6}}

    assert code(api("POST", "/clusters", request | {"adopted": "west"}), 422) == "PEN-2027"
    assert code(api("POST", "/clusters", request | {"adopted": "../west"}), 422) == "PEN-5013"
    made = api("POST", "/clusters", request | {"adopted": "east"}, Idempotency_Key="once").json()
    api.plane.not_empty = ("east",)  # it has the first request's topics now
    again = api("POST", "/clusters", request | {"adopted": "east"}, Idempotency_Key="once").json()

    assert made["cluster"]["units"] == 1  # by the table for adopted clusters
    assert again["cluster"]["id"] == made["cluster"]["id"]


def test_physical_clusters_are_shown(api: Api) -> None:
    (listed,) = api("GET", "/physical-clusters").json()["items"]

    assert api("GET", f"/physical-clusters/{listed['id']}").json() == listed
    assert (listed["brokers"], listed["cells"], listed["zones"]) == (6, 2, ["a", "b", "c"])


def test_a_needed_cell_is_shown_with_cells_and_in_metrics(api: Api) -> None:
    new_cell = NewCell(3, "cell-1 full", (CellId("cell-1"),))
    memory = api.plane.memory
    memory.accept(needs_cell(memory.registry, memory.context(), PHYSICAL, new_cell, "buy three"))

    full, other = api("GET", "/cells").json()["items"]
    (physical,) = api("GET", "/physical-clusters").json()["items"]

    (condition,) = full["conditions"]
    assert (condition["kind"], condition["remedy"]) == ("needs-cell", "buy three")
    assert other["conditions"] == []
    assert physical["conditions"] == full["conditions"]
    line = f'penstock_control_cell_needed_brokers{{cluster="{PHYSICAL}"}} 3.0'
    assert line in api.client.get("/metrics").text


@pytest.mark.parametrize("header", ["", "Basic abc", "Bearer wrong", "Bearer"])
def test_a_request_without_a_valid_token_is_rejected(api: Api, header: str) -> None:
    response = api.client.get("/v1/clusters", headers={"Authorization": header})

    assert code(response, 401) == "PEN-5010"
    assert response.headers["WWW-Authenticate"] == "Bearer"


def test_before_the_first_token_exists_callers_must_retry(api: Api) -> None:
    api.plane.registry.apply(b"operator-token/root", None)

    assert code(api("GET", "/clusters"), 503) == "PEN-5007"


def test_a_viewer_sees_everything_and_changes_nothing(api: Api) -> None:
    api.create()
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


def test_a_cluster_admin_of_one_cluster_cannot_access_another(api: Api) -> None:
    mine, other = api.create("mine"), api.create("other")
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


def test_tokens_are_created_listed_and_deleted(api: Api) -> None:
    made = api("POST", "/tokens", {"name": "ci", "role": "viewer"}, Idempotency_Key="t").json()
    again = api("POST", "/tokens", {"name": "ci", "role": "viewer"}, Idempotency_Key="t").json()

    assert (len(made["secret"]), again["secret"]) == (48, None)
    assert {token["name"] for token in api("GET", "/tokens").json()["items"]} == {"root", "ci"}
    assert api("DELETE", "/tokens/ci").json()["operation"]["state"] == "done"
    api.secret = made["secret"]
    assert code(api("GET", "/clusters"), 401) == "PEN-5010"


def test_a_standby_refers_to_the_active_control_plane(api: Api) -> None:
    api.plane.role = Role.STANDBY

    response = api("POST", "/clusters", {"name": "shop"})

    assert code(response, 503) == "PEN-5006"
    assert response.json()["active"] == "http://elsewhere:1"
    assert response.headers["Retry-After"] == "1"
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
def test_invalid_input_gets_one_error_with_its_location(api: Api, body: Any) -> None:
    response = api("POST", "/clusters", body)

    assert code(response, 422) == "PEN-5013"
    assert response.json()["hint"]
    assert api.plane.registry.count(LogicalCluster) == 0


@pytest.mark.parametrize("error", ControlError.__subclasses__())
def test_every_error_of_the_control_plane_has_a_documented_status(
    error: type[ControlError],
) -> None:
    assert error.status in (*PROBLEMS, 504)


def test_an_unknown_path_or_method_is_a_problem_response(api: Api) -> None:
    assert code(api("GET", "/nothing"), 404) == "PEN-5023"
    assert code(api("PUT", "/clusters"), 405) == "PEN-5023"


def test_kafka_errors_are_returned_as_such(api: Api) -> None:
    async def busy(*_: object, **__: object) -> None:
        raise KafkaBusy(subject="", api="Produce", detail="NOT_ENOUGH_REPLICAS")

    api.plane.decide = busy  # type: ignore[assignment,method-assign]  # as if Kafka were busy

    assert code(api("POST", "/clusters", {"name": "shop"}), 503) == "PEN-3023"


def test_metrics_and_health_need_no_token(api: Api) -> None:
    api.create()
    api.plane.loads = {"pkc-000000/cell-1": 0.25}

    text = api.client.get("/metrics").text

    assert "penstock_control_active 1.0" in text
    assert "penstock_control_clusters 1.0" in text
    assert 'penstock_control_cell_load_ratio{cell="cell-1",cluster="pkc-000000"} 0.25' in text
    assert api.client.get("/healthz").json() == {"role": "active", "active": "http://elsewhere:1"}


def test_differences_are_shown_and_repaired(api: Api) -> None:
    api.plane.differences = (Difference(Kind.MISSING, "user", "lkc-000000_sa-000000"),)

    assert api("GET", "/check").json()["differences"][0]["what"] == "user"
    assert api("POST", "/repair").json()["differences"] == []


def test_an_export_is_imported_into_an_empty_registry_only(api: Api) -> None:
    api.create("one")
    api("POST", "/clusters/one/keys", {})
    export = api("GET", "/export").json()["export"]
    other = InMemoryPlane(memory=InMemoryControl.with_cells())
    with TestClient(make_api(other)) as client:
        there = Api(other, client)

        response = there("POST", "/import", {"export": export})

        assert response.json()["records"] == 3  # the cluster, its account, its key
        assert there("GET", "/clusters/one").json()["state"] == "ready"
        assert code(there("POST", "/import", {"export": export}), 409) == "PEN-5019"


def test_every_operation_has_an_id_and_documents_its_problems(api: Api) -> None:
    document = api.client.get("/v1/openapi.json").json()
    calls = [call for path in document["paths"].values() for call in path.values()]

    assert document["openapi"].startswith("3.1")
    assert len({call["operationId"] for call in calls}) == len(calls)
    assert all("application/problem+json" in call["responses"]["404"]["content"] for call in calls)
    assert api.plane.registry.count(Operation) == 0


def test_audit_events_are_read_by_admins_in_pages_and_from_the_end(api: Api) -> None:
    def event(number: int, operation: str) -> AuditEvent:
        return AuditEvent(
            id=f"e{number}", time_ms=number, source="control/1", sequence=number,
            cluster=PhysicalClusterId(PHYSICAL),
            operation=operation, subject_kind="cluster", subject="lkc-00000a", actor="operator/root",
            outcome=Outcome.DONE, after={"name": "shop"},
        )  # fmt: skip

    api.plane.audited = (event(1, "cluster.create"), event(2, "key.create"), event(3, "cluster.delete"))

    whole = api("GET", "/audit").json()
    clusters = api("GET", "/audit?operation=cluster.").json()["items"]
    (last,) = api("GET", "/audit?last=1").json()["items"]

    assert ([each["id"] for each in whole["items"]], whole["next"], whole["end"]) == (
        ["e1", "e2", "e3"],
        3,
        3,
    )
    assert [each["operation"] for each in clusters] == ["cluster.create", "cluster.delete"]
    assert (last["id"], last["after"]) == ("e3", {"name": "shop"})
    api.plane.add_token("reader", OperatorRole.VIEWER, "reader-secret")
    assert api.client.get("/v1/audit", headers={"Authorization": "Bearer reader-secret"}).status_code == 403
