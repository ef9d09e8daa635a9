"""The caller of `bench.scale`, a process of its own: asks a scaler for values and times each answer.

    python -m bench.scale_calls PORT SECONDS GROUPS

Prints one JSON document: [when it began, milliseconds] of each call, and how many were refused for
want of a fresh sample.
"""

from __future__ import annotations

import json
import sys
import time

import grpc

from penstock.scale.encoding import METRIC
from penstock.scale.proto import externalscaler_pb2 as pb
from penstock.scale.proto.externalscaler_pb2_grpc import ExternalScalerStub

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
            about = pb.ScaledObjectRef(
                name=f"group-{group}", namespace="bench", scalerMetadata=wishes_of(group)
            )
            at, begun = time.time(), time.perf_counter()
            try:
                stub.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=about, metricName=METRIC))
            except grpc.RpcError as failure:
                if failure.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                refused += 1
            spent = time.perf_counter() - begun
            times.append((at, spent * 1000))
            time.sleep(max(0.0, 1 / CALLS_A_SECOND - spent))
    print(json.dumps({"calls": times, "refused": refused}))


def wishes_of(group: int) -> dict[str, str]:
    """Trigger metadata; nobody consumes here, so zero must be allowed."""
    return {"group": f"group-{group}", "topic": topic_of(group), "minReplicas": "0"}


def topic_of(group: int) -> str:
    """A hundred topics; each is read by a hundredth of the groups."""
    return f"bench-scale-{group % 100:02d}"


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
