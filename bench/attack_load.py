"""Attacks for `bench.attacks`: what one account, or a stranger without a login, can send to hurt others.

Each attack repeats until its time is up, on a few connections, and connects again when the gateway closes
one. It runs in a separate process (`python -m bench.attack_load '{…}'`) at a lower priority. The last line
of output is how often it got through: requests sent, and connections that the gateway closed or refused.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

from bench.gateway_load import Client, Target, fetch_frame, topic_id_of
from bench.isolation_load import NICENESS, TOPIC
from penstock.wire.codec_runtime import uvarint
from penstock.wire.definitions import load
from penstock.wire.frames import Request, encode_request

if TYPE_CHECKING:
    from collections.abc import Callable

MIB: Final = 1 << 20
FRAME_BYTES: Final = 8 * MIB - 1024  # just below the largest request that gateways used to take
SMALL_BYTES: Final = 64 * 1024
PIPELINED: Final = 16
SILENT: Final = 200  # connections that never log in, of each attacker
HALF_FRAMES: Final = 200
SESSIONS: Final = 300  # opened before the connection ends and another begins
LONG_POLL_MS: Final = 7_000
RESPONSE_SECONDS_MAX: Final = 5.0
RETRY_SECONDS: Final = 0.05
_EMPTY_NAME: Final = b"\x01"  # a compact string
_NO_TAGS: Final = b"\0"


@dataclass
class Outcome:
    sent: int = 0
    closed: int = 0


@dataclass
class Attacker:
    target: Target
    end: float
    outcome: Outcome = field(default_factory=Outcome)

    def run(self, kind: str) -> None:
        attack: Callable[[], None] = getattr(self, kind.replace("-", "_"))
        while time.monotonic() < self.end:
            try:
                attack()
            except (OSError, AssertionError):  # closed or refused: what a gateway should do
                self.outcome.closed += 1
                time.sleep(RETRY_SECONDS)

    def find_coordinator(self) -> None:
        self._repeat(flood("FindCoordinator", 4, b"\0", _EMPTY_NAME, b""))

    def scram_users(self) -> None:
        self._repeat(flood("DescribeUserScramCredentials", 0, b"", _EMPTY_NAME + _NO_TAGS, b""))

    def metadata(self) -> None:
        self._repeat(flood("Metadata", 9, b"", _EMPTY_NAME + _NO_TAGS, bytes(3)))

    def metadata_pipelined(self) -> None:
        frame = flood("Metadata", 9, b"", _EMPTY_NAME + _NO_TAGS, bytes(3), size=SMALL_BYTES)
        self._repeat(frame, at_once=PIPELINED)

    def log_dirs(self) -> None:
        self._repeat(flood("DescribeLogDirs", 2, b"", _EMPTY_NAME + b"\x01" + _NO_TAGS, b""))

    def delete_acls(self) -> None:
        any_acl = b"\x01\0\x03\0\0\x01\x01" + _NO_TAGS  # any resource, name, principal, operation, effect
        self._repeat(flood("DeleteAcls", 2, b"", any_acl, b""))

    def assignments(self) -> None:
        """Creates a topic with a replica list for each of very many partitions."""
        head = uvarint(2) + uvarint(4) + b"big" + struct.pack(">ih", -1, -1)
        one = struct.pack(">i", 0) + uvarint(2) + struct.pack(">i", 1) + _NO_TAGS
        tail = uvarint(1) + _NO_TAGS + struct.pack(">i", 1000) + b"\0"
        self._repeat(flood("CreateTopics", 5, head, one, tail))

    def telemetry(self) -> None:
        """Small pushes that decompress into much, each from another client instance."""
        metrics = gzip.compress(b"\x0a\x00" * (MIB // 2))
        client = self._client()
        try:
            subscription = client.call("GetTelemetrySubscriptions", 0, {"ClientInstanceId": UUID(int=0)})
            while time.monotonic() < self.end:
                body = {
                    "ClientInstanceId": uuid4(),
                    "SubscriptionId": subscription["SubscriptionId"],
                    "Terminating": False,
                    "CompressionType": 1,
                    "Metrics": metrics,
                }
                client.call("PushTelemetry", 0, body)
                self.outcome.sent += 1
        finally:
            client.close()

    def half_frames(self) -> None:
        """Begins large requests on many connections and never ends them."""
        head = flood("Metadata", 9, b"", _EMPTY_NAME + _NO_TAGS, bytes(3))[:MIB]
        clients: list[Client] = []
        try:
            for _ in range(HALF_FRAMES):
                clients.append(self._client())
                clients[-1].socket.sendall(head)
                self.outcome.sent += 1
            while time.monotonic() < self.end:
                for client in clients:
                    client.socket.sendall(head[:1])
                time.sleep(0.5)
        finally:
            for client in clients:
                client.close()

    def silent(self) -> None:
        """Connects and sends nothing."""
        sockets: list[socket.socket] = []
        try:
            for _ in range(SILENT):
                sockets.append(socket.create_connection((self.target.host, self.target.port), 5))
                self.outcome.sent += 1
            while time.monotonic() < self.end:
                for number, one in enumerate(sockets):
                    one.setblocking(False)
                    with suppress(BlockingIOError):
                        if not one.recv(1):
                            self.outcome.closed += 1
                            one.close()
                            sockets[number] = socket.create_connection(
                                (self.target.host, self.target.port), 5
                            )
                time.sleep(0.1)
        finally:
            for one in sockets:
                one.close()

    def api_versions(self) -> None:
        """Asks for versions without ever logging in."""
        frame = encode_request(
            Request("ApiVersions", 3, 1, "bench", {"ClientSoftwareName": "b", "ClientSoftwareVersion": "1"})
        )
        with socket.create_connection((self.target.host, self.target.port), 5) as one:
            drain = threading.Thread(target=_drain, args=(one,), daemon=True)
            drain.start()
            while time.monotonic() < self.end:
                one.sendall(frame * 100)
                self.outcome.sent += 100

    def wrong_keys(self) -> None:
        """Fails to log in, as a client does whose key was rotated."""
        target = Target(**{**vars(self.target), "password": "wrong"})
        try:
            Client(target).close()
        finally:
            self.outcome.sent += 1

    def fetch_sessions(self) -> None:
        client = self._client()
        try:
            topic = topic_id_of(client, self.target.prefix + TOPIC)
            for _ in range(SESSIONS):
                client.socket.sendall(fetch_frame(topic, 0, bytes_max=1, epoch=0))
                client.read()
                self.outcome.sent += 1
        finally:
            client.close()

    def long_poll(self) -> None:
        """One connection that only waits, with a request behind it."""
        client = self._client()
        client.socket.settimeout(2 * LONG_POLL_MS / 1000)
        try:
            topic = topic_id_of(client, self.target.prefix + TOPIC)
            behind = encode_request(Request("Metadata", 12, 2, "bench", {"Topics": []}))
            wait = fetch_frame(topic, 1 << 40, bytes_max=MIB, wait_ms=LONG_POLL_MS)
            while time.monotonic() < self.end:
                client.socket.sendall(wait + behind)
                client.read()
                client.read()
                self.outcome.sent += 2
        finally:
            client.close()

    def _client(self) -> Client:
        client = Client(self.target)
        client.socket.settimeout(RESPONSE_SECONDS_MAX)
        return client

    def _repeat(self, frame: bytes, *, at_once: int = 1) -> None:
        client = self._client()
        try:
            while time.monotonic() < self.end:
                client.socket.sendall(frame * at_once)
                for _ in range(at_once):
                    client.read()
                self.outcome.sent += at_once
        finally:
            client.close()


def flood(
    api: str, version: int, before: bytes, element: bytes, after: bytes, *, size: int = FRAME_BYTES
) -> bytes:
    """A request whose array holds as many of these elements as fit into `size` bytes."""
    count = size // len(element)
    head = struct.pack(">hhih", load().api_key(api), version, 1, 1) + b"b" + _NO_TAGS
    body = b"".join((head, before, uvarint(count + 1), element * count, after, _NO_TAGS))
    return struct.pack(">i", len(body)) + body


def _drain(connection: socket.socket) -> None:
    with suppress(OSError):  # closing an attacker's connection is a right response
        while connection.recv(MIB):
            pass


def attack(options: dict[str, Any]) -> dict[str, int]:
    target, end = Target(**options["target"]), time.monotonic() + float(options["seconds"])
    attackers = [Attacker(target, end) for _ in range(int(options["connections"]))]
    threads = [threading.Thread(target=one.run, args=(options["kind"],), daemon=True) for one in attackers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(float(options["seconds"]) + 20)
    return {
        "sent": sum(one.outcome.sent for one in attackers),
        "closed": sum(one.outcome.closed for one in attackers),
    }


if __name__ == "__main__":
    os.nice(NICENESS)
    print(json.dumps(attack(json.loads(sys.argv[1]))), flush=True)
