"""For tests of the splicer: random frames, and a slow reference implementation of renaming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.wire import codec
from penstock.wire.definitions import STRUCT, Definitions, Field, load
from penstock.wire.field_rules import Kind, is_endpoint, rule_of
from penstock.wire.frames import Request, Response, encode_request, encode_response
from penstock.wire.names import Names
from penstock.wire.plans import Direction, Plan
from penstock.wire.splice import Program, Requests, Responses

if TYPE_CHECKING:
    from random import Random

    from penstock.wire.splice import Action, Limits

PREFIX = b"lkc-7hq2mz_"
FOREIGN = b"lkc-9xk4vt_"
ALL_KINDS = frozenset(Kind) - {Kind.PLAIN, Kind.RECORDS}
INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
ALPHABET = "abcXYZ09._-é漢"
STRING_LENGTHS = (0, 1, 3, 20, 115, 116, 117, 126, 127, 128, 249)


class Outward(Names):
    """From a tenant to the broker: every kind is changed reversibly."""

    kinds = ALL_KINDS
    topic_growth = len(PREFIX)
    sign = 1

    def topic(self, name: bytes) -> bytes | None:
        return PREFIX + name

    group = transactional_id = cluster_id = principal = user = host = client_host = log_dir = topic
    config_name = topic_regex = transactional_id_regex = envelope = telemetry = topic

    def text(self, text: bytes) -> bytes | None:
        return text[::-1] if text.isascii() else text

    def topic_id(self, topic_id: bytes) -> bytes:
        return bytes(byte ^ 0x55 for byte in topic_id)

    def broker_id(self, broker_id: int) -> int:
        return broker_id ^ 0x0F0F

    port = replica_id = operations = throttle = session = broker_id

    def error(self, code: int) -> int:
        return code ^ 0x4000

    def endpoint(self, broker_id: int, host: bytes, port: int) -> tuple[int, bytes, int] | None:
        changed = self.topic(host)
        return None if changed is None else (self.broker_id(broker_id), changed, self.port(port))

    def coordinator_key(self, key: bytes, key_type: int | None) -> bytes | None:
        return key if key_type == 2 else self.topic(key)

    def config_resource(self, name: bytes, resource_type: int) -> bytes | None:
        return self.topic(name) if resource_type in (2, 32) else name

    def acl_resource(self, name: bytes, resource_type: int, pattern_type: int) -> bytes | None:
        return self.topic(name) if resource_type == 2 and pattern_type > 2 else name

    def quota_entity(self, name: bytes, entity_type: bytes, match_type: int = 0) -> bytes | None:
        return self.topic(name) if entity_type == b"user" else name


class Inward(Outward):
    """From the broker to a tenant: names without the prefix are dropped."""

    topic_growth = -len(PREFIX)

    def topic(self, name: bytes) -> bytes | None:
        return name[len(PREFIX) :] if name.startswith(PREFIX) else None

    group = transactional_id = cluster_id = principal = user = host = client_host = log_dir = topic
    config_name = topic_regex = transactional_id_regex = envelope = telemetry = topic


class Recorder:
    """A handler that splices every frame with one program and records its calls."""

    def __init__(self, program: Program | Action) -> None:
        self.program = program
        self.begun: list[tuple[int, ...]] = []
        self.ended: list[Any] = []
        self.frames: list[bytes] = []
        self.refusals: list[tuple[bytes, Exception]] = []

    def begin(self, *head: int) -> Program | Action:
        self.begun.append(head)
        return self.program

    def end(self, seen: Any) -> None:
        self.ended.append(seen)

    def taken(self, frame: bytes) -> None:
        self.frames.append(frame)

    def refused(self, frame: bytes, error: Exception) -> None:
        self.refusals.append((frame, error))


def spliced(
    program: Program, names: Names, pieces: list[bytes], limits: Limits | None = None
) -> tuple[bytes, Recorder]:
    """Feed these pieces to a splicer; returns its output and the recorded calls."""
    recorder = Recorder(program)
    kind = Requests if program.plan.direction is Direction.REQUEST else Responses
    splicer = kind(recorder, names, limits)
    out: list[bytes] = []
    for piece in pieces:
        sent: list[Any] = []
        splicer.feed(piece, sent)
        out += map(bytes, sent)
    return b"".join(out), recorder


def random_frame(random: Random, plan: Plan) -> bytes:
    """A random frame; its names have the PREFIX or not, at random."""
    return frame(random, plan, random_body(random, plan))


def frame(random: Random, plan: Plan, body: dict[str, Any]) -> bytes:
    tags = (
        {random.randrange(200): random.randbytes(3)}
        if plan.header_flexible and random.random() < 0.3
        else None
    )
    correlation = random.randrange(2**31)
    if plan.direction is Direction.REQUEST:
        client = random.choice((None, "", "client-7"))
        return encode_request(Request(plan.api, plan.version, correlation, client, body, tags))
    return encode_response(plan.api, plan.version, Response(correlation, body, tags))


def random_body(random: Random, plan: Plan, definitions: Definitions | None = None) -> dict[str, Any]:
    message = (definitions or load()).message(plan.message)
    return _struct(random, message.fields, plan, 0)


def _struct(random: Random, fields: tuple[Field, ...], plan: Plan, depth: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields:
        if plan.version not in field.versions:
            continue
        if plan.version in field.tagged and random.random() < 0.5:
            continue
        value = _field(random, field, plan, depth)
        if plan.version in field.tagged and field.kind == STRUCT and not field.array and value:
            value[field.fields[0].name] = 7  # all defaults would not be sent at all
        values[field.name] = value
    if plan.flexible and random.random() < 0.1:
        values["_tags"] = {150 + random.randrange(300): random.randbytes(random.choice((0, 1, 130)))}
    return values


def _field(random: Random, field: Field, plan: Plan, depth: int) -> Any:
    if plan.version in field.nullable and random.random() < 0.2:
        return None
    if field.array:
        count = random.choice((0, 1, 1, 2, 3)) if depth < 3 else random.choice((0, 1))
        return [_one(random, field, plan, depth) for _ in range(count)]
    return _one(random, field, plan, depth)


def _one(random: Random, field: Field, plan: Plan, depth: int) -> Any:
    if field.kind == STRUCT:
        return _struct(random, field.fields, plan, depth + 1)
    if field.kind == "string":
        return random_string(random, field)
    if field.kind in ("bytes", "records"):
        return _bytes(random, field)
    if field.kind == "uuid":
        return UUID(int=random.choice((0, random.getrandbits(128))))
    if field.kind == "bool":
        return random.random() < 0.5
    if field.kind == "float64":
        return random.uniform(-1e9, 1e9)
    low, high = INTEGERS[field.kind]
    return random.choice((0, 1, 2, random.randint(low, high)))


def random_string(random: Random, field: Field) -> str:
    if field.name == "ProtocolType":
        return random.choice(("consumer", "connect"))
    if field.name == "EntityType":
        return random.choice(("user", "client-id"))
    text = "".join(random.choices(ALPHABET, k=random.choice(STRING_LENGTHS)))
    return random.choice((PREFIX, PREFIX, PREFIX, FOREIGN, b"")).decode() + text


def _bytes(random: Random, field: Field) -> bytes:
    if field.name in ("Metadata", "MemberMetadata") and random.random() < 0.8:
        return random_subscription(random)
    if field.name in ("Assignment", "MemberAssignment") and random.random() < 0.8:
        return random_assignment(random)
    return random.randbytes(random.choice((0, 1, 26, 27, 61, 200, 5000)))


def _owned(random: Random) -> list[dict[str, Any]]:
    return [
        {"Topic": random.choice((PREFIX, FOREIGN)).decode() + "t" * random.randrange(4), "Partitions": [1, 2]}
        for _ in range(random.randrange(3))
    ]


def random_subscription(random: Random) -> bytes:
    version = random.randrange(4)
    topics = [owned["Topic"] for owned in _owned(random)]
    body: dict[str, Any] = {"Topics": topics, "UserData": random.choice((None, b"", b"\x00\x01x"))}
    if version >= 1:
        body["OwnedPartitions"] = _owned(random)
    if version >= 3:
        body["RackId"] = random.choice((None, "zone-a"))
    return version.to_bytes(2, "big") + codec.encode("ConsumerProtocolSubscription", version, body)


def random_assignment(random: Random) -> bytes:
    version = random.randrange(4)
    body = {"AssignedPartitions": _owned(random), "UserData": random.choice((None, b"\x07"))}
    return version.to_bytes(2, "big") + codec.encode("ConsumerProtocolAssignment", version, body)


# The reference: renaming on decoded values, field by field.


class Dropped(Exception):
    """The element around this value is dropped."""


def renamed(plan: Plan, body: dict[str, Any], names: Names) -> dict[str, Any]:
    """The expected body; raises Dropped if the whole frame must be rejected."""
    return _Slow(plan, names).struct(load().message(plan.message).fields, plan.message, body, [])


class _Slow:
    def __init__(self, plan: Plan, names: Names) -> None:
        self.plan = plan
        self.names = names
        self.loses = plan.direction is Direction.RESPONSE

    def struct(
        self, fields: tuple[Field, ...], path: str, body: dict[str, Any], around: list[dict[str, Any]]
    ) -> dict[str, Any]:
        shown = tuple(field for field in fields if self.plan.version in field.versions)
        plain = tuple(field for field in shown if self.plan.version not in field.tagged)
        result = dict(body)
        scopes = [*around, body]
        for index in range(len(plain)):
            trio = plain[index : index + 3]
            if is_endpoint(trio) and Kind.ENDPOINT in self.names.kinds:
                node, host, port = (field.name for field in trio)
                moved = self.names.endpoint(body[node], body[host].encode(), body[port])
                if moved is None:
                    raise Dropped
                result[node], result[host], result[port] = moved[0], moved[1].decode(), moved[2]
        addressed = {
            field.name
            for index in range(len(plain))
            if is_endpoint(plain[index : index + 3])
            for field in plain[index : index + 3]
        }
        for field in shown:
            if field.name in body and field.name not in addressed:
                result[field.name] = self.field(field, f"{path}.{field.name}", body[field.name], scopes)
        return result

    def field(self, field: Field, path: str, value: Any, around: list[dict[str, Any]]) -> Any:
        if value is None:
            return None
        if field.array:
            kept = []
            for element in value:
                try:
                    kept.append(self.one(field, path, element, around))
                except Dropped:
                    if not self.loses or self.keeps(path):
                        raise
            return kept
        if field.kind == STRUCT and self.plan.version in field.nullable and self.loses:
            try:
                return self.one(field, path, value, around)
            except Dropped:
                return None
        return self.one(field, path, value, around)

    def keeps(self, path: str) -> bool:
        observed = (
            "ProduceResponse", "FetchResponse", "ShareFetchResponse", "FetchSnapshotResponse",
            "DeleteRecordsResponse",
        )  # fmt: skip
        return path in {f"{message}.{array}" for message in observed for array in ("Responses", "Topics")}

    def one(self, field: Field, path: str, value: Any, around: list[dict[str, Any]]) -> Any:
        if field.kind == STRUCT:
            return self.struct(field.fields, path, value, around)
        rule = rule_of(path, field)
        assert rule is not None
        if rule.kind not in self.names.kinds or rule.kind is Kind.RECORDS:
            return value
        if rule.kind is Kind.TOPIC_ID:
            changed = self.names.topic_id(value.bytes) if value.int else value.bytes
            return UUID(bytes=changed)
        if rule.kind is Kind.ERROR and value == 0:
            return value
        raw = value.encode() if isinstance(value, str) else value
        if rule.kind is Kind.TEXT and not raw:
            return value
        changed = getattr(self.names, rule.kind)(
            raw, *(self.beside(name, around) for name in rule.decided_by)
        )
        if changed is None and rule.kind is Kind.TEXT:
            return None if self.plan.version in field.nullable else ""
        if changed is None:
            raise Dropped
        return changed.decode() if isinstance(value, str) else changed

    def beside(self, name: str, around: list[dict[str, Any]]) -> Any:
        for scope in reversed(around):
            if name in scope:
                value = scope[name]
                return value.encode() if isinstance(value, str) else value
        for field in load().message(self.plan.message).fields:
            if field.name == name:
                return field.default
            for inner in field.fields:
                if inner.name == name:
                    return inner.default
        return None
