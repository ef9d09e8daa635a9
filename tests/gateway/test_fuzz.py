"""Mutated frames: the connection is closed or refused, and the process and other tenants are unharmed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import time
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import psutil
import pytest

from penstock.gateway.config import TenantLimits
from penstock.gateway.connection.local_requests import decoded
from penstock.gateway.connection.states import State
from penstock.gateway.limits.admission import Denial
from penstock.gateway.settings import Bounds
from penstock.gateway.tenancy.apis import Treatment
from penstock.kafka.connection import Connection
from penstock.model.errors import PenstockError
from penstock.wire.frames import Request, encode_request
from tests.gateway.slots import NAMES, Chosen, body_of, names_in, served
from tests.gateway.test_attacks import Victim, snapshot, victim
from tests.gateway.test_endurance import place, serves
from tests.gateway.test_slots import CHOICES, FOREIGN_ID, OWN
from tests.gateway.wires import quiet_gateway, serving_session
from tests.harness.fleet import wait_for
from tests.harness.gateway import new_access, raw_login

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access, RunningGateway

__all__ = ["victim"]

WIDE_OPEN = Bounds(
    attempts_per_address_per_second=1e6,
    failed_logins_per_address=10**9,
    half_open_max=10**6,
    breaches_per_key=10**9,
    breaches_per_tenant=10**9,
)
UNLIMITED = TenantLimits(connections_max=10**6, connection_attempts_per_second=1e6)
FRAMES_A_CONNECTION = 8
FRAMES_A_CONNECTION_SOAKED = 48  # a login costs more than these
FUZZED_FRAMES = int(os.environ.get("SOAK_FRAMES", "1000000"))
CROWD, CROWDS = 1_000, 10  # connections at once, and rounds of them
LOGINS_AT_ONCE = 20
PATIENCE_SECONDS = 60.0  # for a login, on a busy machine
EVERYTHING = frozenset(Treatment) - {Treatment.REFUSED}
CONNECTIONS_AT_ONCE = 8
# One more bit in a count of partitions would keep a real cluster busy for minutes.
COSTLY = frozenset(("CreateTopics", "CreatePartitions"))
GROWTH_BYTES_MAX = 64 << 20
MORE_MAX = 8  # descriptors and tasks: the platform's own broker connections come and go


def mutated(luck: random.Random, frame: bytes) -> bytes:
    """A frame with a few bytes changed, removed or inserted; its size is mostly right."""
    data = bytearray(frame)
    for _ in range(luck.choice((1, 1, 2, 5))):
        place = luck.randrange(4, len(data)) if len(data) > 4 else 0
        match luck.randrange(5):
            case 0:
                data[place : place + 1] = bytes([luck.randrange(256)])
            case 1:
                data[place : place + 1] = luck.choice(
                    (b"\xff", b"\x7f", b"\x80", b"\0", b"\xff\xff\xff\xff\x0f")
                )
            case 2:
                del data[place : place + luck.randrange(1, 9)]
            case 3:
                data[place:place] = luck.randbytes(luck.randrange(1, 9))
            case _:
                other = luck.randrange(4, len(data)) if len(data) > 4 else 0
                data[place:place] = data[other : other + 16]
    if luck.random() < 0.95:
        data[:4] = max(len(data) - 4, 0).to_bytes(4)
    return bytes(data)


@cache
def whole_frames(chosen: Chosen, *, live: bool) -> list[bytes]:
    """One valid request of each API and version; without a platform, none that needs it."""
    return [
        encode_request(Request(api, version, 7, "c", body_of(api, version, chosen)))
        for api, version in (served(EVERYTHING) if live else served())
        if not live or api not in COSTLY
    ]


def frames(
    luck: random.Random, chosen: Chosen, *, live: bool, most: int = FRAMES_A_CONNECTION
) -> list[bytes]:
    """Some mutated frames of random APIs and versions."""
    whole = whole_frames(chosen, live=live)
    count = luck.randrange(1, most + 1)
    return [mutated(luck, one) if luck.random() < 0.8 else one for one in luck.choices(whole, k=count)]


def pieces(luck: random.Random, data: bytes) -> list[bytes]:
    """The bytes as a network may deliver them: at once, or cut anywhere."""
    cuts = sorted(luck.randint(0, len(data)) for _ in range(luck.choice((0, 0, 1, 3))))
    return [data[start:end] for start, end in pairwise((0, *cuts, len(data)))]


@dataclass
class Passed:
    read: int = 0  # frames that a broker could read
    closed: int = 0  # connections


async def pass_on(luck: random.Random, connections: int, most: int) -> Passed:
    """Mutated frames, some on each connection: whatever reaches the broker has the sender's prefix."""
    gateway, passed = quiet_gateway(Bounds()), Passed()
    for _ in range(connections):
        session, client, broker = serving_session(gateway)
        some = b"".join(frames(luck, CHOICES["another tenant's"], live=False, most=most))
        for piece in pieces(luck, some):
            if not client.closed:
                session.data_received(piece)
        await asyncio.sleep(0)

        passed.closed += session.connection.life.state is State.CLOSED
        assert (session.connection.life.state is State.CLOSED) == client.closed
        for frame in broker.frames():
            try:
                sent = decoded(frame)
            except PenstockError:  # a broker could not read it either
                continue
            passed.read += 1
            for kind, value in names_in(sent.api, sent.version, sent.body):
                if kind in NAMES and value is not None:
                    assert value.encode().startswith(OWN), sent
    return passed


