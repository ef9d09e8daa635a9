"""Kafka's message definitions, read from its jars and packed into one small data file.

Kafka's jars contain the JSON (with `//` comments) from which its own classes are generated: requests,
responses, headers, the consumer protocol, and the records of the metadata log, of tiered storage and of the
coordinators. `compile_jars` packs them, `load` reads them; a message is built on first use. `make setup`
creates the file, which is never committed:

    python -m penstock.wire.definitions JARS_DIR

Field names are Kafka's with the first letter in upper case (`TopicId`, `ErrorCode`). A few of Kafka's record
definitions start theirs in lower case; here they are all alike.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.plans import RuleMissing
from penstock.model.errors.wire import DefinitionsMissing, DefinitionsUnreadable, DefinitionUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DATA_FILE: Final = Path(__file__).with_name("definitions.bin")
MAGIC: Final = b"penstock definitions 1\n"
VERSION_MAX: Final = 32767  # an int16 on the wire

ARTIFACTS: Final = (
    "kafka-clients",
    "kafka-metadata",
    "kafka-storage",
    "kafka-raft",
    "kafka-group-coordinator",
    "kafka-transaction-coordinator",
    "kafka-share-coordinator",
)
PRIMITIVES: Final = frozenset(
    (
        "bool",
        "int8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "float64",
        "uuid",
        "string",
        "bytes",
        "records",
    )
)
STRUCT: Final = "struct"

_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_JSON_PATH = re.compile(r"(common/)?(message|metadata)/\w+\.json")


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions; `last` of an open range is VERSION_MAX, `NONE` is empty."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __bool__(self) -> bool:
        return self.first <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __str__(self) -> str:
        if not self:
            return "none"
        if self.first == self.last:
            return str(self.first)
        return f"{self.first}+" if self.last == VERSION_MAX else f"{self.first}-{self.last}"


NONE: Final = Versions(0, -1)


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: str  # one of PRIMITIVES, or STRUCT; of the elements if `array`
    array: bool
    versions: Versions
    nullable: Versions  # versions in which the field (or the array) may be null
    tagged: Versions  # versions in which it is the tagged field `tag`
    tag: int | None
    default: bool | int | float | str | None  # None for null, and for arrays, structs and bytes
    default_null: bool
    ignorable: bool  # may be dropped, whatever its value, in a version that lacks it
    entity_type: str | None  # topicName, groupId, transactionalId, brokerId, producerId
    flexible: Versions | None  # overrides the message's; only RequestHeader.ClientId has it
    struct: str | None  # name of the struct type
    fields: tuple[Field, ...]  # of the struct; common structs are resolved

    def __str__(self) -> str:
        return f"{self.name} {'[]' if self.array else ''}{self.struct or self.kind}"


@dataclass(frozen=True, slots=True)
class Message:
    name: str
    type: str  # request, response, header, data, metadata, coordinator-key, coordinator-value
    artifact: str  # the jar it is from, one of ARTIFACTS
    api_key: int | None
    listeners: tuple[str, ...]  # broker, controller (requests only)
    valid_versions: Versions  # empty if Kafka has dropped the message
    flexible_versions: Versions
    fields: tuple[Field, ...]

    def is_flexible(self, version: int) -> bool:
        return version in self.flexible_versions


class Definitions:
    """All messages of one Kafka version by name; each is built on first use."""

    def __init__(self, kafka_version: str, raw: Mapping[str, dict[str, Any]]) -> None:
        self.kafka_version = kafka_version
        self._raw = raw
        self._built: dict[str, Message] = {}
        self._apis = {
            m["apiKey"]: name.removesuffix("Request") for name, m in raw.items() if m["type"] == "request"
        }

    def names(self, type_: str | None = None) -> list[str]:
        """Message names in order, of one type if given."""
        return sorted(n for n, m in self._raw.items() if type_ is None or m["type"] == type_)

    def message(self, name: str) -> Message:
        built = self._built.get(name)
        if built is None:
            raw = self._raw.get(name)
            if raw is None:
                raise DefinitionUnknown(kafka_version=self.kafka_version, kind="message", name=name)
            built = self._built[name] = _message(raw)
        return built

    def apis(self) -> dict[int, str]:
        """API key → name (`Fetch`, without `Request`) of every API with a valid version."""
        return {
            k: n for k, n in sorted(self._apis.items()) if self._raw[n + "Request"]["validVersions"] != "none"
        }

    def api_name(self, key: int) -> str:
        name = self._apis.get(key)
        if name is None:
            raise DefinitionUnknown(kafka_version=self.kafka_version, kind="API with key", name=key)
        return name

    def api_key(self, api: str) -> int:
        key = self.request(api).api_key
        assert key is not None, "every request definition carries its API key"
        return key

    def request(self, api: str) -> Message:
        return self.message(api + "Request")

    def response(self, api: str) -> Message:
        return self.message(api + "Response")

    def records(self, artifact: str, type_: str) -> dict[int, str]:
        """Record type → message name, for example of `kafka-metadata` and `metadata`."""
        return {
            m["apiKey"]: name
            for name, m in self._raw.items()
            if m["artifact"] == artifact and m["type"] == type_ and "apiKey" in m
        }


def compile_jars(jars_dir: Path) -> bytes:
    """The packed definitions of the Kafka whose jars are in `jars_dir`."""
    messages: dict[str, dict[str, Any]] = {}
    kafka_version = ""
    for artifact in ARTIFACTS:
        jar = _jar(jars_dir, artifact)
        with zipfile.ZipFile(jar) as archive:
            if artifact == "kafka-clients":
                properties = archive.read("kafka/kafka-version.properties").decode()
                kafka_version = dict(line.split("=", 1) for line in properties.split())["version"]
            for path in sorted(filter(_JSON_PATH.fullmatch, archive.namelist())):
                raw = json.loads(_COMMENT.sub("", archive.read(path).decode()))
                messages[raw["name"]] = _packed(raw, artifact)
    return pack(kafka_version, messages)


def pack(kafka_version: str, messages: Mapping[str, dict[str, Any]]) -> bytes:
    body = json.dumps({"kafka": kafka_version, "messages": messages}, separators=(",", ":"), sort_keys=True)
    return MAGIC + zlib.compress(body.encode(), 9)


def unpack(packed: bytes, where: str = "definitions") -> Definitions:
    if not packed.startswith(MAGIC):
        raise DefinitionsUnreadable(path=where, reason="it is not a definitions file of this version")
    try:
        body = json.loads(zlib.decompress(packed[len(MAGIC) :]))
        return Definitions(body["kafka"], body["messages"])
    except (zlib.error, ValueError, KeyError) as broken:
        raise DefinitionsUnreadable(path=where, reason=str(broken)) from broken


def read(path: Path) -> Definitions:
    try:
        packed = path.read_bytes()
    except FileNotFoundError:
        raise DefinitionsMissing(path=path) from None
    return unpack(packed, str(path))


@cache
def load() -> Definitions:
    """The definitions of this installation."""
    return read(DATA_FILE)


def write(jars_dir: Path, path: Path = DATA_FILE) -> int:
    """Compile the jars to `path`, replacing it atomically; returns the number of bytes written.

    Refuses definitions with a field that could carry a name and has no rule. Otherwise a new Kafka version
    could let names pass the gateway unchanged.
    """
    from penstock.wire.field_rules import unruled  # imports this module

    packed = compile_jars(jars_dir)
    for field_path in unruled(unpack(packed)):
        raise RuleMissing(path=field_path)
    draft = path.with_suffix(".draft")
    draft.write_bytes(packed)
    draft.replace(path)
    return len(packed)


def _jar(jars_dir: Path, artifact: str) -> Path:
    candidates = sorted(jars_dir.glob(f"{artifact}-[0-9]*.jar"))
    plain = [jar for jar in candidates if not jar.stem.endswith(("-test", "-sources", "-javadoc"))]
    if len(plain) != 1:
        reason = f"expected one {artifact}-<version>.jar, found {len(plain)}"
        raise DefinitionsUnreadable(path=jars_dir, reason=reason)
    return plain[0]


def _packed(raw: dict[str, Any], artifact: str) -> dict[str, Any]:
    """The definition without its descriptions, with common structs put where they are used."""
    structs = {shared["name"]: shared["fields"] for shared in raw.get("commonStructs", ())}
    _collect_structs(raw.get("fields", ()), structs)
    for fields in list(structs.values()):
        _collect_structs(fields, structs)
    packed: dict[str, Any] = {
        key: raw[key]
        for key in ("name", "type", "apiKey", "listeners", "validVersions", "flexibleVersions")
        if key in raw
    }
    packed["artifact"] = artifact
    packed["fields"] = [_packed_field(field, structs) for field in raw.get("fields", ())]
    return packed


def _collect_structs(fields: Sequence[dict[str, Any]], structs: dict[str, list[dict[str, Any]]]) -> None:
    for field in fields:
        if "fields" in field:
            structs.setdefault(field["type"].removeprefix("[]"), field["fields"])
            _collect_structs(field["fields"], structs)


def _packed_field(raw: dict[str, Any], structs: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    packed = {key: value for key, value in raw.items() if key not in ("about", "fields", "zeroCopy")}
    packed["name"] = raw["name"][0].upper() + raw["name"][1:]
    packed.setdefault("versions", raw.get("taggedVersions"))  # a few record definitions have only the latter
    base = raw["type"].removeprefix("[]")
    if base not in PRIMITIVES:
        inner = raw.get("fields") or structs[base]
        packed["fields"] = [_packed_field(field, structs) for field in inner]
    return packed


def _message(raw: dict[str, Any]) -> Message:
    return Message(
        name=raw["name"],
        type=raw["type"],
        artifact=raw["artifact"],
        api_key=raw.get("apiKey"),
        listeners=tuple(raw.get("listeners", ())),
        valid_versions=_versions(raw["validVersions"]),
        flexible_versions=_versions(raw.get("flexibleVersions")),
        fields=tuple(_field(field) for field in raw["fields"]),
    )


def _field(raw: dict[str, Any]) -> Field:
    array = raw["type"].startswith("[]")
    base = raw["type"].removeprefix("[]")
    struct = None if base in PRIMITIVES else base
    kind = STRUCT if struct else base
    default = raw.get("default")
    default_null = default == "null" or ("default" in raw and default is None)
    return Field(
        name=raw["name"],
        kind=kind,
        array=array,
        versions=_versions(raw["versions"]),
        nullable=_versions(raw.get("nullableVersions")),
        tagged=_versions(raw.get("taggedVersions")),
        tag=raw.get("tag"),
        default=None if default_null or array else _default(kind, default),
        default_null=default_null,
        ignorable=bool(raw.get("ignorable", False)),
        entity_type=raw.get("entityType"),
        flexible=_versions(raw["flexibleVersions"]) if "flexibleVersions" in raw else None,
        struct=struct,
        fields=tuple(_field(field) for field in raw.get("fields", ())),
    )


def _default(kind: str, given: bool | int | str | None) -> bool | int | float | str | None:
    """Kafka writes most defaults as text, a few as numbers. Without one it is the type's zero value."""
    if kind == "bool":
        return str(given).lower() == "true"
    if kind.startswith(("int", "uint")):
        return int(str(given), 0) if given not in (None, "") else 0
    if kind == "float64":
        return float(given) if given not in (None, "") else 0.0
    if kind == "string":
        return "" if given is None else str(given)
    return None


def _versions(text: str | None) -> Versions:
    if text is None or text == "none":
        return NONE
    if text.endswith("+"):
        return Versions(int(text[:-1]), VERSION_MAX)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m penstock.wire.definitions JARS_DIR\n")
        return 2
    size = write(Path(arguments[0]))
    version, count = load().kafka_version, len(load().names())
    sys.stdout.write(f"Kafka {version}: {count} message definitions, {size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
