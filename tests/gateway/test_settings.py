"""A gateway's file: accepted settings, and errors for the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.gateway.config import ServiceAccount
from penstock.gateway.process.sni_hosts import Host, parse_host
from penstock.gateway.process.tenant_source import tenant_of
from penstock.gateway.settings import Bounds, Routing, parse_gateway, read_gateway_file
from penstock.model.entities import Grant, Role
from penstock.model.errors.settings import NameInvalid, SettingInvalid, SettingsUnreadable, SettingUnknown
from penstock.model.events import Dimension
from penstock.model.ids import ServiceAccountId
from penstock.model.tenant_state import AccountState, TenantState

KEY = {"id": "ABCDEFGH12345678", "secret_sha256": "ab" * 32, "account": "sa-000001"}
TENANT = {"id": "lkc-7hq2mz", "accounts": [{"id": "sa-000001"}], "keys": [KEY]}
BROKER = {"id": 1, "zone": "a", "address": "127.0.0.1:9092", "port": 28001}
RIGHTS = [{"resource": "topic", "name": f"t{n}", "operation": "read"} for n in range(201)]
DOCUMENT: dict[str, Any] = {"cluster": "pkc-000001", "brokers": [BROKER], "tenants": [TENANT]}


def test_a_short_file_is_enough() -> None:
    settings, config = parse_gateway(DOCUMENT)

    assert settings.routing is Routing.PORT
    assert settings.advertised_host == settings.listen == "127.0.0.1"
    assert config.broker_of[1].listen_port == 28001
    tenant, key = config.keys[KEY["id"]]
    assert tenant.prefix == b"lkc-7hq2mz_"
    assert tenant.user_of(key.account) == "lkc-7hq2mz_sa-000001"


def test_bounds_not_in_the_file_keep_their_defaults() -> None:
    bounds = {"attempts_per_address_per_second": 1000, "connections_max": 50}
    settings, _ = parse_gateway(DOCUMENT | {"bounds": bounds})

    assert settings.bounds == Bounds(attempts_per_address_per_second=1000.0, connections_max=50)


def test_a_tenants_quota_is_converted_to_the_units_counted() -> None:
    quota = {
        "ingress_bytes_per_second": 20_000_000,
        "request_seconds_per_second": 0.5,
        "gateway_seconds_per_second": 0.25,
    }
    _, config = parse_gateway(DOCUMENT | {"tenants": [TENANT | {"quota": quota}]})

    assert config.tenants[0].quota == {
        Dimension.INGRESS_BYTES: 20e6,
        Dimension.REQUEST_TIME_US: 500_000,
        Dimension.GATEWAY_TIME_US: 250_000,
    }


def test_a_tenants_log_sample_overrides_the_gateways() -> None:
    settings, config = parse_gateway(DOCUMENT | {"log_sample": 0.25, "tenants": [TENANT | {"log_sample": 0}]})

    assert settings.log_sample == 0.25
    assert config.tenants[0].log_sample == 0.0
    assert parse_gateway(DOCUMENT)[1].tenants[0].log_sample is None


def test_topics_are_created_automatically_only_for_tenants_that_want_it() -> None:
    _, config = parse_gateway(DOCUMENT | {"tenants": [TENANT | {"auto_create_topics": True}]})

    assert config.tenants[0].auto_create_topics
    assert not parse_gateway(DOCUMENT)[1].tenants[0].auto_create_topics
    with pytest.raises(SettingInvalid):
        parse_gateway(DOCUMENT | {"tenants": [TENANT | {"auto_create_topics": "yes"}]})


def test_a_gateway_learns_roles_and_settings_of_a_tenant_from_its_state() -> None:
    account = AccountState(ServiceAccountId("sa-000001"), 2, Role.OWNER)
    state = TenantState(
        id="lkc-7hq2mz", version=1, changed_ms=0, accounts=(account,), auto_create_topics=True
    )

    tenant = tenant_of(TenantState.from_record(state.to_record()))

    assert tenant.auto_create_topics
    assert tenant.accounts[account.id] == ServiceAccount(account.id, 2, Role.OWNER)


def test_an_account_has_the_listed_rights_and_none_by_default() -> None:
    right = {"resource": "topic", "name": "orders", "operation": "read"}
    accounts = [
        {"id": "sa-000001"},
        {"id": "sa-000002", "role": "owner"},
        {"id": "sa-000003", "rights": [right]},
    ]
    _, config = parse_gateway(DOCUMENT | {"tenants": [TENANT | {"accounts": accounts}]})

    plain, owner, clerk = config.tenants[0].accounts.values()
    assert (plain.role, plain.rights) == (Role.LIMITED, ())
    assert owner.role is Role.OWNER
    assert clerk.rights == (Grant("topic", "orders", "read"),)


def test_secrets_and_hashes_are_not_shown() -> None:
    _, config = parse_gateway(DOCUMENT)

    assert "abab" not in repr(config)
    assert r"\xab" not in repr(config)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"brokerz": []}, SettingUnknown),
        ({"brokers": []}, SettingInvalid),
        ({"brokers": [BROKER | {"address": "nowhere"}]}, SettingInvalid),
        ({"brokers": [BROKER | {"port": 70000}]}, SettingInvalid),
        ({"routing": "magic"}, SettingInvalid),
        ({"log_sample": 1.5}, SettingInvalid),
        ({"tenants": [TENANT | {"log_sample": "much"}]}, SettingInvalid),
        ({"tenants": [TENANT | {"accounts": [{"id": "sa-000001", "role": "king"}]}]}, SettingInvalid),
        ({"tenants": [TENANT | {"accounts": [{"id": "sa-000001", "rights": [{}]}]}]}, SettingInvalid),
        ({"tenants": [TENANT | {"accounts": [{"id": "sa-000001", "rights": RIGHTS}]}]}, SettingInvalid),
        ({"routing": "sni", "domain": "x.example"}, SettingInvalid),
        ({"cluster": "here"}, NameInvalid),
        ({"tenants": [TENANT | {"id": "lkc-il0u"}]}, NameInvalid),
        ({"tenants": [TENANT, TENANT]}, SettingInvalid),
        ({"tenants": [TENANT | {"keys": [KEY | {"account": "sa-000002"}]}]}, SettingInvalid),
        ({"tenants": [TENANT | {"keys": [KEY | {"secret_sha256": "zz"}]}]}, SettingInvalid),
        ({"tenants": [TENANT | {"keys": [KEY | {"id": "short"}]}]}, SettingInvalid),
        ({"tenants": [TENANT | {"network": {"allow": ["everywhere"]}}]}, SettingInvalid),
        ({"tenants": [TENANT | {"limits": {"connections_max": -1}}]}, SettingInvalid),
        ({"tenants": [TENANT | {"quota": {"ingress_bytes_per_second": 0}}]}, SettingInvalid),
        ({"tenants": [TENANT | {"quota": {"ingress": 1}}]}, SettingUnknown),
        ({"bounds": {"connections_max": 0}}, SettingInvalid),
        ({"bounds": {"idle_seconds": "long"}}, SettingInvalid),
        ({"bounds": {"patience": 1}}, SettingUnknown),
        ({"tenants": ["one"]}, SettingInvalid),
        ({"tenants": "one"}, SettingInvalid),
    ],
)
def test_an_invalid_setting_is_refused_with_its_place(change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_gateway(DOCUMENT | change)


def test_a_domain_is_compared_as_host_names_are() -> None:
    document = DOCUMENT | {"routing": "sni", "domain": "Kafka.Example.", "tls": {"certificate": "c.pem"}}

    settings, _ = parse_gateway(document)

    assert parse_host("LKC-000001.kafka.Example", settings.domain) == Host("lkc-000001")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsUnreadable):
        read_gateway_file(tmp_path / "gateway.yaml")


def test_paths_are_relative_to_the_file() -> None:
    settings, _ = parse_gateway(DOCUMENT | {"platform_key": "secrets/key"}, beside=Path("etc"))

    assert settings.platform_key == Path("etc/secrets/key")
