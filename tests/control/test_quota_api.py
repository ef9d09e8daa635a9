"""Quotas and usage over the HTTP API: what is shown, what may be set, and by which role."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock.model.entities import OperatorRole
from penstock.model.events import Dimension, QuotaShares
from penstock.model.ids import LogicalClusterId
from tests.control.in_memory_plane import Api, code

INGRESS = str(Dimension.INGRESS_BYTES)


def publish_shares(api: Api, cluster: str, used: float, **more: Any) -> None:
    """As a coordinator would: two gateways; the second has the traffic and throttles."""
    values: dict[str, Any] = {"time_ms": int(time.time() * 1000), "valid_ms": 60_000} | more
    api.plane.shares[LogicalClusterId(cluster)] = QuotaShares(
        tenant=LogicalClusterId(cluster),
        epoch=1,
        sequence=1,
        quota={INGRESS: 5e6},
        shares={"a": {INGRESS: 1e6}, "b": {INGRESS: 4e6}},
        limits={"a": {INGRESS: 1e6}, "b": {INGRESS: 4e6}},
        used={"a": {INGRESS: 0.0}, "b": {INGRESS: used}},
        throttled={"b": {INGRESS: 0.5}},
        levels={str(Dimension.CONNECTIONS): 20},
        **values,
    )


def by_dimension(shown: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["dimension"]: row for row in shown["dimensions"]}


def test_a_quota_is_shown_with_its_use_and_how_gateways_share_it(api: Api) -> None:
    cluster = api.create()
    publish_shares(api, cluster["id"], 3e6)

    shown = api("GET", "/clusters/shop/quota").json()

    ingress = by_dimension(shown)[INGRESS]
    assert (ingress["quota"], ingress["used"], ingress["granted"]) == (5e6, 3e6, 5e6)
    assert ingress["demand"] > 3e6
    assert ingress["throttled"] == 0.5
    assert by_dimension(shown)["connections"]["used"] == 20
    assert [(row["gateway"], row["share"]) for row in shown["gateways"]] == [("a", 1e6), ("b", 4e6)]


def test_a_quota_without_recent_shares_is_shown_without_use(api: Api) -> None:
    cluster = api.create()
    publish_shares(api, cluster["id"], 3e6, time_ms=1)

    shown = api("GET", "/clusters/shop/quota").json()

    assert by_dimension(shown)[INGRESS]["used"] is None
    assert shown["gateways"] == []
    assert shown["decided_ms"] is None


def test_a_limit_is_set_and_reset(api: Api) -> None:
    api.create()

    made = api("PATCH", "/clusters/shop/quota", {"limits": {INGRESS: 2e6, "requests": 50}}, If_Match="*")
    assert made.status_code == 202, made.text
    back = api("PATCH", "/clusters/shop/quota", {"limits": {INGRESS: None}}, If_Match="*")

    assert made.json()["cluster"]["quota"][INGRESS] == 2e6
    assert back.json()["cluster"]["quota"][INGRESS] == 5e6
    assert back.json()["cluster"]["overrides"] == {"requests": 50}


def test_a_limit_is_set_for_the_version_that_was_read(api: Api) -> None:
    api.create()

    response = api("PATCH", "/clusters/shop/quota", {"limits": {INGRESS: 2e6}}, If_Match='"999"')

    assert response.status_code == 412


@pytest.mark.parametrize("limits", [{INGRESS: 0}, {INGRESS: -1}, {"nonsense": 5}, {INGRESS: "much"}])
def test_an_invalid_limit_is_rejected(api: Api, limits: dict[str, Any]) -> None:
    api.create()

    assert code(api("PATCH", "/clusters/shop/quota", {"limits": limits}, If_Match="*"), 422)


def test_a_quota_is_seen_by_viewers_and_set_by_admins_of_its_cluster(api: Api) -> None:
    cluster, other = api.create(), api.create("other")
    api.plane.add_token("viewer", OperatorRole.VIEWER, "v" * 40, cluster["id"])
    api.plane.add_token("elsewhere", OperatorRole.CLUSTER_ADMIN, "e" * 40, other["id"])

    api.secret = "v" * 40
    assert api("GET", "/clusters/shop/quota").status_code == 200
    assert code(api("PATCH", "/clusters/shop/quota", {"limits": {INGRESS: 9e9}}, If_Match="*"), 403)
    api.secret = "e" * 40
    assert code(api("PATCH", "/clusters/shop/quota", {"limits": {INGRESS: 9e9}}, If_Match="*"), 403)


def test_the_cluster_with_the_highest_use_comes_first(api: Api) -> None:
    for name, used in (("quiet", 1e5), ("busy", 4e6), ("middling", 2e6)):
        publish_shares(api, api.create(name)["id"], used)
    api.create("silent")

    items = api("GET", f"/usage?by={INGRESS}&top=2").json()["items"]

    assert [item["name"] for item in items] == ["busy", "middling"]
    assert items[0]["quota_ratio"] == 0.8
    assert items[0]["quota_dimension"] == INGRESS
    assert items[0]["throttled"] == {INGRESS: 0.5}


def test_a_token_for_one_cluster_sees_the_use_of_no_other(api: Api) -> None:
    ours, theirs = api.create("ours")["id"], api.create("theirs")["id"]
    for cluster in (ours, theirs):
        publish_shares(api, cluster, 1e6)
    api.plane.add_token("one", OperatorRole.VIEWER, "s" * 40, ours)
    api.secret = "s" * 40

    assert [item["name"] for item in api("GET", "/usage").json()["items"]] == ["ours"]
