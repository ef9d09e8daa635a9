"""The codec compared with kio and kafka-python: processor time to encode and decode a message.

`bench.wire_plans` follows in the same run: frames that are spliced rather than decoded.

Every codec has the same message in its own form (dicts, kio's dataclasses, kafka-python's objects) before
the clock starts. kio writes in Python and reads in Rust; kafka-python only decodes here, in Python.
Ratios are the peer's time to ours: above 1 we are faster.
"""

from __future__ import annotations

import io
import sys
import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

from kio.index import load_entity_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from bench import wire_plans
from bench.harness import Result, Run, main
from bench.measure import interleave
from penstock.wire.codec import decode, encode
from penstock.wire.definitions import load
from penstock.wire.records import Record, batches, records, write

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's, on import
    from kafka.protocol.consumer import FetchRequest
    from kafka.protocol.metadata import MetadataResponse
    from kafka.protocol.producer import ProduceRequest
    from kafka.record.default_records import DefaultRecordBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROUNDS, ROUNDS_QUICK = 9, 3
SECONDS_A_RUN: Final = 0.1
SECONDS_A_RUN_QUICK: Final = 0.03
WRITER_GOAL: Final = ">= 5"
MICROSECONDS: Final = 1_000_000
KAFKA_PYTHON: Final = {
    "FetchRequest": FetchRequest,
    "MetadataResponse": MetadataResponse,
    "ProduceRequest": ProduceRequest,
}


@dataclass(frozen=True)
class Case:
    """A message as Penstock sends or receives it."""

    name: str
    message: str
    version: int
    values: Mapping[str, Any] = field(repr=False)

    @property
    def peer_name(self) -> tuple[str, Literal[EntityType.request, EntityType.response]]:
        kind: Literal[EntityType.request, EntityType.response]
        kind = EntityType.request if self.message.endswith("Request") else EntityType.response
        bare = self.message.removesuffix("Request").removesuffix("Response")
        snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in bare).lstrip("_")
        return snake, kind


def metadata(topics: int, partitions: int) -> dict[str, Any]:
    return {
        "Brokers": [
            {"NodeId": i, "Host": f"broker-{i}.example.com", "Port": 9092, "Rack": "abc"[i % 3]}
            for i in range(6)
        ],
        "ClusterId": "lirTPDLXRmmZoxfbOegazA",
        "ControllerId": 1,
        "Topics": [
            {
                "Name": f"lkc-7hq2mz_orders-{t}",
                "TopicId": UUID(int=t + 1),
                "Partitions": [
                    {
                        "PartitionIndex": p,
                        "LeaderId": p % 6,
                        "LeaderEpoch": 3,
                        "ReplicaNodes": [p % 6, (p + 1) % 6, (p + 2) % 6],
                        "IsrNodes": [p % 6, (p + 1) % 6, (p + 2) % 6],
                        "OfflineReplicas": [],
                    }
                    for p in range(partitions)
                ],
            }
            for t in range(topics)
        ],
    }


def cases() -> Iterator[Case]:
    yield Case("metadata-10", "MetadataResponse", 12, metadata(10, 6))
    yield Case("metadata-2000", "MetadataResponse", 12, metadata(2000, 6))
    partition = {"Index": 0, "Records": bytes(16 << 10)}
    topic = {"Name": "lkc-7hq2mz_orders", "PartitionData": [partition]}
    yield Case("produce-16k", "ProduceRequest", 12, {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [topic]})
    fetches = [{"Partition": p, "FetchOffset": 10_000 + p, "PartitionMaxBytes": 1 << 20} for p in range(10)]
    topics = [{"TopicId": UUID(int=t + 1), "Partitions": fetches} for t in range(10)]
    yield Case("fetch-100", "FetchRequest", 17, {"MaxWaitMs": 500, "MinBytes": 1, "Topics": topics})
    new = {
        "NumPartitions": 6,
        "ReplicationFactor": 3,
        "Configs": [{"Name": "retention.ms", "Value": "60000"}],
    }
    created = [{"Name": f"orders-{t}", **new} for t in range(10)]
    yield Case("create-topics-10", "CreateTopicsRequest", 7, {"Topics": created})
    partitions = [{"PartitionIndex": p, "Timestamp": -1} for p in range(10)]
    listed = [{"Name": f"orders-{t}", "Partitions": partitions} for t in range(10)]
    yield Case("list-offsets-100", "ListOffsetsRequest", 10, {"ReplicaId": -1, "Topics": listed})
    commits = [{"PartitionIndex": p, "CommittedOffset": p, "CommittedMetadata": ""} for p in range(10)]
    committed = [{"Name": f"orders-{t}", "Partitions": commits} for t in range(10)]
    yield Case("offset-commit-100", "OffsetCommitRequest", 9, {"GroupId": "payments", "Topics": committed})


