"""The zone of a client, and how many zones a tenant's clients may name."""

from __future__ import annotations

import ipaddress

import pytest

from penstock.gateway.limits.client_zones import UNKNOWN, ClientZones
from penstock.gateway.limits.metering import CLIENT_ZONES_MAX, OTHER_ZONE, Usage
from penstock.gateway.settings import parse_gateway
from penstock.model.errors.settings import SettingInvalid
from penstock.model.zone_traffic import EGRESS, ZoneDimension, zone_dimension
from tests.gateway.test_settings import DOCUMENT

ZONES = ClientZones(
    (ipaddress.ip_network(network), zone)
    for network, zone in {"10.0.0.0/8": "a", "10.1.0.0/16": "b", "fd00::/8": "c"}.items()
)


@pytest.mark.parametrize(
    ("address", "zone"),
    [
        ("10.2.3.4", "a"),
        ("10.1.3.4", "b"),
        ("::ffff:10.1.3.4", "b"),
        ("fd00::1", "c"),
        ("192.0.2.1", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_the_most_specific_network_counts(address: str, zone: str) -> None:
    assert ZONES.of_address(address) == zone


def test_without_a_map_no_zone_is_known() -> None:
    assert ClientZones().of_address("10.1.3.4") == UNKNOWN


def test_the_settings_map_networks_to_zones() -> None:
    settings, _ = parse_gateway(DOCUMENT | {"client_zones": {"10.1.0.0/16": "b"}})
    assert settings.client_zones == ((ipaddress.ip_network("10.1.0.0/16"), "b"),)
    with pytest.raises(SettingInvalid, match="client_zones"):
        parse_gateway(DOCUMENT | {"client_zones": {"somewhere": "b"}})


def test_a_tenant_that_names_ever_more_zones_does_not_grow_the_counters() -> None:
    usage = Usage()
    for number in range(100):
        usage.zone_bytes("a", f"zone-{number}").bytes_out += 1

    assert len(usage.zones) == CLIENT_ZONES_MAX + 1
    assert usage.zones["a", OTHER_ZONE].bytes_out == 100 - CLIENT_ZONES_MAX


def test_only_bytes_that_cross_zones_are_reported() -> None:
    usage = Usage()
    for client in ("", "a", "b"):
        usage.zone_bytes("a", client).bytes_out += 5

    assert usage.crossing() == {str(ZoneDimension(EGRESS, "a", "b")): 5}


def test_a_dimension_names_both_zones() -> None:
    assert zone_dimension("cross_zone_egress_bytes/b/a/x") == ZoneDimension(EGRESS, "b", "a/x")
    assert zone_dimension("egress_bytes") is None
