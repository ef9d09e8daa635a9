"""Advice, cost and bounds of a cluster's size over the HTTP API."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import yaml

from penstock.balance.cost import EXAMPLE
from penstock.control.load.load_hours import hour_now
from penstock.control.size.sizing import SizingFiles
from penstock.model.entities import ConditionKind, OperatorRole, PhysicalCluster
from penstock.model.events import LoadHour, QuotaShares
from penstock.model.ids import PhysicalClusterId
from tests.balance.test_profiles import DOCUMENT
from tests.control.in_memory_plane import Api, InMemoryPlane, code

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.model.ids import LogicalClusterId

CLUSTER = PhysicalClusterId("pkc-000000")
PATH = f"/physical-clusters/{CLUSTER}"


def busy(plane: InMemoryPlane, work: float, *, hours: int = 72, imbalance: float = 1.0) -> None:
    """A history in which the cluster's brokers did so much work in every hour."""
    brokers = len(plane.registry.need(PhysicalCluster, CLUSTER).brokers)
    now = hour_now()
    plane.load_hours.known = {
        hour: LoadHour(CLUSTER, hour, brokers, work, imbalance, 360, 1e6, 2e6, 100, 30, 10**9)
        for hour in range(now - hours + 1, now + 1)
    }


@pytest.fixture
def files(api: Api, tmp_path: Path) -> Path:
    """Profiles and prices on the control plane's host."""
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "memory-4.yaml").write_text(yaml.safe_dump(DOCUMENT))
    (tmp_path / "prices.yaml").write_text(EXAMPLE.read_text())
    api.plane.sizing.files = SizingFiles(tmp_path)
    return tmp_path


def test_a_short_history_is_refused(api: Api) -> None:
    busy(api.plane, 1.0, hours=23)

    assert code(api("GET", f"{PATH}/advice"), 409) == "PEN-5463"


def test_advice_has_its_number_and_what_would_change_it(api: Api) -> None:
    brokers = len(api.plane.registry.need(PhysicalCluster, CLUSTER).brokers)
    busy(api.plane, brokers * 0.9)

    shown = api("GET", f"{PATH}/advice").json()

    assert (shown["verdict"], shown["brokers"]) == ("expand", brokers)
    assert shown["target"] > brokers
    assert shown["number"]
    assert shown["changes"]
    assert shown["month"] is None  # there are no prices


def test_advice_has_costs_with_prices_and_hardware(api: Api, files: Path) -> None:
    busy(api.plane, 0.1)
    assert api("PUT", f"{PATH}/sizing", {"hardware": "memory-4"}).status_code == 200

    shown = api("GET", f"{PATH}/advice").json()

    assert shown["month"] > 0
    assert shown["month_after"] <= shown["month"]


def test_the_cost_is_shown_by_driver(api: Api, files: Path) -> None:
    busy(api.plane, 0.1)
    assert code(api("GET", f"{PATH}/cost"), 409) == "PEN-5471"
    api("PUT", f"{PATH}/sizing", {"hardware": "memory-4"})

    shown = api("GET", f"{PATH}/cost").json()

    assert (shown["currency"], shown["price_date"]) == ("USD", "2026-10-01")
    assert shown["total"] == pytest.approx(sum(shown["drivers"].values()))
    assert shown["savings"]["single_zone"] == pytest.approx(shown["drivers"]["cross_zone_replication"])


def crossing(plane: InMemoryPlane, tenant: LogicalClusterId, used: dict[str, float]) -> None:
    """What the tenant's gateway counted, per second."""
    plane.shares[tenant] = QuotaShares(
        tenant=tenant, epoch=1, sequence=1, time_ms=1, valid_ms=1, quota={}, shares={}, used={"g": used}
    )


