"""`penstock balance`: broker load in plain words, known or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.operator import balance
from penstock.control.physical.cluster_access import ProvidedCluster
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.model.events import BrokerLoad
from penstock.model.ids import BrokerId, PhysicalClusterId
from tests.control.in_memory_control import PHYSICAL

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.control.in_memory_plane import InMemoryPlane
    from tests.harness.command import CommandResult

CLUSTER = PhysicalClusterId(PHYSICAL)
BUSY = BrokerLoad(
    CLUSTER,
    BrokerId(1),
    1_000,
    4_000,
    0.75,
    wait_ms=3.5,
    service_ms=0.25,
    handlers_busy=0.7,
    network_busy=0.2,
    requests=2400,
    bytes_in=2e6,
    replication_bytes_in=1e6,
    replicas=12,
    leaders=4,
    disk_used_bytes=20_000_000_000,
    disk_total_bytes=1_000_000_000_000,
)
UNKNOWN = BrokerLoad(CLUSTER, BrokerId(2), 1_000, None, None, ("no metrics agent is known",))


def test_the_load_of_brokers_is_shown_with_what_it_is_made_of(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    plane.broker_loads = {CLUSTER: (BUSY,)}

    ran = here("balance", "show")

    assert "load 75%, that of its most loaded broker, 1.00 times the mean" in " ".join(ran.out.split())
    assert "UNKNOWN BECAUSE" not in ran.out
    for shown in ("70%", "3.50 ms", "2400/s", "3 MB/s", "20 GB of 1 TB", "4 s"):
        assert shown in ran.out
    assert here("balance", "show", PHYSICAL, "-o", "json").data[0]["load"] == 0.75


def test_an_unknown_load_is_shown_with_the_reason(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    plane.broker_loads = {CLUSTER: (BUSY, UNKNOWN)}

    ran = here("balance", "show")

    assert "load unknown" in ran.out
    assert "never measured" in ran.out
    assert "no metrics agent is known" in " ".join(ran.out.split())


def test_a_cluster_that_does_not_exist_is_an_error(here: Callable[..., CommandResult]) -> None:
    assert here("balance", "show", "nowhere").code == 3


def test_calibration_needs_a_flag_on_a_cluster_with_tenants(
    plane: InMemoryPlane, here: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    del plane
    cluster = ProvidedCluster(CLUSTER, "home", "local", "127.0.0.1:1", PlatformKey(b"k" * 32))
    monkeypatch.setattr(balance, "fleet_clusters", lambda _: (cluster,))
    assert here("cluster", "create", "shop", "--no-key").code == 0

    refused = here("balance", "calibrate")
    wrong_broker = here("balance", "calibrate", "--with-tenants", "--broker", "7")
    wrong_cluster = here("balance", "calibrate", "nowhere")
    too_short = here("balance", "calibrate", "--seconds", "0.1")

    assert "PEN-5482" in refused.err
    assert "--with-tenants" in refused.err
    assert "has no broker 7" in wrong_broker.err
    assert "nowhere is no cluster of this home" in wrong_cluster.err
    assert too_short.code == 2