def repeated(call: Callable[[], object], seconds: float) -> Callable[[], float]:
    """A contender that runs `call` for a while and returns the seconds of processor time of one."""
    begin = time.process_time()
    call()
    once = max(time.process_time() - begin, 1e-6)
    times = max(1, int(seconds / once))

    def run() -> float:
        start = time.process_time()
        for _ in range(times):
            call()
        return (time.process_time() - start) / times

    return run


def contenders(case: Case, seconds: float) -> tuple[dict[str, Callable[[], float]], int]:
    """Writers and readers that agree on the same bytes, and the number of bytes."""
    data = encode(case.message, case.version, case.values)
    values = decode(case.message, case.version, data)
    snake, kind = case.peer_name
    cls = load_entity_schema(snake, case.version, kind)
    reader, writer = entity_reader(cls), entity_writer(cls)
    entity, _ = reader(data, 0)

    def kio_write() -> bytes:
        buffer = io.BytesIO()
        writer(buffer, entity)
        return buffer.getvalue()

    assert kio_write() == data, f"{case.name}: kio writes other bytes"
    contestants: dict[str, Callable[[], object]] = {
        "write": lambda: encode(case.message, case.version, values),
        "write-kio": kio_write,
        "read": lambda: decode(case.message, case.version, data),
        "read-kio": lambda: reader(data, 0),
    }
    if theirs := KAFKA_PYTHON.get(case.message):
        contestants["read-kafka-python"] = lambda: theirs.decode(data, version=case.version)
    return {name: repeated(call, seconds) for name, call in contestants.items()}, len(data)


def codec_lines(run: Run) -> Iterator[Result]:
    rounds = ROUNDS_QUICK if run.quick else ROUNDS
    seconds = SECONDS_A_RUN_QUICK if run.quick else SECONDS_A_RUN
    written: dict[str, tuple[float, ...]] = {}
    for case in cases():
        run.log(f"{case.name}: {case.message} v{case.version}")
        made, size = contenders(case, seconds)
        runs = interleave(made, rounds=rounds)
        micros = {f"{name}_us": series.median("value") * MICROSECONDS for name, series in runs.items()}
        detail = {"bytes": size, **{name: round(value, 2) for name, value in micros.items()}}
        for way in ("write", "read"):
            for peer in ("kio", "kafka-python"):
                if f"{way}-{peer}" not in runs:
                    continue
                ratios = runs[f"{way}-{peer}"].ratios(runs[way], "value")
                goal = WRITER_GOAL if (way, peer) == ("write", "kio") else None
                name = f"codec-{way}-{case.name}-vs-{peer}"
                yield Result.of_runs(name, ratios, unit=f"{peer}'s time to ours", goal=goal, detail=detail)
                if (way, peer) == ("write", "kio"):
                    written[case.name] = ratios
    run.plot_runs("codec-writers", written, title="kio's writer to ours", unit="times as long")


def batch_lines(run: Run) -> Iterator[Result]:
    """A batch of a hundred small records: ours and kafka-python's, both in Python."""
    rows = [Record(i, 1_700_000_000_000 + i, b"key-%d" % i, b"v" * 100) for i in range(100)]
    data = write(rows)
    seconds = SECONDS_A_RUN_QUICK if run.quick else SECONDS_A_RUN
    made = {
        "read": repeated(lambda: [records(batch) for batch in batches(data)], seconds),
        "read-kafka-python": repeated(lambda: list(DefaultRecordBatch(data)), seconds),
    }
    runs = interleave(made, rounds=ROUNDS_QUICK if run.quick else ROUNDS)
    micros = {f"{name}_us": round(s.median("value") * MICROSECONDS, 1) for name, s in runs.items()}
    ratios = runs["read-kafka-python"].ratios(runs["read"], "value")
    yield Result.of_runs(
        "batch-read-100-vs-kafka-python", ratios, unit="kafka-python's time to ours", detail=micros
    )


def start_lines(run: Run) -> Iterator[Result]:
    """What a process spends once: unpacking the definitions, and generating a codec."""
    from penstock.wire import definitions
    from penstock.wire.codegen import decoder, encoder

    message = load().response("Metadata")
    packed = definitions.DATA_FILE.read_bytes()
    made = {
        "unpack": repeated(lambda: definitions.unpack(packed), 0.05),
        "codec": repeated(lambda: (decoder.decoder(message, 12), encoder.encoder(message, 12)), 0.05),
    }
    runs = interleave(made, rounds=ROUNDS_QUICK if run.quick else ROUNDS)
    for name, series in runs.items():
        yield Result.of_runs(f"start-{name}", [v * 1000 for v in series.value], unit="ms")


SECTIONS: Final = (codec_lines, batch_lines, start_lines, wire_plans.measure)


def measure(run: Run) -> Iterator[Result]:
    for section in SECTIONS:
        yield from section(run)


if __name__ == "__main__":
    sys.exit(main("wire", measure))