async def test_no_mutated_frame_takes_another_tenants_name_to_the_broker() -> None:
    passed = await pass_on(random.Random(7), 300, FRAMES_A_CONNECTION)

    assert passed.read > 40
    assert passed.closed > 40


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_million_mutated_frames_take_no_other_tenants_name_to_the_broker() -> None:
    """Each on a separate connection: frames after the first unreadable one are not parsed."""
    seed = random.randrange(10**9)
    passed = await pass_on(random.Random(seed), FUZZED_FRAMES, 1)

    print(f"seed {seed}: {FUZZED_FRAMES} frames, {passed}")
    assert passed.read > FUZZED_FRAMES // 20
    assert passed.closed > FUZZED_FRAMES // 20


@dataclass
class Fuzzed:
    connections: int = 0
    frames: int = 0


async def fuzz(access: Access, seed: int, count: int, most: int = FRAMES_A_CONNECTION) -> Fuzzed:
    """Send so many frames on a few connections at once; returns what was sent in total."""
    name = access.prefix + "orders"
    chosen = Chosen(name, name, name, FOREIGN_ID, ".*", f"User:{access.account}")
    sent = Fuzzed()

    async def one(luck: random.Random) -> None:
        reader, writer = await raw_login(access)
        some = frames(luck, chosen, live=True, most=most)
        sent.connections += 1
        sent.frames += len(some)
        try:
            writer.write(b"".join(some))
            writer.write_eof()
            async with asyncio.timeout(0.5):
                while await reader.read(1 << 16):
                    pass
        except (TimeoutError, ConnectionError):
            pass  # it waits for the rest of a frame, or was closed
        finally:
            writer.transport.abort()

    async def some(number: int) -> None:
        luck = random.Random(seed + number)
        while sent.frames < count:
            await one(luck)

    await asyncio.gather(*(some(number) for number in range(CONNECTIONS_AT_ONCE)))
    return sent


@contextlib.asynccontextmanager
async def bystander(access: Access) -> AsyncIterator[list[float]]:
    """Another tenant's connection, which must respond to repeated requests all the while."""
    responded_at: list[float] = []

    async def ask() -> None:
        async with await Connection.open(*place(access), access.security()) as connection:
            while True:
                response = await connection.call("DescribeCluster", {})
                assert response["ClusterId"] == access.tenant.id
                responded_at.append(time.monotonic())
                await asyncio.sleep(0.1)

    requesting = asyncio.create_task(ask())
    try:
        yield responded_at
    finally:
        failed = requesting.done()
        requesting.cancel()
        await asyncio.gather(requesting, return_exceptions=not failed)


