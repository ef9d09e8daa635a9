"""Scenarios of one connection, as text: what the client and the broker send, and what comes out.

    scenario: a request is renamed and its response is passed on
    client  Heartbeat id=1
    expect  broker Heartbeat id=1 group=lkc-7hq2mz_g
    broker  Heartbeat id=1
    expect  client Heartbeat id=1

The first word of a line is one of these:

    tenant    its limits: ingress=, egress=, requests=, request_time=, gateway_time=, partition_changes=
              (a second), partitions_max=, request_bytes_max=, fetch_sessions_max=, share_sessions_max=;
              auto_create_topics=1
    bounds    of the gateway, such as in_flight_max=4
    knows     a topic whose id the gateway has seen in a response
    before    `before login`: the connection has not logged in yet
    lasts     `lasts 10s`: the gateway's login to the broker expires after so long
    at        `at once`: the outcome depends on what is read at once, for the reason given in a comment; other
              scenarios are also played with their bytes cut into pieces
    client    what the client sends: an API, `v3` for its version, id= and fields, or `bytes` in hexadecimal;
              commas separate what is read at once; `half` sends the first half of it, `rest` the other one;
              `topic=x*250` is a name of 250 letters, `~orders` stands for the masked id of `orders`;
              `repeated=9` repeats the elements of its list, also in the broker's ListGroups
    broker    what the broker sends, in the same form; `scram=` is a message of its login
    after     time passes: `after 0.8s`, with a sweep at each full second
    login     the outcome of a login: `accepted`, `rejected`, `silent` (rejected without a response), `again`,
              `other` (again, as another account)
    resolved  the result of a call on the platform's identity: `owner`, `stranger`, `acls`,
              `partitions=1` (the tenant's), `failed`
    drain     the gateway stops
    revoke    the client's key is revoked
    lost      the broker closed its connection
    ends      the client's side is gone
    busy      the tenant has used up its slice of processor time; `slice` continues with one slice of what
              this connection has received meanwhile
    works     `works 0.2s`: the gateway has worked for the tenant for so long
    full      `full broker` or `full client`: that side does not take more; `free` ends it
    expect    all that came out since the last `expect`, in order, separated by commas: a frame to `broker` or
              `client` (or `broker part`, the start of a frame that is not read to its end), `log in`, `call`,
              `deny REASON`, `close`, `abort`; or `nothing`
    reads     `reads client` or `reads nothing`; `reads broker` or `reads no broker`
    waits     how long the client will still not be read: `waits 0.8s`
    used      what the tenant has used: ingress=, egress=, requests=, partition_changes=, and request_time=
              in seconds
    other     the rest of the line happens on another connection of the same tenant
"""

from __future__ import annotations

