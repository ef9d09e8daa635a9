"""Splicing a frame, compared with decoding it.

Ours is a frame through `Requests` or `Responses`, with renaming and observed values. kio (a reader in
Rust) and kafka-python decode the body of the same frame, which is half of what a proxy built on them
would do. kio's round trip adds the other half, without any renaming. Microseconds are processor time.
"""

from __future__ import annotations

import io
import sys
import time
import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

from kafka.protocol.consumer import FetchResponse
from kafka.protocol.metadata import MetadataResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kio.index import load_entity_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from bench.harness import Result, Run, main
from bench.measure import interleave
from penstock.wire.field_rules import Kind
from penstock.wire.frames import Request, Response, encode_request, encode_response
from penstock.wire.names import Names
from penstock.wire.plans import Direction, plan
from penstock.wire.splice import Limits, Program, Requests, Responses, Splicer, program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREFIX: Final = b"lkc-7hq2mz_"
ROUNDS, ROUNDS_QUICK = 9, 3
SECONDS_A_RUN: Final = 0.08
MEBIBYTE: Final = 1024 * 1024
LARGE_BYTES: Final = 100 * MEBIBYTE
PEERS: Final = {
    "kio": ("kio decoding", None),
    "kio-round-trip": ("kio decoding and encoding", "<= 0.3"),
    "kafka-python": ("kafka-python decoding", "<= 1.0"),
}
KAFKA_PYTHON: Final = {
    "ProduceRequest": ProduceRequest,
    "ProduceResponse": ProduceResponse,
    "FetchResponse": FetchResponse,
    "MetadataResponse": MetadataResponse,
}


class Outward(Names):
    kinds = frozenset((Kind.TOPIC, Kind.TOPIC_ID, Kind.GROUP, Kind.TRANSACTIONAL_ID))
    topic_growth = len(PREFIX)

    def topic(self, name: bytes) -> bytes | None:
        return PREFIX + name

    group = transactional_id = topic


class Inward(Outward):
    kinds = Outward.kinds | {Kind.ENDPOINT, Kind.TEXT, Kind.ERROR, Kind.THROTTLE, Kind.CLUSTER_ID}
    topic_growth = -len(PREFIX)

    def topic(self, name: bytes) -> bytes | None:
        return name[len(PREFIX) :] if name.startswith(PREFIX) else None

    group = transactional_id = topic

    def endpoint(self, broker_id: int, host: bytes, port: int) -> tuple[int, bytes, int] | None:
        return broker_id, b"b1-lkc-7hq2mz.example.com", 9092


class Same:
    """A handler that lets everything pass by one program."""

    def __init__(self, chosen: Program) -> None:
        self.chosen = chosen

    def begin(self, *head: int) -> Program:
        return self.chosen

    def end(self, seen: Any) -> None:
        pass

    def taken(self, frame: bytes) -> None:
        raise AssertionError("nothing is taken here")

    def refused(self, frame: bytes, error: Exception) -> None:
        raise error


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    api: str
    api_key: int
    version: int
    direction: Direction
    frame: bytes
    goal: str | None = None


def splicer(line: Line) -> Splicer:
    outward = line.direction is Direction.REQUEST
    names = Outward() if outward else Inward()
    made = program(line.api_key, line.version, line.direction, names.kinds, observed=True)
    return (Requests if outward else Responses)(Same(made), names)


def records(size: int) -> bytes:
    return bytes(size)


def produce(version: int, partitions: int, size: int) -> bytes:
    rows = [{"Index": index, "Records": records(size)} for index in range(partitions)]
    named = {"TopicId": UUID(int=7)} if version >= 13 else {"Name": "orders"}
    body = {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [{**named, "PartitionData": rows}]}
    return encode_request(Request("Produce", version, 1, "producer-1", body))


def produced(version: int, partitions: int) -> bytes:
    rows = [{"Index": index, "BaseOffset": 5, "LogStartOffset": 0} for index in range(partitions)]
    named = {"TopicId": UUID(int=7)} if version >= 13 else {"Name": PREFIX.decode() + "orders"}
    return encode_response(
        "Produce", version, Response(1, {"Responses": [{**named, "PartitionResponses": rows}]})
    )


def fetched(version: int, partitions: int, size: int) -> bytes:
    fixed = {"HighWatermark": 9, "AbortedTransactions": None, "Records": records(size)}
    rows = [{"PartitionIndex": index, **fixed} for index in range(partitions)]
    named = {"TopicId": UUID(int=7)} if version >= 13 else {"Topic": PREFIX.decode() + "orders"}
    return encode_response(
        "Fetch", version, Response(1, {"SessionId": 5, "Responses": [{**named, "Partitions": rows}]})
    )


def metadata(topics: int, partitions: int) -> bytes:
    brokers = [{"NodeId": i, "Host": f"b{i}.internal", "Port": 9092, "Rack": "zone-a"} for i in (1, 2, 3)]
    fixed = {"LeaderId": 1, "LeaderEpoch": 3, "ReplicaNodes": [1, 2, 3], "IsrNodes": [1, 2, 3]}
    rows = [{"PartitionIndex": index, **fixed} for index in range(partitions)]
    listed = [
        {"Name": f"{PREFIX.decode()}topic-{index}", "TopicId": UUID(int=index + 1), "Partitions": rows}
        for index in range(topics)
    ]
    body = {"Brokers": brokers, "ClusterId": "pkc-1", "ControllerId": 1, "Topics": listed}
    return encode_response("Metadata", 12, Response(1, body))