async def attack(
    fleet: Fleet,
    victim: Victim,
    make_gateway: Callable[..., RunningGateway],
    count: int,
    most: int = FRAMES_A_CONNECTION,
) -> None:
    """As a separate tenant, since it may ruin its own ACLs."""
    running = make_gateway(new_access(limits=UNLIMITED), victim.access, bounds=WIDE_OPEN)
    attacker, neighbour = running.accesses
    before = await snapshot(fleet, victim)
    await fuzz(attacker, 1, FRAMES_A_CONNECTION * CONNECTIONS_AT_ONCE)
    await quiet(running)
    steady = held(running)

    async with bystander(neighbour) as responded_at:
        sent = await fuzz(attacker, random.randrange(10**9), count, most)

    # The first unreadable frame ends its connection, and those after it are not parsed.
    read = running.gateway.usage[attacker.tenant.id].requests
    closed = running.gateway.denials[Denial.MALFORMED] + running.gateway.denials[Denial.TOO_LARGE]
    print(f"{sent.frames} frames on {sent.connections} connections: {read} were read, {closed} closed theirs")
    assert responded_at
    assert sent.frames >= count
    assert await serves(neighbour)
    assert await serves(attacker)
    assert await snapshot(fleet, victim) == before
    await quiet(running)
    assert_steady(steady, held(running))


@pytest.mark.kafka
async def test_a_live_gateway_survives_mutated_frames(
    fleet: Fleet, victim: Victim, make_gateway: Callable[..., RunningGateway]
) -> None:
    await attack(fleet, victim, make_gateway, 700)


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.timeout(3600)
async def test_a_live_gateway_survives_a_million_mutated_frames(
    fleet: Fleet, victim: Victim, make_gateway: Callable[..., RunningGateway]
) -> None:
    await attack(fleet, victim, make_gateway, FUZZED_FRAMES, FRAMES_A_CONNECTION_SOAKED)


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.timeout(1800)
async def test_a_thousand_connections_open_and_close_and_leave_nothing_behind(
    fleet: Fleet, victim: Victim, make_gateway: Callable[..., RunningGateway]
) -> None:
    del fleet
    running = make_gateway(
        new_access(limits=UNLIMITED),
        victim.access,
        bounds=replace(WIDE_OPEN, handshake_seconds=PATIENCE_SECONDS),
    )
    crowd, neighbour = running.accesses
    await come_and_go(running, crowd)  # caches are filled by now
    steady = held(running)

    async with bystander(neighbour) as responded_at:
        for _ in range(CROWDS):
            await come_and_go(running, crowd)

    assert responded_at
    await quiet(running)
    assert_steady(steady, held(running))


async def come_and_go(running: RunningGateway, access: Access) -> None:
    """All are open at once and each is served; half of them close, the others are aborted."""
    logins = asyncio.Semaphore(LOGINS_AT_ONCE)

    async def come() -> Connection:
        async with logins:
            connection = await Connection.open(*place(access), access.security(), timeout=PATIENCE_SECONDS)
            response = await connection.call("DescribeCluster", {}, timeout=PATIENCE_SECONDS)
        assert response["ClusterId"] == access.tenant.id
        return connection

    crowd = await asyncio.gather(*(come() for _ in range(CROWD)))
    usage = running.gateway.usage[access.tenant.id]
    assert usage.connections == CROWD
    for number, connection in enumerate(crowd):
        if number % 2:
            connection._writer.transport.abort()
        await connection.close()
    await asyncio.to_thread(wait_for, lambda: not usage.connections, what="the crowd to be gone")


@dataclass(frozen=True)
class Held:
    """The resources of this process, which holds the gateway and its clients."""

    bytes: int
    descriptors: int
    tasks: int


def held(running: RunningGateway) -> Held:
    gc.collect()
    process = psutil.Process()
    tasks = running.do(lambda: len(asyncio.all_tasks()))
    return Held(process.memory_info().rss, process.num_fds(), tasks)


def assert_steady(before: Held, after: Held) -> None:
    print(f"before {before}, after {after}")
    assert after.bytes - before.bytes < GROWTH_BYTES_MAX
    assert after.descriptors <= before.descriptors + MORE_MAX
    assert after.tasks <= before.tasks + MORE_MAX


async def quiet(running: RunningGateway) -> None:
    """No connection is left on either side."""
    gateway = running.gateway
    await asyncio.to_thread(wait_for, lambda: not gateway.sessions, what="the connections to be gone")
    await asyncio.to_thread(wait_for, gateway._empty.is_set, what="the brokers' connections to be gone")
    assert gateway.admission.open == gateway.admission.half_open == 0
