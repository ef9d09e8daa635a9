"""Load for `bench.isolation`: a victim that keeps its schedule, and neighbours that respect no limit.

Neighbours run in a separate process (`python -m bench.isolation_load '{…}'`), so that they and the victim
share no interpreter lock. They run at a lower priority on the shared core, because delays of the load
generator must not be measured. The last line of output is what they achieved, by second.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import uvloop

from bench.gateway_load import CHUNK, Client, Sink, Target, fetch_frame, produce_frame, topic_id_of
from penstock.wire.frames import Request, encode_request

KB = 1024
TOPIC = "load"
BATCH_RECORDS = 16
VICTIM_ADDRESS = "127.0.0.2"  # not its neighbours': gateways also limit by address
RESPONSE_SECONDS_MAX = 120.0
NICENESS = 10
TINY_IN_FLIGHT = 1_000  # librdkafka allows a million; a gateway reads no more per connection
LOGINS_AT_ONCE = 16  # per connection of a neighbour that storms
LOGIN_SECONDS_MAX = 5.0


@dataclass
class Victim:
    """Sends a small batch on schedule, whatever happened to the previous one."""

    target: Target
    rate: float
    latencies: list[float] = field(default_factory=list)  # from the intended send time
    offered: int = 0

    def run(self, seconds: float) -> None:
        client = Client(self.target, VICTIM_ADDRESS)
        frame = produce_frame(self.target.prefix + TOPIC, KB, 1)
        count = int(self.rate * seconds)
        begin = time.perf_counter() + 0.05

        def send() -> None:
            for number in range(count):
                wait = begin + number / self.rate - time.perf_counter()
                if wait > 0:
                    time.sleep(wait)
                client.socket.sendall(frame)
                self.offered += 1

        sender = threading.Thread(target=send)
        sender.start()
        client.socket.settimeout(RESPONSE_SECONDS_MAX)
        sink = Sink(client.socket)
        completed = 0
        while completed < count:
            ended = sink.receive()
            now = time.perf_counter()
            self.latencies += [now - (begin + (completed + n) / self.rate) for n in range(ended)]
            completed += ended
        sender.join()
        client.close()


class Greedy:
    """A tenant that requests as much as it can. `done` is what it got, by second since the start."""

    def __init__(self, target: Target, kind: str, seconds: float) -> None:
        self.target, self.kind = target, kind
        self.begin = time.monotonic()
        self.end = self.begin + seconds
        self.done: Counter[int] = Counter()

    def run(self) -> None:
        with suppress(OSError, AssertionError):  # a gateway may disconnect it
            getattr(self, self.kind)()

    def _count(self, amount: int) -> None:
        self.done[int(time.monotonic() - self.begin)] += amount

    def _pump(self, frame: bytes, in_flight: int, *, amount_each: int | None = None) -> None:
        """Repeats one request. Counts `amount_each` per response, or by default the bytes received."""
        client = Client(self.target)
        client.socket.settimeout(RESPONSE_SECONDS_MAX)
        sink = Sink(client.socket)
        client.socket.sendall(frame * in_flight)
        before = 0
        while time.monotonic() < self.end:
            ended = sink.receive()
            self._count(sink.bytes - before if amount_each is None else ended * amount_each)
            before = sink.bytes
            if ended:
                client.socket.sendall(frame * ended)
        client.close()

    def ingress(self) -> None:
        frame = produce_frame(self.target.prefix + TOPIC, 4 * KB, BATCH_RECORDS)
        self._pump(frame, 5, amount_each=len(frame))

    def pressure(self) -> None:
        """Smaller requests than `ingress`, for a resolution of a second."""
        frame = produce_frame(self.target.prefix + TOPIC, 4 * KB, 4)
        self._pump(frame, 5, amount_each=len(frame))

    def egress(self) -> None:
        client = Client(self.target)
        topic = topic_id_of(client, self.target.prefix + TOPIC)
        client.close()
        self._pump(fetch_frame(topic, 0, bytes_max=CHUNK), 2)

    def tiny(self) -> None:
        self._pump(produce_frame(self.target.prefix + TOPIC, 10, 1), TINY_IN_FLIGHT, amount_each=1)

    def storm(self) -> None:
        """Logs in repeatedly, as fast as sockets open."""
        uvloop.run(self._storm())

    async def _storm(self) -> None:
        token = f"\0{self.target.user}\0{self.target.password}".encode()
        frames = encode_request(Request("SaslHandshake", 1, 1, "bench", {"Mechanism": "PLAIN"}))
        frames += encode_request(Request("SaslAuthenticate", 2, 2, "bench", {"AuthBytes": token}))

        async def log_in_repeatedly() -> None:
            while time.monotonic() < self.end:
                with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                    async with asyncio.timeout(LOGIN_SECONDS_MAX):
                        await self._log_in(frames)

        await asyncio.gather(*(log_in_repeatedly() for _ in range(LOGINS_AT_ONCE)))

    async def _log_in(self, frames: bytes) -> None:
        reader, writer = await asyncio.open_connection(self.target.host, self.target.port)
        try:
            writer.write(frames)
            for _ in range(2):
                response = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            if response[5:7] == bytes(2):  # after correlation id and tags: no error
                self._count(1)
        finally:
            writer.transport.abort()
            await writer.wait_closed()

    def churn(self) -> None:
        """Creates and deletes topics."""
        client = Client(self.target)
        client.socket.settimeout(RESPONSE_SECONDS_MAX)
        while time.monotonic() < self.end:
            name = f"churn-{uuid4().hex[:12]}"
            topic = {
                "Name": name,
                "NumPartitions": 8,
                "ReplicationFactor": 1,
                "Assignments": [],
                "Configs": [],
            }
            made = client.call("CreateTopics", 7, {"Topics": [topic], "TimeoutMs": 30_000})
            if made["Topics"][0]["ErrorCode"]:
                continue
            client.call("DeleteTopics", 5, {"TopicNames": [name], "TimeoutMs": 30_000})
            self._count(2 * 8)
        client.close()


def neighbours(options: dict[str, Any]) -> list[dict[str, int]]:
    targets = [Target(**one) for one in options["targets"]]
    kind, seconds = str(options["kind"]), float(options["seconds"])
    each = int(options["connections"])
    greedy = [Greedy(target, kind, seconds) for target in targets for _ in range(each)]
    threads = [threading.Thread(target=one.run, daemon=True) for one in greedy]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 20)
    by_tenant = [sum((one.done for one in greedy if one.target is target), Counter()) for target in targets]
    return [{str(second): count for second, count in done.items()} for done in by_tenant]


if __name__ == "__main__":
    os.nice(NICENESS)
    socket.setdefaulttimeout(60)
    print(json.dumps(neighbours(json.loads(sys.argv[1]))), flush=True)
