"""Load for `bench.gateway`: Kafka's protocol over plain sockets, from frames made in advance.

A client library would follow Metadata past a relay that rewrites nothing, and would cost more than what
is measured. So each connection stays where it is and repeats one frame.
"""

from __future__ import annotations

import base64
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import crc32c

from penstock.kafka.scram import HASHES, Exchange, check_final, final_message, first_message
from penstock.wire.frames import Request, decode_response, encode_request
from penstock.wire.records import Record, batches, records, write

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

SCRAM = "SCRAM-SHA-512"
CHUNK = 1 << 20
SENDERS = 4
STAMP_BYTES = 8
CHECKSUM_AT, CHECKED_AT = 17, 21  # offsets in a record batch: the CRC-32C, and what it covers
_size = struct.Struct(">i")


@dataclass(frozen=True)
class Target:
    """An address, a login, and the prefix of topic names there."""

    name: str
    host: str
    port: int
    mechanism: str
    user: str
    password: str
    prefix: str
    tls: ssl.SSLContext | None = None
    pid: int = 0  # of the relay whose processor time is measured; 0 if none


class Client:
    """One connection, logged in."""

    def __init__(self, target: Target, source: str = "") -> None:
        """Connects and logs in, from the address `source` if given."""
        plain = socket.create_connection((target.host, target.port), 60, (source, 0) if source else None)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket: socket.socket = (
            target.tls.wrap_socket(plain, server_hostname="localhost") if target.tls else plain
        )
        self.buffer = memoryview(bytearray(CHUNK * 4))
        self.filled = 0
        self.call("SaslHandshake", 1, {"Mechanism": target.mechanism})
        if target.mechanism == "PLAIN":
            self.authenticate(f"\0{target.user}\0{target.password}".encode())
            return
        nonce = base64.b64encode(os.urandom(18)).decode()
        exchange = Exchange(HASHES[SCRAM], target.user, target.password, nonce)
        proof = final_message(exchange, self.authenticate(first_message(exchange)))
        check_final(proof, self.authenticate(proof.message))

    def authenticate(self, token: bytes) -> bytes:
        response = self.call("SaslAuthenticate", 2, {"AuthBytes": token})
        assert not response["ErrorCode"], response
        data: bytes = response["AuthBytes"]
        return data

    def call(self, api: str, version: int, body: dict[str, Any]) -> dict[str, Any]:
        self.socket.sendall(encode_request(Request(api, version, 1, "bench", body)))
        return decode_response(api, version, self.read()).body

    def read(self) -> bytes:
        """Reads one whole response."""
        head = self._exactly(4)
        return self._exactly(_size.unpack(head)[0])

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.socket.recv(min(count, CHUNK))
            assert part, "the connection was closed"
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self.socket.close()


