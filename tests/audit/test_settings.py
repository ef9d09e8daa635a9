"""The audit's settings file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.audit.settings import read_audit_settings
from penstock.kafka.security import Login, Mechanism
from penstock.model.errors.settings import SettingInvalid, SettingUnknown

if TYPE_CHECKING:
    from pathlib import Path

FILE = """
clusters:
  - name: home
    bootstrap: kafka-1:9093
    controllers: kafka-c1:9094
    login: {user: penstock, password: secret}
webhook: {url: "http://alerts/", secret: key}
"""


def test_a_file_names_clusters_their_controllers_and_a_webhook(tmp_path: Path) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(FILE)

    settings = read_audit_settings(path, {"PENSTOCK_AUDIT_SWEEP_SECONDS": "5"})

    (cluster,) = settings.clusters
    assert (cluster.name, cluster.controllers) == ("home", "kafka-c1:9094")
    assert isinstance(cluster.controller_security.login, Login)
    assert cluster.controller_security.login.mechanism is Mechanism.PLAIN
    assert settings.sweep_seconds == 5
    assert settings.webhook is not None
    assert "key" not in repr(settings)


@pytest.mark.parametrize("wrong", ["clusters: []", "sweep_seconds: 0", "sweeps: 1"])
def test_a_mistake_is_named(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(wrong if wrong.startswith("clusters") else FILE + wrong + "\n")

    with pytest.raises((SettingInvalid, SettingUnknown)):
        read_audit_settings(path, {})


def test_a_cluster_may_have_a_tier_and_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "audit.yaml"
    stores = "    tier: {kind: s3, bucket: history, prefix: tier}\n    backup: {directory: copies}\nwebhook"
    path.write_text(FILE.replace("webhook", stores))

    settings = read_audit_settings(path, {"PENSTOCK_AUDIT_STORES_SECONDS": "600"})

    (cluster,) = settings.clusters
    assert cluster.tier is not None
    assert (cluster.tier.bucket, cluster.tier.prefix) == ("history", "tier")
    assert cluster.backup is not None
    assert cluster.backup.directory == tmp_path / "copies"
    assert settings.stores_seconds == 600
