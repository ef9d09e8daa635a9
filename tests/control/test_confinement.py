"""Tokens that are confined to logical clusters: every route of the OpenAPI document, every role.

Each route has a decision here. A new route without one fails, as does a decision without a route.
"""

from __future__ import annotations

import json
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest

from penstock.audit.rules.finding import Finding
from penstock.control.api.app import make_api
from penstock.model.durability import Severity
from penstock.model.entities import OperatorRole

if TYPE_CHECKING:
    from tests.control.in_memory_plane import Api


class Access(Enum):
    READ = "reads one cluster"
    CHANGE = "changes one cluster"
    LIMITS = "changes the limits of one cluster"
    LIST = "lists the token's clusters only"
    PLATFORM = "concerns the platform"
    GATEWAY = "takes tokens of gateways only"


DECIDED: dict[str, Access] = {
    "getStatus": Access.LIST,
    "check": Access.PLATFORM,
    "repair": Access.PLATFORM,
    "exportRegistry": Access.PLATFORM,
    "importRegistry": Access.PLATFORM,
    "listClusters": Access.LIST,
    "createCluster": Access.PLATFORM,
    "getCluster": Access.READ,
    "updateCluster": Access.CHANGE,
    "deleteCluster": Access.CHANGE,
    "moveCluster": Access.PLATFORM,
    "listAccounts": Access.READ,
    "createAccount": Access.CHANGE,
    "getAccount": Access.READ,
    "listAcls": Access.READ,
    "updateAccount": Access.CHANGE,
    "deleteAccount": Access.CHANGE,
    "listKeys": Access.READ,
    "createKey": Access.CHANGE,
    "getKey": Access.READ,
    "rotateKey": Access.CHANGE,
    "revokeKey": Access.CHANGE,
    "listOperations": Access.LIST,
    "getOperation": Access.READ,
    "listPhysicalClusters": Access.PLATFORM,
    "getPhysicalCluster": Access.PLATFORM,
    "listBrokers": Access.PLATFORM,
    "getBroker": Access.PLATFORM,
    "setBrokerState": Access.PLATFORM,
    "clearBrokerState": Access.PLATFORM,
    "listCells": Access.PLATFORM,
    "getLoad": Access.PLATFORM,
    "setLoadProfile": Access.PLATFORM,
    "setBalance": Access.PLATFORM,
    "makePlan": Access.PLATFORM,
    "listPlans": Access.PLATFORM,
    "getPlan": Access.PLATFORM,
    "listPlanMoves": Access.PLATFORM,
    "runPlan": Access.PLATFORM,
    "cancelPlan": Access.PLATFORM,
    "pacePlan": Access.PLATFORM,
    "listGenerations": Access.PLATFORM,
    "listVersions": Access.PLATFORM,
    "finalizeFeatures": Access.PLATFORM,
    "growPhysicalCluster": Access.PLATFORM,
    "shrinkPhysicalCluster": Access.PLATFORM,
    "listControllers": Access.PLATFORM,
    "addControllers": Access.PLATFORM,
    "removeControllers": Access.PLATFORM,
    "replaceController": Access.PLATFORM,
    "listHealth": Access.PLATFORM,
    "getHealth": Access.PLATFORM,
    "setHealth": Access.PLATFORM,
    "explainHealth": Access.PLATFORM,
    "holdBroker": Access.PLATFORM,
    "releaseBroker": Access.PLATFORM,
    "listSlo": Access.PLATFORM,
    "listIncidents": Access.PLATFORM,
    "getIncident": Access.PLATFORM,
    "changeIncident": Access.PLATFORM,
    "getHealing": Access.PLATFORM,
    "setHealing": Access.PLATFORM,
    "listFindings": Access.LIST,
    "getFinding": Access.READ,
    "changeFinding": Access.PLATFORM,
    "listRolls": Access.PLATFORM,
    "getRoll": Access.PLATFORM,
    "planRoll": Access.PLATFORM,
    "startRoll": Access.PLATFORM,
    "pauseRoll": Access.PLATFORM,
    "resumeRoll": Access.PLATFORM,
    "abortRoll": Access.PLATFORM,
    "rollBack": Access.PLATFORM,
    "listLinks": Access.PLATFORM,
    "getLink": Access.PLATFORM,
    "pauseLink": Access.PLATFORM,
    "resumeLink": Access.PLATFORM,
    "promoteLink": Access.PLATFORM,
    "failoverLink": Access.PLATFORM,
    "listProfiles": Access.PLATFORM,
    "getProfile": Access.PLATFORM,
    "checkProfile": Access.PLATFORM,
    "getAdvice": Access.PLATFORM,
    "getCost": Access.PLATFORM,
    "setSizing": Access.PLATFORM,
    "listBackups": Access.PLATFORM,
    "getBackup": Access.PLATFORM,
    "listBackupTopics": Access.PLATFORM,
    "planRestore": Access.PLATFORM,
    "listGateways": Access.PLATFORM,
    "gatewayCall": Access.GATEWAY,
    "readAuditLog": Access.PLATFORM,
    "listTokens": Access.PLATFORM,
    "createToken": Access.PLATFORM,
    "deleteToken": Access.PLATFORM,
    "getQuota": Access.READ,
    "updateQuota": Access.LIMITS,
    "listUsage": Access.LIST,
}
BODIES: dict[str, dict[str, Any]] = {
    "importRegistry": {"export": ""},
    "createCluster": {"name": "another"},
    "updateCluster": {"labels": {"team": "web"}},
    "moveCluster": {},
    "setBrokerState": {"reason": "slow"},
    "setLoadProfile": {},
    "setBalance": {"mode": "auto"},
    "makePlan": {"physical_cluster": "pkc-000000"},
    "pacePlan": {"rate": 1e6},
    "growPhysicalCluster": {"brokers": 3},
    "shrinkPhysicalCluster": {"brokers": [1]},
    "addControllers": {"count": 2},
    "removeControllers": {"controllers": [1002]},
    "setHealth": {"mode": "auto"},
    "holdBroker": {"reason": "a new disk"},
    "changeIncident": {"state": "resolved"},
    "changeFinding": {"state": "resolved"},
    "setHealing": {"mode": "act"},
    "planRoll": {"physical_cluster": "pkc-000000"},
    "startRoll": {"physical_cluster": "pkc-000000"},
    "setSizing": {"mode": "auto"},
    "planRestore": {"topic": "orders"},
    "gatewayCall": {"tenant": "lkc-7hq2mz", "call": "describe_acls", "arguments": {}},
    "createAccount": {"name": "app"},
    "updateAccount": {"grants": []},
    "createKey": {},
    "rotateKey": {"grace_seconds": 5},
    "createToken": {"name": "mine", "role": "admin"},
    "updateQuota": {"limits": {"requests": 1e9}},
}
CONFINED = (OperatorRole.VIEWER, OperatorRole.CLUSTER_ADMIN, OperatorRole.ADMIN)
ROUTES = {
    operation["operationId"]: (method.upper(), path.removeprefix("/v1"))
    for path, methods in make_api().openapi()["paths"].items()
    for method, operation in methods.items()
    if path.startswith("/v1")
}
routes = pytest.mark.parametrize("route", ROUTES)
roles = pytest.mark.parametrize("role", CONFINED)


