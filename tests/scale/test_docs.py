"""The documentation page and the manifests match the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.app import run
from penstock.scale.decision import group_rules, partition_state, verdict
from penstock.scale.decision.parameters import parameters_table
from penstock.scale.decision.policy import policy_of
from penstock.scale.decision.values import PartitionState
from penstock.scale.settings import settings_from

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/scale.md").read_text(encoding="utf-8")


def test_the_table_of_parameters_matches_the_code() -> None:
    written = re.search(r"<!-- parameters:.*?-->\n(.*?)<!-- end", PAGE, re.DOTALL)

    assert written
    assert written[1] == parameters_table(), (
        "copy from: penstock.scale.decision.parameters.parameters_table()"
    )


def test_every_rule_and_state_is_documented() -> None:
    source = Path(group_rules.__file__).read_text() + Path(verdict.__file__).read_text()
    named = set(re.findall(r'"([GS]\d+ [a-z- ]+)"', source))

    assert len(named) == 12
    for name in sorted(named):
        assert f"| {name} |" in PAGE, name
    for state in PartitionState:
        assert f"| {state} |" in PAGE, state
    assert len(partition_state.RULES) == len(PartitionState)


def test_the_settings_on_the_page_are_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)

    settings = settings_from(blocks[0])

    assert (settings.samples_cluster, settings.clusters["default"].interval) == ("default", 10.0)


@pytest.fixture
def manifests() -> dict[str, Any]:
    documents = [
        document
        for path in sorted((ROOT / "deploy/keda").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]
    return {document["kind"]: document for document in documents}


def test_the_scaled_objects_metadata_is_valid(manifests: dict[str, Any]) -> None:
    spec = manifests["ScaledObject"]["spec"]
    (trigger,) = spec["triggers"]

    policy = policy_of(trigger["metadata"], scaled_object="shop/billing")

    assert (policy.replicas_min, policy.replicas_max) == (spec["minReplicaCount"], spec["maxReplicaCount"])


def test_the_deployments_settings_are_valid(manifests: dict[str, Any], tmp_path: Path) -> None:
    text = manifests["ConfigMap"]["data"]["scaler.yaml"]
    for name in ("password", "ca.pem"):
        (tmp_path / name).write_text("x")

    settings = settings_from(text.replace("/etc/scaler/secret", str(tmp_path)))

    assert settings.samples_cluster == "default"
    assert settings.listen.endswith(":8080")


def test_the_first_steps_work_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]

    statuses = [run(line.split()[1:]) for line in lines]

    assert statuses == [0, 0]
    assert (tmp_path / "step.png").exists()
    assert "persistent lag" in capsys.readouterr().out