import base64
import heapq
import hmac
import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.fleet.credentials.passwords import PlatformKey
from penstock.gateway.config import TenantLimits
from penstock.gateway.connection.connection import Connection
from penstock.gateway.connection.effects import Call, Close, Deny, LogIn, Wake
from penstock.gateway.connection.local_requests import api_versions_response
from penstock.gateway.connection.scram_login import MECHANISM
from penstock.gateway.connection.services import Services
from penstock.gateway.connection.states import SLICED
from penstock.gateway.limits.admission import Denial
from penstock.gateway.limits.metering import Usage
from penstock.gateway.settings import Bounds
from penstock.gateway.tenancy.platform_client import platform_client
from penstock.gateway.tenancy.telemetry import Telemetry
from penstock.gateway.tenancy.tenant_names import TenantContext
from penstock.gateway.tenancy.topic_ids import TopicIds
from penstock.kafka.scram import HASHES, keys_of
from penstock.model.errors.wire import BrokerUnreachable
from penstock.model.events import Dimension
from penstock.model.ids import ServiceAccountId
from penstock.wire.definitions import Versions, load
from penstock.wire.frames import (
    Request,
    Response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tests.gateway.scenario_messages import (
    MASK,
    VERSIONS,
    fact,
    request_body,
    response_body,
    shown,
    topic_id,
)
from tests.gateway.wires import BROKER, PRINCIPAL, TENANT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.gateway.connection.effects import Effect
    from penstock.gateway.limits.throttle_queue import ThrottleQueue

FOLDER = Path(__file__).parent / "scenarios"
START = 1000.0  # the time at which a scenario begins
SWEEP_SECONDS = 1.0
USER, PASSWORD, SALT, ITERATIONS = "user", "password", b"salt", 4096  # of the login to the broker
DIMENSIONS = {
    "ingress": Dimension.INGRESS_BYTES,
    "egress": Dimension.EGRESS_BYTES,
    "requests": Dimension.REQUESTS,
    "request_time": Dimension.REQUEST_TIME_US,
    "gateway_time": Dimension.GATEWAY_TIME_US,
    "partition_changes": Dimension.PARTITION_CHANGES,
}
GIVEN = frozenset(("tenant", "bounds", "knows", "before", "lasts", "at"))
PART = "part"


class Gateway:
    """What the connections of a scenario share: the time, the tenant and its quota."""

    def __init__(self, piece_bytes: int | None = None) -> None:
        self.now = START
        self.tenant = TENANT
        self.bounds = Bounds()
        self.known: list[str] = []
        self.logged_in = True
        self.lifetime_ms = 0  # of the login to the broker
        self.piece_bytes = piece_bytes  # what is read is cut into pieces of so many bytes
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.count = itertools.count()
        self.usage = Usage()
        self.players: list[Player] = []

    def begin(self) -> None:
        """What was given is complete: make what connections share."""

        def versions(_: object, version: int, correlation_id: int) -> bytes:
            return api_versions_response(version, correlation_id, {"Produce": Versions(0, 13)}, {})

        telemetry = Telemetry(self.bounds.telemetry_pushes_per_second)
        self.services = Services(self.bounds, versions, lambda _: (BROKER,), telemetry=telemetry)
        self.services.held.connections_of = lambda usage: [
            player for player in self.players if player.made.usage is usage
        ]
        self.services.platform = platform_client((BROKER,), PlatformKey(bytes(32)), None)  # no call is made
        self.context = TenantContext(self.tenant, {1: (b"gateway", 9001)}, lambda: self.now)
        self.context.topics = TopicIds(MASK.to_bytes(16))
        for name in self.known:
            self.context.topics.learn(self.tenant.prefix + name.encode(), topic_id(name).bytes)
        self.later(SWEEP_SECONDS, self._sweep)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers and self.timers[0][0] <= end:
            self.now, _, run = heapq.heappop(self.timers)
            run()
            for player in self.players:
                player.carry_out()
        self.now = end

    def later(self, seconds: float, work: Callable[[], None]) -> Timer:
        timer = Timer(work)
        heapq.heappush(self.timers, (self.now + seconds, next(self.count), timer.run))
        return timer

    def _sweep(self) -> None:
        for player in self.players:
            player.sweep()
        self.services.sweep(self.now)
        self.later(SWEEP_SECONDS, self._sweep)


class Player:
    """Plays one scenario, line by line."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.out: list[Output] = []
        self.rests = {"client": b"", "broker": b""}
        self.written = {"client": b"", "broker": b""}  # of frames that are not complete
        self.login_request: Request | None = None
        self.token = b""  # the gateway's last message of its login to the broker
        self.signed: list[str] = []  # the messages of that login
        self.sent: dict[int, tuple[str, int]] = {}  # API and version by correlation id
        self.forwarded: dict[tuple[str, int], int] = {}  # version by API and correlation id
        self.connection: Connection | None = None
        self.second: Player | None = None

    def play(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if word in GIVEN:
            assert self.connection is None, "what is given comes first"
            getattr(self, f"given_{word}")(rest)
            return
        if self.connection is None:
            self.begin()
        getattr(self, word)(rest)

    @property
    def now(self) -> float:
        return self.gateway.now

    def other(self, line: str) -> None:
        if self.second is None:
            self.second = Player(self.gateway)
        self.second.play(line)

    def unexpected(self) -> list[str]:
        """What came out and was not expected."""
        others = [] if self.second is None else self.second.unexpected()
        return [one.text for one in self.out if not self._ignored(one)] + others

    # What is given

    def given_tenant(self, text: str) -> None:
        values = _fields(text.split())
        quota = {DIMENSIONS[key]: float(values.pop(key)) for key in list(values) if key in DIMENSIONS}
        auto = values.pop("auto_create_topics", "0") == "1"
        limits = replace(TenantLimits(), **{key: int(value) for key, value in values.items()})
        self.gateway.tenant = replace(TENANT, quota=quota, limits=limits, auto_create_topics=auto)

    def given_bounds(self, text: str) -> None:
        bounds = {key: int(value) for key, value in _fields(text.split()).items()}
        self.gateway.bounds = replace(self.gateway.bounds, **bounds)

    def given_knows(self, text: str) -> None:
        self.gateway.known += text.split()

    def given_before(self, text: str) -> None:
        assert text == "login"
        self.gateway.logged_in = False

    def given_lasts(self, text: str) -> None:
        self.gateway.lifetime_ms = int(float(text.removesuffix("s")) * 1000)

    def given_at(self, text: str) -> None:
        assert text == "once"

    def begin(self) -> None:
        gateway = self.gateway
        if not gateway.players:
            gateway.begin()
        gateway.players.append(self)
        number = len(gateway.players)
        self.connection = Connection(gateway.services, number, "127.0.0.1", BROKER, Usage(), self, self.now)
        self.connection.accepted()
        if gateway.logged_in:
            self.login_request = Request("SaslAuthenticate", 2, 0, "c", {"AuthBytes": b""})
            self.link()
            self.connection.to_client.clear()

    def link(self) -> None:
        gateway, connection = self.gateway, self.made
        connection.logged_in(PRINCIPAL, gateway.usage)
        assert self.login_request is not None
        connection.linked(self.login_request, gateway.context, BROKER, gateway.lifetime_ms, self.now)

    @property
    def made(self) -> Connection:
        assert self.connection is not None
        return self.connection

    # What happens

    def client(self, text: str) -> None:
        data = self._piece("client", text, self.request)
        self._feed(data, self.made.from_client)

    def broker(self, text: str) -> None:
        data = self._piece("broker", text, self.response)
        self._feed(data, self.made.from_broker)

    def _piece(self, side: str, text: str, encoded: Callable[[str], bytes]) -> bytes:
        """What is read at once."""
        if text == "rest":
            data, self.rests[side] = self.rests[side], b""
            return data
        half = text.startswith("half ")
        data = b"".join(encoded(one) for one in text.removeprefix("half ").split(","))
        if half:
            middle = len(data) // 2
            data, self.rests[side] = data[:middle], data[middle:]
        return data

    def _feed(self, data: bytes, feed: Callable[[bytes, float], None]) -> None:
        size = self.gateway.piece_bytes or len(data)
        for start in range(0, len(data), size):
            feed(data[start : start + size], self.now)
            self.carry_out()

    def request(self, text: str) -> bytes:
        if text.strip().startswith("bytes "):
            return bytes.fromhex(text.strip().removeprefix("bytes "))
        api, version, fields = _frame(text)
        number = int(fields.pop("id"))
        known = version if version in load().request(api).valid_versions else 0
        self.sent[number] = (api, known)
        frame = encode_request(Request(api, known, number, "c", request_body(api, known, fields)))
        return frame[:6] + version.to_bytes(2) + frame[8:]

    def response(self, text: str) -> bytes:
        api, version, fields = _frame(text)
        number = int(fields.pop("id"))
        version = self.forwarded.get((api, number), version)
        if "scram" in fields:
            fields["AuthBytes"] = self._scram(fields.pop("scram"))
        return encode_response(api, version, Response(number, response_body(api, version, fields)))

    def _scram(self, which: str) -> bytes:
        """The broker's message of the login in progress."""
        if which == "first":
            bare = self.token.removeprefix(b"n,,").decode()
            nonce = bare.partition("r=")[2]
            self.signed = [bare, f"r={nonce}x,s={base64.b64encode(SALT).decode()},i={ITERATIONS}"]
            return self.signed[1].encode()
        if which == "refused":
            return b"e=other-error"
        keys = keys_of(HASHES[MECHANISM], PASSWORD, SALT, ITERATIONS)
        signed = ",".join([*self.signed, self.token.partition(b",p=")[0].decode()]).encode()
        return b"v=" + base64.b64encode(hmac.digest(keys.server, signed, HASHES[MECHANISM]))

    def after(self, text: str) -> None:
        self.gateway.pass_time(float(text.removesuffix("s")))

    def sweep(self) -> None:
        """As `Session.sweep`."""
        connection = self.made
        connection.sweep(self.now)
        if connection.wants_broker_login(self.now):
            connection.renew_broker_login(USER, PASSWORD, self.now)

    def revoke(self, text: str) -> None:
        assert not text
        self.made.abort("its key was revoked")
        self.carry_out()

    def lost(self, text: str) -> None:
        assert not text
        self.made.close("the broker closed its connection")
        self.carry_out()

    def ends(self, text: str) -> None:
        assert not text
        self.made.ended(self.now)
        self.carry_out()

    def drain(self, text: str) -> None:
        assert not text
        self.made.drain(self.now)
        self.carry_out()

    def busy(self, text: str) -> None:
        assert not text
        self.gateway.usage.slice_ends_at = -1.0

    def slice(self, text: str) -> None:
        assert not text
        assert self.made.pauses & SLICED, "it waits for no slice"
        self.made.next_slice(self.now)
        self.carry_out()

    def works(self, text: str) -> None:
        usage, seconds = self.gateway.usage, float(text.removesuffix("s"))
        usage.processor_seconds += seconds
        usage.slice_ends_at += seconds
        usage.charge_gateway_time(self.now)

    def full(self, text: str) -> None:
        self._set_full(text, full=True)

    def free(self, text: str) -> None:
        self._set_full(text, full=False)

    def _set_full(self, text: str, *, full: bool) -> None:
        {"broker": self.made.broker_full, "client": self.made.client_full}[text](full, self.now)
        self.carry_out()

    def login(self, text: str) -> None:
        assert self.login_request is not None
        if text == "accepted":
            self.link()
        elif text in ("again", "other"):
            account = ServiceAccountId("sa-000002") if text == "other" else PRINCIPAL.account
            self.made.logged_in_again(self.login_request, replace(PRINCIPAL, account=account), self.now)
        else:
            reason = {"rejected": Denial.BAD_CREDENTIALS, "silent": Denial.TENANT_FULL}[text]
            self.made.login_rejected(self.login_request, reason, silent=text == "silent", seconds=0.2)
        self.carry_out()

    def resolved(self, text: str) -> None:
        results: dict[str, Any] = {
            "owner": True,
            "stranger": False,
            "acls": {"ThrottleTimeMs": 0, "ErrorCode": 0, "ErrorMessage": None, "Resources": []},
            "failed": BrokerUnreachable(address="10.1.2.3:9092", reason="refused"),
        }
        if text.startswith("partitions="):  # of the topic `orders`, with one replica
            results[text] = {"orders": (int(text.removeprefix("partitions=")), 1)}
        self.made.resolved(results[text], self.now)
        self.carry_out()

    # What comes out

    def carry_out(self) -> None:
        connection = self.made
        while connection.pauses & SLICED and not connection.closed and self.gateway.usage.slice_ends_at > 0:
            connection.next_slice(self.now)
        to_broker, connection.to_broker = connection.to_broker, []
        self._write("broker", b"".join(to_broker), self._to_broker)
        to_client, connection.to_client = connection.to_client, []
        self._write("client", b"".join(to_client), self._to_client)
        effects, connection.effects = connection.effects, []
        for effect in effects:
            self._do(effect)

    def _write(self, side: str, data: bytes, output: Callable[[bytes], Output]) -> None:
        before = self.written[side]
        frames, rest = _split(before + data)
        self.out += map(output, frames)
        if rest and (frames or not before):
            self.out.append(Output(f"{side} {PART}", None))
        self.written[side] = rest

    def _to_broker(self, frame: bytes) -> Output:
        request = decode_request(frame)
        self.forwarded[request.api, request.correlation_id] = request.version
        if request.api == "SaslAuthenticate":
            self.token = request.body["AuthBytes"]
        return Output(f"broker {request.api} id={request.correlation_id}", request.body)

    def _to_client(self, frame: bytes) -> Output:
        number = int.from_bytes(frame[:4], signed=True)
        api, version = self.sent[number]
        return Output(f"client {api} id={number}", decode_response(api, version, frame).body)

    def _do(self, effect: Effect) -> None:
        match effect:
            case LogIn():
                self.login_request = effect.request
                self.out.append(Output("log in", None))
            case Call():
                effect.work.close()
                self.out.append(Output("call", None))
            case Deny():
                self.out.append(Output(f"deny {effect.reason}", None))
            case Wake():
                self.gateway.later(effect.seconds, lambda: self.made.tick(self.now))
            case Close(after_seconds=0.0):
                self.out.append(Output("abort" if effect.at_once else "close", None))
            case Close():
                self.gateway.later(effect.after_seconds, lambda: self.made.close(effect.reason))

    # As the connection's owner

    def hold(self, on: bool) -> None:
        self.made.hold(on)

    def response_reserved(self) -> None:
        self.made.large_responses.reserved()
        self.carry_out()

    def request_reserved(self) -> None:
        self.made.large_requests.reserved()
        self.carry_out()

    def give_up(self, held: int, limit: int) -> None:
        self.made.give_up(held, limit)

    def proceed(self, queue: ThrottleQueue) -> None:
        self.made.proceed(queue, self.now)
        self.carry_out()

    def timer(self, queue: ThrottleQueue, seconds: float) -> Timer:
        return self.gateway.later(seconds, lambda: queue.serve(self.now))

    # What is expected

    def expect(self, text: str) -> None:
        expected = [] if text == "nothing" else [one.strip() for one in text.split(",")]
        out, self.out = [one for one in self.out if not self._ignored(one)], []
        if self.gateway.piece_bytes:  # each side gets the same in the same order
            out.sort(key=lambda one: _side(one.text))
            expected = sorted((one for one in expected if not one.endswith(PART)), key=_side)
        actual = [one.shown_like(expected[n] if n < len(expected) else "") for n, one in enumerate(out)]
        assert actual == expected, f"came out: {', '.join(actual) or 'nothing'}"

    def _ignored(self, output: Output) -> bool:
        return self.gateway.piece_bytes is not None and output.text.endswith(PART)

    def reads(self, text: str) -> None:
        if text.endswith("broker"):
            assert ("broker" if self.made.reads_broker else "no broker") == text
        else:
            assert ("client" if self.made.reads_client else "nothing") == text

    def waits(self, text: str) -> None:
        throttle = self.made.throttle
        assert throttle is not None
        assert throttle.throttle_seconds(self.now) == pytest.approx(float(text.removesuffix("s")), abs=0.01)

    def used(self, text: str) -> None:
        used = self.gateway.usage.used()
        for name, value in _fields(text.split()).items():
            unit = 1e6 if name == "request_time" else 1.0
            assert used[DIMENSIONS[name]] / unit == pytest.approx(float(value)), name


@dataclass(frozen=True)
class Output:
    text: str
    body: Mapping[str, Any] | None

    def shown_like(self, expected: str) -> str:
        """This output with the fields that are expected of it."""
        names = [
            one.partition("=")[0] for one in expected.split() if "=" in one and not one.startswith("id=")
        ]
        return " ".join([self.text, *(f"{name}={shown(fact(self.body, name))}" for name in names)])


class Timer:
    def __init__(self, work: Callable[[], None]) -> None:
        self.work: Callable[[], None] | None = work

    def run(self) -> None:
        if self.work is not None:
            self.work()

    def cancel(self) -> None:
        self.work = None


def _side(text: str) -> str:
    side = text.partition(" ")[0]
    return side if side in ("broker", "client") else ""


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """The complete frames, without their sizes, and the rest."""
    frames = []
    while len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4]):
        end = 4 + int.from_bytes(data[:4])
        frames.append(data[4:end])
        data = data[end:]
    return frames, data


def _frame(text: str) -> tuple[str, int, dict[str, Any]]:
    api, *words = text.split()
    version = VERSIONS.get(api, 0)
    if words and re.fullmatch(r"v\d+", words[0]):
        version = int(words.pop(0)[1:])
    return api, version, _fields(words)


def _fields(words: list[str]) -> dict[str, str]:
    return {key: _long(value) for key, value in (word.split("=", 1) for word in words)}


def _long(value: str) -> str:
    """`x*3` is short for `xxx`."""
    letter, star, count = value.partition("*")
    return letter * int(count) if star else value


def scenarios() -> Iterator[tuple[str, str, list[tuple[int, str]]]]:
    """File, name and numbered lines of every scenario."""
    for path in sorted(FOLDER.glob("*.txt")):
        name = ""
        lines: list[tuple[int, str]] = []
        for number, raw in enumerate(path.read_text().splitlines(), 1):
            line = raw.partition("#")[0].strip()
            if line.startswith("scenario:"):
                if name:
                    yield path.name, name, lines
                name, lines = line.removeprefix("scenario:").strip(), []
            elif line:
                lines.append((number, re.sub(r"\s+", " ", line)))
        yield path.name, name, lines
