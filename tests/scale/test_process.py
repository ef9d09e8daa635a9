"""`penstock scale serve` as a process, on real Kafka, stopped as Kubernetes stops it."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from typing import TYPE_CHECKING

import grpc
import pytest

from penstock.kafka import commits, topics
from penstock.kafka.client import Client
from penstock.kafka.commits import Committed
from penstock.kafka.outcomes import all_done
from penstock.kafka.partitions import TopicPartition
from penstock.scale.proto import externalscaler_pb2 as pb
from penstock.scale.proto.externalscaler_pb2_grpc import ExternalScalerStub
from tests.ground.heard import topics_heard
from tests.scale.pretend import value_when

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ground.fleet import Fleet

pytestmark = pytest.mark.kafka


async def test_a_scaler_process_answers_and_ends_when_told(
    fleet: Fleet, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic, group = unique("orders"), unique("billing")
    async with Client(fleet.bootstrap, fleet.security()) as client:
        all_done(await topics.create(client, [topics.NewTopic(topic, 2, 1)]))
        await topics_heard(fleet, topic)
        all_done(await commits.commit(client, group, {TopicPartition(topic, 0): Committed(0)}))
    config = fleet.client_config()
    (tmp_path / "password").write_text(config["sasl.password"])
    (tmp_path / "scaler.yaml").write_text(f"""
listen: 127.0.0.1:0
samples: {{cluster: default, topic: {unique("lag")}}}
clusters:
  default:
    bootstrap: {config["bootstrap.servers"]}
    interval: 1
    user: {config["sasl.username"]}
    passwordFile: {tmp_path}/password
    mechanism: {config["sasl.mechanism"]}
""")
    words = ["-m", "penstock", "scale", "serve", "--settings", str(tmp_path / "scaler.yaml")]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        port, said = None, ""
        async with asyncio.timeout(60):
            while port is None:  # libraries may have a word of their own before
                line = (await process.stderr.readline()).decode()
                said += line
                assert line, said
                port = re.search(r"scaler ready on 127\.0\.0\.1:(\d+)", line)
        about = pb.ScaledObjectRef(
            name="billing",
            namespace="shop",
            scalerMetadata={"group": group, "topic": topic, "minReplicas": "0"},
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port[1]}") as channel:
            value = await value_when(ExternalScalerStub(channel), about, lambda value: value > 0)
        process.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(process.wait(), 60)
        await asyncio.wait_for(process.stderr.read(), 60)  # its sampler has it too, and ends as well
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    assert (value, status) == (1.0, 0)
