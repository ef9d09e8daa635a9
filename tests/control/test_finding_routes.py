"""The routes for findings, over an in-memory control plane."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from starlette.testclient import TestClient

from penstock.audit.lifecycle import FindingLog
from penstock.control.api.app import make_api
from penstock.control.health import findings as control_findings
from penstock.control.health.findings import Findings
from penstock.model.durability import FindingRecord, Severity
from penstock.model.entities import Operation, OperatorRole
from penstock.model.errors.wire import KafkaBusy
from tests.control.in_memory_plane import Api, InMemoryPlane, code

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, SECOND = "1" * 16, "2" * 16


@pytest.fixture
def api() -> Iterator[Api]:
    plane = InMemoryPlane()
    with TestClient(make_api(plane), base_url="http://control") as client:
        yield Api(plane, client)


def finding(name: str, topic: str = "_penstock.usage", **more: Any) -> FindingRecord:
    values: dict[str, Any] = {
        "rule": "log-start-unexplained", "severity": Severity.CRITICAL, "cluster": "as the audit calls it",
        "subject": "partition/AAAAAAAAAAAAAAAAAAAAAQ/7", "detail": "offsets of lkc-000000 are gone",
        "first": 5, "last": 9, "alert": "log-start-unexplained/broker 3", "first_seen_ms": 1000,
        "last_seen_ms": 2000, "evidence": {"broker": 3}, "topic_name": topic,
    } | more  # fmt: skip
    return FindingRecord(id=name, **values)


def ids(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    return [each["id"] for each in response.json()["items"]]


def test_findings_of_all_clusters_are_listed_in_order_of_ids_and_pages(api: Api) -> None:
    api.plane.findings.known = {"pkc-000001": [finding(SECOND)], "pkc-000002": [finding(FIRST)]}

    first = api("GET", "/findings?limit=1")
    second = api("GET", f"/findings?limit=1&cursor={first.json()['cursor']}")

    assert (ids(first), ids(second)) == ([FIRST], [SECOND])
    assert second.json()["cursor"] is None
    assert (first.json()["items"][0]["physical_cluster"], first.json()["unread"]) == ("pkc-000002", [])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=open", [FIRST, SECOND]), ("state=resolved", []), ("severity=warning", [SECOND]),
        ("rule=tier-lag", [SECOND]), ("physical_cluster=pkc-000001", [FIRST, SECOND]),
        ("physical_cluster=pkc-000002", []),
    ],
)  # fmt: skip
def test_findings_are_filtered(api: Api, query: str, expected: list[str]) -> None:
    warning = finding(SECOND, rule="tier-lag", severity=Severity.WARNING)
    api.plane.findings.known = {"pkc-000001": [finding(FIRST), warning]}

    assert ids(api("GET", f"/findings?{query}")) == expected


def test_a_cluster_that_cannot_be_read_is_named_and_hides_no_other(api: Api) -> None:
    api.plane.findings.known = {"pkc-000001": "no response", "pkc-000002": [finding(FIRST)]}

    listed = api("GET", "/findings")

    assert ids(listed) == [FIRST]
    assert listed.json()["unread"] == ["pkc-000001"]
    assert api("GET", f"/findings/{FIRST}").status_code == 200
    assert code(api("GET", f"/findings/{SECOND}"), 503) == "PEN-9206"


def test_a_finding_that_no_cluster_has_is_not_found(api: Api) -> None:
    assert code(api("GET", f"/findings/{FIRST}"), 404) == "PEN-9201"
    assert code(api("PUT", f"/findings/{FIRST}", {"state": "resolved"}), 404) == "PEN-9201"


def test_an_admin_acknowledges_a_finding_and_that_is_an_operation(api: Api) -> None:
    api.plane.findings.known = {"pkc-000001": [finding(FIRST)]}

    response = api("PUT", f"/findings/{FIRST}", {"state": "acknowledged", "note": "known"})

    assert response.status_code == 202, response.text
    shown = api("GET", f"/findings/{FIRST}").json()
    assert (shown["state"], shown["actor"], shown["note"]) == ("acknowledged", "operator/root", "known")
    operation = api.plane.registry.need(Operation, response.json()["operation"]["id"])
    assert (operation.action, operation.subject) == ("finding.change", FIRST)
    assert operation.detail == "acknowledged: known"


def test_a_token_without_the_role_changes_nothing(api: Api) -> None:
    api.plane.findings.known = {"pkc-000001": [finding(FIRST)]}
    api.plane.add_token("viewer", OperatorRole.VIEWER, "v")
    api.secret = "v"

    assert api("PUT", f"/findings/{FIRST}", {"state": "resolved"}).status_code == 403
    assert api("GET", f"/findings/{FIRST}").json()["state"] == "open"


def test_a_confined_token_sees_findings_about_its_topics_in_its_own_words(api: Api) -> None:
    mine, other = api.create("mine"), api.create("other")
    host = mine["physical_cluster"]
    api.plane.findings.known = {
        host: [
            finding(FIRST, f"{mine['id']}_orders"),
            finding(SECOND, f"{other['id']}_orders"),
            finding("3" * 16),
        ]
    }
    api.plane.add_token("confined", OperatorRole.VIEWER, "c", mine["id"])
    api.secret = "c"

    (row,) = api("GET", "/findings").json()["items"]

    assert (row["id"], row["cluster"], row["topic"], row["partition"]) == (FIRST, mine["id"], "orders", 7)
    assert (row["first"], row["last"]) == (5, 9)
    assert (row["subject"], row["alert"], row["evidence"], row["note"]) == ("", "", {}, "")
    assert "lkc-000000" not in str(row)
    assert (
        row["detail"]
        == "Each rise of a log start has a reason: retention, DeleteRecords, a restore or a link."
    )
    assert row == api("GET", f"/findings/{FIRST}").json()


def test_a_confined_token_cannot_learn_which_findings_or_clusters_exist(api: Api) -> None:
    mine = api.create("mine")
    api.plane.findings.known = {"pkc-zzzzzz": "no response", mine["physical_cluster"]: [finding(SECOND)]}
    api.plane.add_token("confined", OperatorRole.VIEWER, "c", mine["id"])
    api.secret = "c"

    responses = [api("GET", f"/findings/{each}") for each in (FIRST, SECOND)]

    assert [each.status_code for each in responses] == [403, 403]
    assert responses[0].json()["detail"] == responses[1].json()["detail"]
    assert api("GET", "/findings").json() == {"items": [], "cursor": None, "unread": []}


def test_a_rule_of_a_newer_audit_is_shown(api: Api) -> None:
    api.plane.findings.known = {"pkc-000001": [finding(FIRST, rule="from-the-future")]}

    shown = api("GET", f"/findings/{FIRST}").json()

    assert (shown["rule"], shown["action"]) == ("from-the-future", "")


def test_clusters_are_read_at_once_and_one_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FindingLog()
    record = replace(finding(FIRST))
    log.apply(record.key, record.to_bytes())

    class Reader:
        def __init__(self, client: str) -> None:
            self.client = client

        async def read(self) -> FindingLog:
            if self.client == "client of pkc-000001":
                raise KafkaBusy(subject="", api="Fetch", detail="an election")
            return log

    monkeypatch.setattr(control_findings, "FindingReader", Reader)
    clusters = SimpleNamespace(
        known=[SimpleNamespace(id="pkc-000001"), SimpleNamespace(id="pkc-000002")],
        client=lambda cluster: f"client of {cluster}",
    )

    every = asyncio.run(Findings(cast("Any", clusters)).read())

    assert [each.finding for each in every.findings] == [record]
    assert list(every.failures) == ["pkc-000001"]
