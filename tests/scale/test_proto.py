"""The committed gRPC code matches the proto file, and the protocol is KEDA's."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from penstock.scale.proto import externalscaler_pb2 as pb

ROOT = Path(__file__).parents[2]
PROTO = "penstock/scale/proto/externalscaler.proto"


def test_the_generated_code_matches_the_proto(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, PROTO]

    subprocess.run(command, cwd=ROOT / "src", check=True)

    made = sorted((tmp_path / PROTO).parent.iterdir())
    assert len(made) == 2
    for path in made:
        committed = ROOT / "src" / path.relative_to(tmp_path)
        assert committed.read_text() == path.read_text(), "run: make proto"


def test_the_extra_requires_the_versions_of_the_generated_code() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["scale"]
    folder = ROOT / "src" / Path(PROTO).parent
    protobuf = re.search(r"Protobuf Python Version: ([\d.]+)", (folder / "externalscaler_pb2.py").read_text())

    assert protobuf
    assert f"protobuf>={protobuf[1]}" in extra


def test_names_and_numbers_are_kedas() -> None:
    """As in KEDA 2.21; the wire format depends only on these."""
    messages = {
        name: {field.name: field.number for field in message.fields}
        for name, message in pb.DESCRIPTOR.message_types_by_name.items()
    }
    service = pb.DESCRIPTOR.services_by_name["ExternalScaler"]

    assert service.full_name == "externalscaler.ExternalScaler"
    assert [(method.name, method.server_streaming) for method in service.methods] == [
        ("IsActive", False), ("StreamIsActive", True), ("GetMetricSpec", False), ("GetMetrics", False),
        ("StreamMetricSpec", True),
    ]  # fmt: skip
    assert messages == {
        "ScaledObjectRef": {"name": 1, "namespace": 2, "scalerMetadata": 3},
        "IsActiveResponse": {"result": 1},
        "GetMetricSpecResponse": {"metricSpecs": 1},
        "MetricSpec": {"metricName": 1, "targetSize": 2, "targetSizeFloat": 3},
        "GetMetricsRequest": {"scaledObjectRef": 1, "metricName": 2},
        "GetMetricsResponse": {"metricValues": 1},
        "MetricValue": {"metricName": 1, "metricValue": 2, "metricValueFloat": 3},
    }
