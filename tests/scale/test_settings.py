from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.kafka.security import Login
from penstock.model.errors.scale import ScalerSettingsInvalid
from penstock.scale.settings import settings_from

if TYPE_CHECKING:
    from pathlib import Path


def test_the_minimal_settings_are_one_cluster() -> None:
    settings = settings_from("clusters: {default: {bootstrap: 'kafka:9092'}}")

    assert settings.clusters["default"].interval == 10.0
    assert settings.clusters["default"].security().protocol == "PLAINTEXT"
    assert (settings.metrics, settings.tls, settings.samples_cluster) == (None, None, None)


def test_secrets_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    text = f"""
clusters:
  default:
    {{bootstrap: 'kafka:9092', user: scaler, password_file: {tmp_path}/password, mechanism: PLAIN}}
samples: {{cluster: default}}
metrics: 127.0.0.1:9090
"""
    settings = settings_from(text)

    login = settings.clusters["default"].security().login
    assert isinstance(login, Login)
    assert (login.user, login.password, login.mechanism) == ("scaler", "hunter2", "PLAIN")
    assert (settings.samples_cluster, settings.samples_topic) == ("default", "_penstock.lag")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no YAML"),
        ("[]", "expected a mapping"),
        ("clusters: {}", "at least one"),
        ("clusters: {a: 5}", "expected a mapping with `bootstrap`"),
        ("clusters: {a: {bootstrap: 7}}", "expected host:port"),
        ("clusters: {a: {bootstrap: 'k:1', interval: 0}}", "from 1 to 3600"),
        ("clusters: {a: {bootstrap: 'k:1', user: x}}", "`user` and `password_file` together"),
        ("clusters: {a: {bootstrap: 'k:1', mechanism: OAUTH}}", "expected one of PLAIN"),
        ("clusters: {a: {bootstrap: 'k:1', authority: /nowhere}}", "a file that can be read"),
        ("clusters: {a: {bootstrap: 'k:1', hosts: x}}", "an unknown key"),
        ("{clusters: {a: {bootstrap: 'k:1'}}, listen: 8080}", "expected host:port"),
        ("{clusters: {a: {bootstrap: 'k:1'}}, samples: {cluster: b}}", "expected one of a"),
        ("{clusters: {a: {bootstrap: 'k:1'}}, samples: x}", "expected a mapping"),
        ("{clusters: {a: {bootstrap: 'k:1'}}, tls: {key: /nowhere}}", "a file that can be read"),
        ("{clusters: {a: {bootstrap: 'k:1'}}, colour: red}", "an unknown key"),
    ],
)
def test_invalid_settings_are_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ScalerSettingsInvalid) as caught:
        settings_from(text)

    assert message in str(caught.value)
