"""Tiered topics on the command line: durations, and settings that do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.cli.flags import duration_ms
from penstock.cli.tenant.topic import _check_tiering, _tier_settings
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import open_fleet
from penstock.fleet.spec_file import parse_fleet
from penstock.model.errors.settings import SettingInvalid, UsageInvalid
from penstock.model.errors.tier import RetentionBytesTiered, S3JarsMissing
from tests.harness.java import fake_runtime

if TYPE_CHECKING:
    from pathlib import Path


def test_a_tiered_topic_closes_its_segments_in_time() -> None:
    assert _tier_settings(tiered=False, local_retention=None) == {}
    assert _tier_settings(tiered=True, local_retention=None) == {"remote.storage.enable": "true"}
    assert _tier_settings(tiered=True, local_retention="1h") == {
        "remote.storage.enable": "true",
        "local.retention.ms": "3600000",
        "segment.ms": "3600000",
    }
    assert _tier_settings(tiered=True, local_retention="30s")["segment.ms"] == "600000"


def test_local_retention_needs_tiering() -> None:
    with pytest.raises(UsageInvalid, match="needs --tiered"):
        _tier_settings(tiered=False, local_retention="1h")


@pytest.mark.parametrize("text", ["", "1", "h", "1.5h", "-1h", "1w"])
def test_an_invalid_duration_is_an_error(text: str) -> None:
    with pytest.raises(SettingInvalid, match="expected a duration"):
        duration_ms(text, "--local-retention")


def test_retention_bytes_is_refused_before_a_request_is_sent() -> None:
    with pytest.raises(RetentionBytesTiered, match=r"orders cannot have retention\.bytes=5"):
        _check_tiering("orders", {"remote.storage.enable": "true", "retention.bytes": "5"})


def test_a_cluster_with_an_s3_store_needs_its_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    spec = parse_fleet({"clusters": [{"tier": {"store": "s3", "bucket": "b", "region": "eu-west-1"}}]})

    with pytest.raises(S3JarsMissing, match="'home'"):
        open_fleet(spec, Layout(tmp_path / "home"), fake_runtime(tmp_path / "java"))