class Cluster:
    """A logical cluster with an account and a key, and the ids that routes take."""

    def __init__(self, api: Api, name: str) -> None:
        made = api.create(name)
        account = api("POST", f"/clusters/{name}/accounts", {"name": "reader"}).json()["account"]["id"]
        key = api("POST", f"/clusters/{name}/keys", {}).json()
        self.ids = {
            "cluster": made["id"],
            "account": account,
            "key": key["key"]["id"],
            "operation": key["operation"]["id"],
            "physical": made["physical_cluster"],
            "broker": "1",
            "controller": "1002",
            "status": "demoted",
            "plan": "plan-7hq2mz",
            "roll": "roll-7hq2mz",
            "incident": "inc-7hq2mz",
            "finding": _finding_about(api, made["id"], made["physical_cluster"]),
            "profile": "small",
            "link": "east",
            "name": "root",
        }
        self.secrets = {name, made["id"], account, key["key"]["id"], self.ids["finding"]}


def _finding_about(api: Api, tenant: str, physical: str) -> str:
    """A finding about a topic of this logical cluster."""
    finding = Finding("tier-lag", physical, f"partition/{tenant}/0", "1", Severity.WARNING, 1, f"of {tenant}")
    record = replace(finding, topic_name=f"{tenant}_orders").record()
    known = api.plane.findings.known.setdefault(physical, [])
    assert isinstance(known, list)
    known.append(record)
    return record.id