class Sink:
    """Counts the complete responses in what arrives, and discards the data."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = bytearray(CHUNK)
        self.left = 0  # bytes left of the current response
        self.head = b""
        self.bytes = 0

    def receive(self) -> int:
        """Waits for data; returns how many responses it completed."""
        count = self.connection.recv_into(self.buffer)
        assert count, "the connection was closed"
        self.bytes += count
        ended = position = 0
        while position < count:
            if self.left:
                step = min(self.left, count - position)
                self.left -= step
                position += step
                ended += not self.left
                continue
            need = 4 - len(self.head)
            self.head += bytes(self.buffer[position : position + need])
            position = min(count, position + need)
            if len(self.head) == 4:
                self.left = _size.unpack(self.head)[0]
                self.head = b""
        return ended


def repeat(client: Client, frame: bytes, times: int, in_flight: int) -> int:
    """Sends a frame so many times, at most `in_flight` at once; returns the bytes received."""
    sink = Sink(client.socket)
    sent = min(in_flight, times)
    client.socket.sendall(frame * sent)
    completed = 0
    while completed < times:
        ended = sink.receive()
        completed += ended
        more = min(ended, times - sent)
        if more:
            client.socket.sendall(frame * more)
            sent += more
    return sink.bytes


def at_once(work: list[Callable[[], object]]) -> float:
    """Runs each in a thread; returns the seconds it took."""
    failures: list[BaseException] = []

    def run(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as failure:  # noqa: BLE001 - raised below, in the thread that waits
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    if failures:
        raise failures[0]
    return seconds


def produce_frame(topic: str, value_bytes: int, count: int, *, acks: int = 1) -> bytes:
    """A request with one batch of so many records, in the version that librdkafka uses."""
    now_ms = int(time.time() * 1000)  # retention would delete records of 1970
    rows = [Record(n, now_ms, None, os.urandom(value_bytes)) for n in range(count)]
    partition = {"Index": 0, "Records": write(rows)}
    body = {
        "TransactionalId": None,
        "Acks": acks,
        "TimeoutMs": 30_000,
        "TopicData": [{"Name": topic, "PartitionData": [partition]}],
    }
    return encode_request(Request("Produce", 10, 1, "bench", body))


def fetch_frame(
    topic_id: UUID, offset: int, *, bytes_max: int = CHUNK, wait_ms: int = 500, epoch: int = -1
) -> bytes:
    """Reads one partition; with `epoch=0` it opens a fetch session."""
    partition = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": bytes_max}
    body = {
        "MaxWaitMs": wait_ms,
        "MinBytes": 1,
        "MaxBytes": bytes_max,
        "SessionEpoch": epoch,
        "Topics": [{"TopicId": topic_id, "Partitions": [partition]}],
    }
    return encode_request(Request("Fetch", 16, 1, "bench", body))


def topic_id_of(client: Client, topic: str) -> UUID:
    response = client.call("Metadata", 12, {"Topics": [{"Name": topic, "TopicId": UUID(int=0)}]})
    (topic_metadata,) = response["Topics"]
    assert not topic_metadata["ErrorCode"], topic_metadata
    topic_id: UUID = topic_metadata["TopicId"]
    return topic_id


def end_offset(client: Client, topic: str) -> int:
    partition = {"PartitionIndex": 0, "Timestamp": -1}
    body = {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": [partition]}]}
    response = client.call("ListOffsets", 7, body)
    offset: int = response["Topics"][0]["Partitions"][0]["Offset"]
    return offset


def latencies(target: Target, topic: str, rate: int, seconds: float) -> tuple[float, list[float]]:
    """End to end: records sent at a steady rate over a few connections, read on another one.

    A sender waits for its response, so that no socket is used by two threads at once. Returns the seconds
    from the first to the last record sent, and each record's seconds from sending to reading.
    """
    senders, reader = [Client(target) for _ in range(SENDERS)], Client(target)
    name = target.prefix + topic
    topic_id = topic_id_of(reader, name)
    offset = end_offset(reader, name)
    total = int(rate * seconds)
    delays: list[float] = []
    ended = [0.0] * SENDERS
    begin = time.perf_counter() + 0.05

    def send(index: int) -> None:
        client, frame = senders[index], StampedRequest(name)
        for number in range(index, total, SENDERS):
            wait = begin + number / rate - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            client.socket.sendall(frame.at(time.perf_counter()))
            client.read()
        ended[index] = time.perf_counter()

    def read() -> None:
        nonlocal offset
        while len(delays) < total:
            reader.socket.sendall(fetch_frame(topic_id, offset))
            response = decode_response("Fetch", 16, reader.read()).body
            now = time.perf_counter()
            for batch in batches(response["Responses"][0]["Partitions"][0]["Records"] or b""):
                for row in records(batch):
                    offset = row.offset + 1
                    delays.append(now - struct.unpack(">d", row.value or b"")[0])

    at_once([read, *(partial(send, index) for index in range(SENDERS))])
    for client in (*senders, reader):
        client.close()
    return max(ended) - begin, delays


class StampedRequest:
    """A request whose one record carries its send time. It is encoded once and then only stamped, so that
    the load generator costs less than what is measured."""

    def __init__(self, topic: str) -> None:
        mark = b"\xa5" * STAMP_BYTES
        records = write([Record(0, int(time.time() * 1000), None, mark)])
        partition = {"Index": 0, "Records": records}
        topics = [{"Name": topic, "PartitionData": [partition]}]
        body = {"TransactionalId": None, "Acks": 1, "TimeoutMs": 30_000, "TopicData": topics}
        self.frame = bytearray(encode_request(Request("Produce", 10, 1, "bench", body)))
        self.batch_at = self.frame.index(records)
        self.batch_end = self.batch_at + len(records)
        self.mark_at = self.frame.index(mark)

    def at(self, now: float) -> bytes:
        frame, batch_at = self.frame, self.batch_at
        struct.pack_into(">d", frame, self.mark_at, now)
        checked = bytes(frame[batch_at + CHECKED_AT : self.batch_end])
        struct.pack_into(">I", frame, batch_at + CHECKSUM_AT, crc32c.crc32c(checked))
        return bytes(frame)