def test_bytes_between_zones_are_paid_by_the_tenants_that_moved_them(api: Api, files: Path) -> None:
    busy(api.plane, 0.1)
    api("PUT", f"{PATH}/sizing", {"hardware": "memory-4"})
    near, far = (api.plane.memory.cluster(name).tenant for name in ("near", "far"))
    crossing(api.plane, near, {"ingress_bytes": 1e6})
    pairs = {"cross_zone_egress_bytes/b/a": 2e6, "cross_zone_ingress_bytes/b/a": 1e6}
    crossing(api.plane, far, {"ingress_bytes": 1e6, **pairs})

    shown = api("GET", f"{PATH}/cost").json()

    assert shown["drivers"]["cross_zone_clients"] > 0
    assert shown["tenants"][far]["cross_zone_clients"] == pytest.approx(
        shown["drivers"]["cross_zone_clients"]
    )
    assert shown["tenants"][near]["cross_zone_clients"] == 0
    (pair,) = shown["zones"]
    assert (pair["broker_zone"], pair["client_zone"], pair["bytes_in"], pair["bytes_out"]) == (
        "b",
        "a",
        1e6,
        2e6,
    )
    assert pair["month"] == pytest.approx(shown["drivers"]["cross_zone_clients"])
    assert shown["savings"]["follower_fetching"] == pytest.approx(pair["month"] * 2 / 3)


def test_a_cost_without_prices_names_the_file(api: Api) -> None:
    assert code(api("GET", f"{PATH}/cost"), 409) == "PEN-5470"


def test_profiles_are_listed_and_checked(api: Api, files: Path) -> None:
    busy(api.plane, 0.1)

    assert [each["name"] for each in api("GET", "/profiles").json()["items"]] == ["memory-4"]
    assert api("GET", "/profiles/memory-4").json()["measured"]
    assert code(api("GET", "/profiles/memory-9"), 404) == "PEN-5467"
    checked = api("GET", f"{PATH}/profiles/memory-4").json()
    assert (checked["fits"], checked["shortfalls"]) == (True, [])


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"brokers_max": 3}, "PEN-5464"),
        ({"brokers_min": 30, "brokers_max": 12}, "PEN-5465"),
        ({"brokers_min": 7}, "PEN-5465"),
        ({"budget_month": 1.0, "hardware": "memory-4"}, "PEN-5466"),
        ({"budget_month": 1.0}, "PEN-5471"),
        ({"hardware": "memory-9"}, "PEN-5467"),
    ],
)
def test_impossible_bounds_are_refused(api: Api, files: Path, body: dict[str, object], error: str) -> None:
    refused = api("PUT", f"{PATH}/sizing", body)

    assert refused.json()["code"] == error
    assert not api.plane.registry.need(PhysicalCluster, CLUSTER).size_bounds


def test_bounds_are_stored_changed_and_removed(api: Api) -> None:
    api("PUT", f"{PATH}/sizing", {"mode": "auto", "brokers_min": 6, "brokers_max": 12})
    api("PUT", f"{PATH}/sizing", {"brokers_min": None})

    physical = api.plane.registry.need(PhysicalCluster, CLUSTER)
    assert (physical.size_mode, physical.size_bounds) == ("auto", {"brokers_max": 12})
    api.plane.add_token("reader", OperatorRole.VIEWER, "reader-secret")
    assert code(api("PUT", f"{PATH}/sizing", {}, Authorization="Bearer reader-secret"), 403)


def test_a_round_notes_the_advice_with_its_command_and_removes_it_again(api: Api, files: Path) -> None:
    api("PUT", f"{PATH}/sizing", {"hardware": "memory-4"})
    brokers = len(api.plane.registry.need(PhysicalCluster, CLUSTER).brokers)
    busy(api.plane, brokers * 0.9)
    asyncio.run(api.plane.sizing.run_round(CLUSTER))
    noted = api.plane.registry.need(PhysicalCluster, CLUSTER).condition(ConditionKind.SIZE_ADVISED)
    metrics = api.client.get("/metrics").text
    api.plane.load_hours.known = {}
    busy(api.plane, brokers * 0.5)
    asyncio.run(api.plane.sizing.run_round(CLUSTER))

    assert noted is not None
    assert noted.detail.startswith("expand by")
    assert "penstock fleet grow" in noted.remedy
    assert f'penstock_advice_brokers{{cluster="{CLUSTER}"}}' in metrics
    assert f'penstock_cost_month{{cluster="{CLUSTER}",driver="compute"}}' in metrics
    assert api.plane.registry.need(PhysicalCluster, CLUSTER).condition(ConditionKind.SIZE_ADVISED) is None
