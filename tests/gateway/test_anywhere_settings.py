"""The file of a gateway on another host: credentials of one cluster, brokers listed there, their ports."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.fleet.credentials.gateway_credentials import (
    GatewayCredentials,
    gateway_token,
    parse_gateway_token,
    tenants_key,
)
from penstock.fleet.credentials.passwords import PLATFORM_USER, PlatformKey
from penstock.gateway.process.discovery import placed
from penstock.gateway.settings import TenantsFrom, parse_gateway
from penstock.kafka.admin.brokers import Broker, Description
from penstock.kafka.routing import Address
from penstock.model.errors import PenstockError
from penstock.model.errors.gateway import CredentialsUnusable
from penstock.model.errors.settings import SettingInvalid
from penstock.model.ids import PhysicalClusterId

PLATFORM = PlatformKey(b"p" * 32)
DOCUMENT: dict[str, Any] = {
    "gateway": "gw-1",
    "kafka": {"bootstrap": "kafka-1:9093,kafka-2:9093", "tls": {}},
    "credentials": "gateway.credentials",
    "control": {"urls": ["https://control-1:28080/"]},
    "listen": "0.0.0.0",
    "advertised_host": "gw.example.com",
    "port": 9000,
}


@pytest.fixture
def credentials(tmp_path: Path) -> GatewayCredentials:
    key = tenants_key(PLATFORM, "kafka-a")
    written = GatewayCredentials(PhysicalClusterId("pkc-000001"), "kafka-a", key)
    written.write(tmp_path / "gateway.credentials")
    return written


def described(*brokers: Broker) -> Description:
    return Description("kafka-a", 1, {broker.id: broker for broker in brokers})


def test_the_file_names_a_cluster_and_the_cluster_names_its_brokers(
    tmp_path: Path, credentials: GatewayCredentials
) -> None:
    document = DOCUMENT | {
        "advertised_port": 19000,
        "brokers": [{"id": 2, "port": 9500, "advertised": "two.example.com:443"}],
    }
    settings, config = parse_gateway(document, beside=tmp_path)
    assert settings.credentials == credentials
    assert settings.tenants_from is TenantsFrom.STATE
    assert settings.control is not None
    assert settings.control.urls == ("https://control-1:28080",)
    assert config.cluster == "pkc-000001"

    description = described(
        Broker(1, Address("kafka-1", 9093), "a", fenced=False),
        Broker(2, Address("kafka-2", 9093), None, fenced=False),
    )
    brokers = placed(tmp_path, settings, config, description)

    assert [(b.id, b.zone, b.address, b.listen_port) for b in brokers] == [
        (1, "a", "kafka-1:9093", 9001),
        (2, "none", "kafka-2:9093", 9500),
    ]
    assert [b.advertised for b in brokers] == [None, ("two.example.com", 443)]


def test_a_broker_whose_port_would_not_exist_is_an_error_that_names_the_key(
    tmp_path: Path, credentials: GatewayCredentials
) -> None:
    settings, config = parse_gateway(DOCUMENT | {"port": 65535}, beside=tmp_path)
    description = described(Broker(1, Address("kafka-1", 9093), "a", fenced=False))
    with pytest.raises(SettingInvalid, match="broker 1"):
        placed(tmp_path, settings, config, description)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"platform_key": "platform.key"}, "platform_key"),
        ({"cluster": "pkc-000002"}, "cluster"),
        ({"gateway": "gw/1"}, "gateway"),
        ({"tenants_from": "file"}, "tenants_from"),
        ({"credentials": "missing"}, "credentials"),
        ({"kafka": {"bootstrap": "kafka-1"}}, "host:port"),
        ({"kafka": {"bootstrap": "kafka-1:9093", "tls": {"ca": "missing.pem"}}}, "ca"),
        ({"control": {"urls": ["http://control-1:28080"]}}, "https"),
        ({"control": {"urls": []}}, "at least one"),
        ({"brokers": [{"id": 1, "address": "kafka-1:9093"}]}, "address"),
        ({"kafka": None}, "credentials"),
    ],
)
def test_a_wrong_setting_is_named(
    tmp_path: Path, credentials: GatewayCredentials, change: dict[str, Any], text: str
) -> None:
    with pytest.raises(PenstockError, match=text):
        parse_gateway(DOCUMENT | change, beside=tmp_path)


def test_unusable_credentials_are_an_error_without_their_content(tmp_path: Path) -> None:
    path = tmp_path / "gateway.credentials"
    for text in ("a: [", "cluster: pkc-000001\nkafka_id: x\ntenants_key: '???'", f"tenants_key: {'A' * 8}"):
        path.write_text(text)
        with pytest.raises(CredentialsUnusable) as refused:
            GatewayCredentials.read(path)
        assert "AAAA" not in str(refused.value)
        assert "???" not in str(refused.value)


def test_the_key_of_a_cluster_opens_this_cluster_alone(credentials: GatewayCredentials) -> None:
    assert credentials.key != tenants_key(PLATFORM, "kafka-b")
    assert credentials.key != tenants_key(PLATFORM, "kafka-a", generation=2)
    assert credentials.key.password(PLATFORM_USER) != PLATFORM.password(PLATFORM_USER)
    assert base64.b64encode(credentials.key.secret).decode() not in repr(credentials)


def test_a_token_names_its_gateway(credentials: GatewayCredentials) -> None:
    token = gateway_token("pkc-000001", "gw-1", credentials.key)
    assert parse_gateway_token(token) == ("pkc-000001", "gw-1")
    assert token != gateway_token("pkc-000001", "gw-2", credentials.key).replace("gw-2", "gw-1")
    assert parse_gateway_token("an-operator-token") is None


@pytest.mark.usefixtures("credentials")
def test_the_file_in_the_documentation_is_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/gateways-elsewhere.md").read_text()
    match = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert match is not None
    for name in ("kafka-ca.pem", "control-ca.pem"):
        (tmp_path / name).touch()

    settings, _ = parse_gateway(yaml.safe_load(match[1]), beside=tmp_path)

    assert settings.advertised_host == "kafka.example.com"
    assert settings.proxy_protocol is not None
    assert (settings.certificate, settings.certificate_key) == (
        tmp_path / "gateway.pem",
        tmp_path / "gateway.key",
    )
