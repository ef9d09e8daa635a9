"""The settings file of a control plane: file, environment and secret files; every mistake names its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from penstock.control.settings import ControlSettings, check_listener, read_control_settings
from penstock.fleet.credentials.gateway_credentials import tenants_key
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.kafka.oauth import OAuthLogin
from penstock.kafka.security import Login, Mechanism
from penstock.model.errors.control import PlaintextRefused
from penstock.model.errors.settings import SettingInvalid, SettingUnknown

TOKEN = "root-token"
PASSWORD = "hunter2 of the home"


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    """A complete file, with everything that it names beside it."""
    (tmp_path / "platform.key").write_bytes(b"k" * 32)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    leaf = ca.issue_cert("control.example.com")
    leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "control.pem")
    return {
        "home": {
            "bootstrap": "kafka-1:9093,kafka-2:9093",
            "tls": {"ca": "ca.pem", "certificate": "control.pem"},
            "login": {"user": "penstock", "password_file": "password"},
            "metrics": ["kafka-1:9404", "2=kafka-2:9404"],
        },
        "platform_key": "platform.key",
        "token_file": "token",
        "listen": "0.0.0.0:28080",
        "advertised": "https://control.example.com:28080/",
        "tls": {"certificate": "control.pem"},
    }


def read(directory: Path, document: dict[str, Any], **environment: str) -> ControlSettings:
    path = directory / "control.yaml"
    path.write_text(yaml.safe_dump(document))
    return read_control_settings(path, environment)


def test_a_whole_file_is_read_relative_to_itself_and_shows_no_secret(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    settings = read(tmp_path, document)

    login = settings.home.security.login
    assert isinstance(login, Login)
    assert (login.user, login.password, login.mechanism) == ("penstock", PASSWORD, Mechanism.SCRAM_SHA_512)
    assert settings.home.security.protocol == "SASL_SSL"
    assert (settings.home.name, settings.token) == ("home", TOKEN)
    assert settings.advertised == "https://control.example.com:28080"
    shown = repr(settings) + repr(settings.digests())
    assert PASSWORD not in shown
    assert TOKEN not in shown
    assert "kkkk" not in shown


def test_the_environment_overrides_the_file(tmp_path: Path, document: dict[str, Any]) -> None:
    settings = read(
        tmp_path,
        document,
        PENSTOCK_CONTROL_HOME__LOGIN__PASSWORD="0123",
        PENSTOCK_CONTROL_HOME__LOGIN__MECHANISM="PLAIN",
        PENSTOCK_CONTROL_SESSION_SECONDS="3",
        PENSTOCK_CONTROL_ADVERTISED="",
    )

    login = settings.home.security.login
    assert isinstance(login, Login)
    assert (login.password, login.mechanism) == ("0123", Mechanism.PLAIN)
    assert settings.session_seconds == 3
    assert settings.advertised


def test_oauth_needs_a_token_endpoint_that_protects_the_secret(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    login = {"mechanism": "OAUTHBEARER", "token_url": "https://login.example.com/token"}
    login |= {"client_id": "penstock", "client_secret_file": "password", "scope": "kafka", "ca": "ca.pem"}
    document["home"]["login"] = login

    oauth = read(tmp_path, document).home.security.login
    assert isinstance(oauth, OAuthLogin)
    assert (oauth.client_secret, oauth.scope) == (PASSWORD, "kafka")
    assert PASSWORD not in repr(oauth)

    login["token_url"] = "http://login.example.com/token"
    with pytest.raises(SettingInvalid, match="https"):
        read(tmp_path, document)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no home": ({"home": None}, "home: `bootstrap`"),
    "no platform key": ({"platform_key": None}, "`platform_key`"),
    "no token": ({"token_file": None}, "`token`"),
    "two tokens": ({"token": "x"}, "given twice"),
    "a token that is no text": ({"token": 7, "token_file": None}, r"`token` is '\(hidden\)'"),
    "a port that is no port": ({"listen": "0.0.0.0:99999"}, "`listen`"),
    "an http URL with TLS": ({"advertised": "http://control.example.com"}, "`advertised`"),
    "a missing certificate": ({"tls": {"certificate": "none.pem"}}, "`certificate` is 'none.pem'"),
    "two clusters of one name": ({"clusters": [{"name": "home", "bootstrap": "a:1"}]}, "different name"),
    "a short session": ({"session_seconds": 0.1}, "`session_seconds`"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_names_the_key_and_what_is_expected(
    tmp_path: Path, document: dict[str, Any], mistake: str
) -> None:
    change, message = MISTAKES[mistake]
    document |= change
    document = {key: value for key, value in document.items() if value is not None}

    with pytest.raises(SettingInvalid, match=message) as invalid:
        read(tmp_path, document)

    assert "control.yaml" in str(invalid.value)


def test_an_unknown_key_is_an_error_also_from_the_environment(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    with pytest.raises(SettingUnknown, match="PENSTOCK_CONTROL_HOME__USER"):
        read(tmp_path, document, PENSTOCK_CONTROL_HOME__USER="x")


def test_a_key_that_is_not_of_its_certificate_is_an_error(tmp_path: Path, document: dict[str, Any]) -> None:
    other = trustme.CA().issue_cert("other")
    other.private_key_pem.write_to_path(tmp_path / "other.key")
    document["home"]["tls"]["key"] = "other.key"

    with pytest.raises(SettingInvalid, match="certificate"):
        read(tmp_path, document)


def test_an_api_without_tls_listens_on_loopback_only_unless_allowed(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    del document["tls"]
    with pytest.raises(PlaintextRefused, match=r"0\.0\.0\.0:28080"):
        read(tmp_path, document)

    assert read(tmp_path, document | {"allow_plaintext": True}).tls is None
    assert read(tmp_path, document | {"listen": "127.0.0.1:0"}).tls is None
    check_listener("[::1]:0", False, allow_plaintext=False)
    with pytest.raises(PlaintextRefused):
        check_listener("[::]:0", False, allow_plaintext=False)


def test_each_cluster_has_its_own_key() -> None:
    key = PlatformKey(b"k" * 32)

    keys = {tenants_key(key, kafka_id).password("user") for kafka_id in ("a", "b")}

    assert len(keys | {key.password("user")}) == 3
    assert tenants_key(key, "a") == tenants_key(key, "a")


@pytest.mark.usefixtures("document")  # writes the files that it names
def test_the_file_in_the_documentation_is_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/control-elsewhere.md").read_text()
    match = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert match is not None
    for name, source in (("kafka-ca.pem", "ca.pem"), ("kafka.password", "password")):
        (tmp_path / name).write_bytes((tmp_path / source).read_bytes())
    for name, source in (("operator.token", "token"), ("control.key", "control.pem")):
        (tmp_path / name).write_bytes((tmp_path / source).read_bytes())

    settings = read(tmp_path, yaml.safe_load(match[1]))

    assert settings.home.gateways == "gateway.example.com:9092"
    assert settings.tls is not None


def test_a_subset_of_the_brokers_can_carry_tenants(tmp_path: Path, document: dict[str, Any]) -> None:
    document["home"] |= {"brokers": [1, 2], "zones": ["a"], "cell_brokers": 2, "capacity": "laptop"}
    home = read(tmp_path, document).home
    assert (sorted(home.brokers), sorted(home.zones), home.capacity) == ([1, 2], ["a"], "laptop")
    for key, value in (("brokers", ["one"]), ("brokers", [True]), ("capacity", "huge"), ("zones", 3)):
        wrong = document | {"home": document["home"] | {key: value}}
        with pytest.raises(SettingInvalid, match=key):
            read(tmp_path, wrong)