def call(api: Api, route: str, ids: dict[str, str], body: dict[str, Any] | None = None) -> Any:
    method, path = ROUTES[route]
    return api(method, path.format_map(ids), body or BODIES.get(route), If_Match="*")


def confined(api: Api, role: OperatorRole) -> tuple[Cluster, Cluster]:
    """The token's cluster, and a foreign one; from here on calls use the token."""
    mine, foreign = Cluster(api, "mine"), Cluster(api, "foreign")
    api.plane.add_token("confined", role, "c", mine.ids["cluster"])
    api.secret = "c"
    return mine, foreign


def test_every_route_has_a_decision() -> None:
    assert ROUTES.keys() == DECIDED.keys()


@roles
@routes
def test_a_confined_token_reaches_no_other_cluster(api: Api, route: str, role: OperatorRole) -> None:
    _, foreign = confined(api, role)
    before = api.plane.registry.export()

    response = call(api, route, foreign.ids)

    if DECIDED[route] is Access.LIST:
        assert response.status_code == 200, response.text
    else:
        assert response.status_code == (401 if DECIDED[route] is Access.GATEWAY else 403), response.text
    assert not [secret for secret in foreign.secrets if secret in response.text]
    assert api.plane.registry.export() == before


@roles
@routes
def test_a_confined_token_does_with_its_cluster_what_its_role_may(
    api: Api, route: str, role: OperatorRole
) -> None:
    mine, _ = confined(api, role)

    response = call(api, route, mine.ids)

    reads = DECIDED[route] in (Access.READ, Access.LIST)
    changes = DECIDED[route] is Access.CHANGE and role is not OperatorRole.VIEWER
    refused = 401 if DECIDED[route] is Access.GATEWAY else 403
    assert response.status_code == (200 if reads else 202 if changes else refused), response.text


@pytest.mark.parametrize("change", [{"units": 3}, {"overrides": {"requests": 1e9}}])
def test_a_confined_token_cannot_raise_its_own_limits(api: Api, change: dict[str, Any]) -> None:
    mine, _ = confined(api, OperatorRole.CLUSTER_ADMIN)
    before = api.plane.registry.export()

    assert call(api, "updateCluster", mine.ids, change).status_code == 403
    assert call(api, "updateQuota", mine.ids).status_code == 403

    assert api.plane.registry.export() == before
    api.plane.add_token("all", OperatorRole.CLUSTER_ADMIN, "a")
    api.secret = "a"
    assert call(api, "updateCluster", mine.ids, change).status_code == 202


def test_a_confined_token_makes_no_key_of_a_foreign_account(api: Api) -> None:
    mine, foreign = confined(api, OperatorRole.CLUSTER_ADMIN)

    response = call(api, "createKey", mine.ids, {"account": foreign.ids["account"]})

    assert response.status_code in (403, 404)
    assert "foreign" not in response.text


@roles
def test_a_confined_token_cannot_learn_which_clusters_exist(api: Api, role: OperatorRole) -> None:
    mine, foreign = confined(api, role)

    foreign_name = call(api, "getCluster", {**foreign.ids, "cluster": "foreign"})
    no_name = call(api, "getCluster", {**foreign.ids, "cluster": "nothing"})

    assert foreign_name.json() | {"instance": ""} == no_name.json() | {"instance": ""}
    assert call(api, "getCluster", {**mine.ids, "cluster": "mine"}).status_code == 200


@roles
def test_a_confined_token_does_not_see_operations_of_the_platform(api: Api, role: OperatorRole) -> None:
    made = api("POST", "/tokens", {"name": "another", "role": "viewer"})
    assert made.status_code == 201
    (platform,) = [each["id"] for each in api("GET", "/operations").json()["items"]]
    mine, _ = confined(api, role)

    assert call(api, "getOperation", {**mine.ids, "operation": platform}).status_code == 403
    assert platform not in json.dumps(call(api, "listOperations", mine.ids).json())


@roles
def test_counts_are_those_of_the_tokens_clusters(api: Api, role: OperatorRole) -> None:
    confined(api, role)

    assert api("GET", "/status").json()["clusters"] == 1
