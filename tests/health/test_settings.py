"""The settings of a checker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from penstock.health.settings import read_checker_settings
from penstock.model.errors.settings import SettingInvalid

if TYPE_CHECKING:
    from pathlib import Path

LOGIN = {"mechanism": "PLAIN", "user": "KEY", "password": "secret"}
CLUSTER = {
    "name": "home",
    "id": "pkc-7hq2mz",
    "bootstrap": "kafka:9092",
    "gateways": {"bootstrap": "gateway:9092", "tenant": "lkc-3ba7x2", "login": LOGIN},
}


def written(path: Path, **values: object) -> Path:
    file = path / "checker.yaml"
    file.write_text(yaml.safe_dump({"clusters": [CLUSTER], **values}))
    return file


def test_a_file_names_clusters_and_how_their_gateways_are_reached(tmp_path: Path) -> None:
    variables = {"PENSTOCK_CHECKER_VANTAGE": "zone-b"}
    settings = read_checker_settings(written(tmp_path, metrics="127.0.0.1:1"), variables)
    (cluster,) = settings.clusters
    assert (cluster.id, cluster.tenant, cluster.gateways) == ("pkc-7hq2mz", "lkc-3ba7x2", "gateway:9092")
    assert cluster.tenant_security is not None
    assert "secret" not in repr(cluster)
    assert (settings.vantage, settings.metrics) == ("zone-b", "127.0.0.1:1")


@pytest.mark.parametrize("wrong", [{"vantage": "Zone B"}, {"clusters": []}, {"clusters": [CLUSTER, CLUSTER]}])
def test_what_is_wrong_is_an_error(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(SettingInvalid):
        read_checker_settings(written(tmp_path, **wrong), {})
