"""`penstock scale serve` as a process with real Kafka, stopped by SIGTERM as Kubernetes does."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from typing import TYPE_CHECKING

import grpc
import pytest

from penstock.kafka.admin import group_offsets, topics
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.scale.proto import externalscaler_pb2 as pb
from tests.harness.propagation import wait_for_topics
from tests.scale.fakes import stub_for, value_when

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka


async def test_a_scaler_process_serves_calls_and_ends_on_sigterm(
    fleet: Fleet, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic, group = unique("orders"), unique("billing")
    async with Client(fleet.bootstrap, fleet.security()) as client:
        results_or_raise(await topics.create(client, [topics.NewTopic(topic, 2, 1)]))
        await wait_for_topics(fleet, topic)
        results_or_raise(
            await group_offsets.commit(client, group, {TopicPartition(topic, 0): CommittedOffset(0)})
        )
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
    password_file: {tmp_path}/password
    mechanism: {config["sasl.mechanism"]}
""")
    words = ["-m", "penstock", "scale", "serve", "--settings", str(tmp_path / "scaler.yaml")]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        port, message = None, ""
        async with asyncio.timeout(60):
            while port is None:  # libraries may log lines first
                line = (await process.stderr.readline()).decode()
                message += line
                assert line, message
                port = re.search(r"scaler ready on 127\.0\.0\.1:(\d+)", line)
        about = pb.ScaledObjectRef(
            name="billing",
            namespace="shop",
            scalerMetadata={"group": group, "topic": topic, "minReplicas": "0"},
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port[1]}") as channel:
            value = await value_when(stub_for(channel), about, lambda value: value > 0)
        process.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(process.wait(), 60)
        await asyncio.wait_for(process.stderr.read(), 60)  # its sampler shares stderr, and ends as well
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    assert (value, status) == (1.0, 0)