def lines() -> Iterator[Line]:
    out, back = Direction.REQUEST, Direction.RESPONSE
    for partitions, goal in ((1, "<= 9.9"), (10, None), (100, None)):
        frame = produce(10, partitions, 1000)
        yield Line(f"produce-{partitions}", "Produce", 0, 10, out, frame, goal)
    yield Line("produce-by-id-1", "Produce", 0, 13, out, produce(13, 1, 1000), "<= 9.9")
    yield Line("produced-1", "Produce", 0, 10, back, produced(10, 1), "<= 9.9")
    yield Line("fetch-1", "Fetch", 1, 16, back, fetched(16, 1, 1000), "<= 9.9")
    yield Line("fetch-10", "Fetch", 1, 16, back, fetched(16, 10, 1000))
    yield Line("fetch-1-of-1mb", "Fetch", 1, 16, back, fetched(16, 1, MEBIBYTE))
    yield Line("metadata-10", "Metadata", 3, 12, back, metadata(10, 6))
    yield Line("metadata-2000", "Metadata", 3, 12, back, metadata(2000, 1))


def body_start(line: Line) -> int:
    """Where the body begins, behind size and header."""
    if line.direction is Direction.REQUEST:
        start = 14 + max(0, int.from_bytes(line.frame[12:14], "big", signed=True))
    else:
        start = 8
    return start + plan(line.api_key, line.version, line.direction).header_flexible


def repeated(call: Callable[[], object]) -> Callable[[], float]:
    """A contender that returns the processor microseconds of one call."""
    call()
    count, begin = 0, time.process_time()
    while time.process_time() - begin < SECONDS_A_RUN / 4:
        call()
        count += 1
    often = max(1, count * 4)

    def contender() -> float:
        begin = time.process_time()
        for _ in range(often):
            call()
        return (time.process_time() - begin) / often * 1e6

    return contender


def contenders(line: Line) -> dict[str, Callable[[], float]]:
    ours, frame = splicer(line), line.frame
    start = body_start(line)
    body = frame[start:]
    entity: Literal[EntityType.request, EntityType.response]
    entity = EntityType.request if line.direction is Direction.REQUEST else EntityType.response
    schema = load_entity_schema(line.api.lower(), line.version, entity)
    read, write = entity_reader(schema), entity_writer(schema)
    message = KAFKA_PYTHON[line.api + line.direction.capitalize()]

    def splice() -> None:
        ours.feed(frame, [])

    def round_trip() -> None:
        write(io.BytesIO(), read(frame, start)[0])

    return {
        "ours": repeated(splice),
        "kio": repeated(lambda: read(frame, start)),
        "kio-round-trip": repeated(round_trip),
        "kafka-python": repeated(lambda: message.decode(body, version=line.version)),
    }


def measure(run: Run) -> Iterator[Result]:
    microseconds: dict[str, list[float]] = {}
    for line in lines():
        run.log(line.name)
        series = interleave(contenders(line), rounds=ROUNDS_QUICK if run.quick else ROUNDS)
        ours = series["ours"]
        peers = {name: series[name].median("value") for name in PEERS}
        microseconds[line.name] = list(ours.value)
        detail = {f"{name}_us": round(median, 2) for name, median in peers.items()}
        detail["frame_bytes"] = len(line.frame)
        yield Result.of_runs(f"{line.name}-walk", ours.value, unit="µs", goal=line.goal, detail=detail)
        for name, (what, goal) in PEERS.items():
            yield Result.of_runs(
                f"{line.name}-walk-to-{name}",
                ours.ratios(series[name], "value"),
                unit=f"ratio to {what}",
                goal=goal,
                detail={"ours_us": round(ours.median("value"), 2), "peer_us": round(peers[name], 2)},
            )
    yield from memory()
    run.plot_runs("walk", microseconds, title="a frame walked and renamed", unit="processor µs")


def memory() -> Iterator[Result]:
    """What a frame of 100 MB adds while it passes."""
    for name, line in (
        ("produce", Line("", "Produce", 0, 10, Direction.REQUEST, produce(10, 1, LARGE_BYTES))),
        ("fetch", Line("", "Fetch", 1, 16, Direction.RESPONSE, fetched(16, 1, LARGE_BYTES))),
    ):
        one, frame = splicer(line), memoryview(line.frame)
        one.limits = Limits(frame_bytes_max=2 * LARGE_BYTES)
        one.feed((produce(10, 1, 40_000) if name == "produce" else fetched(16, 1, 40_000)), [])
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for at in range(0, len(frame), 65536):
            one.feed(bytes(frame[at : at + 65536]), [])
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        yield Result(f"{name}-100mb-memory", peak / MEBIBYTE, "MiB above idle", "<= 1.0")


if __name__ == "__main__":
    sys.exit(main("wire_plans", measure))
