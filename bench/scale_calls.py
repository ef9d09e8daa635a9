"""Calls the scaler of `bench.scale` from a separate process, and times each call.

    python -m bench.scale_calls PORT SECONDS GROUPS

Prints one JSON document: [start time, milliseconds] of each call, and how many were refused because there
was no fresh sample.
"""

from __future__ import annotations

import json
import sys
import time

import grpc

from penstock.scale.decision.hpa_metric import METRIC
from penstock.scale.grpc_service import ExternalScalerStub
from penstock.scale.proto import externalscaler_pb2 as pb

CALLS_A_SECOND = 200


def main(port: int, seconds: float, groups: int) -> None:
    times: list[tuple[float, float]] = []
    refused = 0
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = ExternalScalerStub(channel)
        until = time.monotonic() + seconds
        number = 0
        while time.monotonic() < until:
            number += 1
            group = number * 7919 % groups
            scaled_object = pb.ScaledObjectRef(
                name=f"group-{group}", namespace="bench", scalerMetadata=trigger_metadata(group)
            )
            at, start = time.monotonic(), time.perf_counter()
            try:
                stub.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=scaled_object, metricName=METRIC))
            except grpc.RpcError as failure:
                if failure.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                refused += 1
            spent = time.perf_counter() - start
            times.append((at, spent * 1000))
            time.sleep(max(0.0, 1 / CALLS_A_SECOND - spent))
    print(json.dumps({"calls": times, "refused": refused}))


def trigger_metadata(group: int) -> dict[str, str]:
    """Trigger metadata of a group; it has no consumers, so zero replicas must be allowed."""
    return {"group": f"group-{group}", "topic": topic_of(group), "minReplicas": "0"}


def topic_of(group: int) -> str:
    """One of a hundred topics, each read by a hundredth of the groups."""
    return f"bench-scale-{group % 100:02d}"


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
