"""Plans: where the names are in a frame, for each API, version and direction.

A plan is a flat tuple of ops in the order of the bytes. Most ops describe how to skip a field. An op
with a kind marks a name. `ARRAY`, `OPTION`, `TAGS` and `TAG` open a block that the matching `END` closes. The
splicers (`codegen.whole`, `codegen.stream`) are generated from plans, and `api_surface` prints them.

Plans know nothing of tenants. `Names` decides which kinds are rewritten and how; fields of other kinds are
skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.model.errors.plans import PlanUnknown, RuleMissing
from penstock.wire.codec_runtime import FORMATS
from penstock.wire.definitions import STRUCT, load
from penstock.wire.field_rules import Kind, is_endpoint, rule_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.wire.definitions import Definitions, Field, Message
    from penstock.wire.field_rules import Rule


class Direction(StrEnum):
    REQUEST = "request"  # towards a broker
    RESPONSE = "response"  # towards a client


class OpCode(StrEnum):
    FIXED = "fixed"  # one value of a fixed size
    SIZED = "sized"  # a length, then that many bytes
    ENDPOINT = "endpoint"  # broker id, host, port
    VALUES = "values"  # a count, then that many values of a fixed size
    ARRAY = "array"  # a count, then the block that many times
    OPTION = "option"  # a byte that is negative if the block is absent
    TAGS = "tags"  # a section of tagged fields; its known ones are TAG blocks
    TAG = "tag"
    END = "end"


OPENING: Final = frozenset((OpCode.ARRAY, OpCode.OPTION, OpCode.TAGS, OpCode.TAG))


@dataclass(frozen=True, slots=True)
class Discriminator:
    """A field that decides what another one names, such as the type of a config resource."""

    name: str
    path: str  # empty if this version does not have the field
    follows: bool  # it is the one byte right behind the value it describes
    default: bool | int | float | str | None  # its value if this version does not have the field


@dataclass(frozen=True, slots=True)
class Op:
    code: OpCode
    path: str
    kind: Kind = Kind.PLAIN
    form: str = ""  # FIXED, VALUES: struct format; SIZED: string, bytes or records; ENDPOINT: the port's
    nullable: bool = False
    tag: int = -1
    discriminators: tuple[Discriminator, ...] = ()

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Plan:
    message: str
    api: str  # for an embedded message, its name
    api_key: int
    version: int
    direction: Direction
    flexible: bool
    ops: tuple[Op, ...]

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of name this message can contain in this version and direction."""
        return frozenset(op.kind for op in self.ops) - {Kind.PLAIN}

    @property
    def header_flexible(self) -> bool:
        """The response to ApiVersions has the oldest header, since the client may know no other (KIP-511)."""
        return self.flexible and not (self.api_key == 18 and self.direction is Direction.RESPONSE)

    @property
    def streams(self) -> bool:
        """Whether it carries records, which are forwarded as they arrive and never buffered."""
        return Kind.RECORDS in self.kinds

    def listing(self) -> str:
        """The plan as text: one op per line, blocks indented."""
        lines, depth = [f"{self.message} v{self.version}{' flexible' if self.flexible else ''}"], 1
        for op in self.ops:
            if op.code is OpCode.END:
                depth -= 1
                continue
            form = str(op.tag) if op.code is OpCode.TAG else op.form.replace("16s", "uuid")
            words = [str(op.code), form, op.name if op.code is not OpCode.TAGS else ""]
            words += ["nullable"] * op.nullable
            words += [] if op.kind is Kind.PLAIN else ["←", str(op.kind)]
            if op.discriminators:
                words += ["by", ", ".join(each.name for each in op.discriminators)]
            lines.append("  " * depth + " ".join(word for word in words if word))
            depth += op.code in OPENING
        return "\n".join(lines)


@cache
def plan(api_key: int, version: int, direction: Direction) -> Plan:
    """The plan of an API, from the installed definitions."""
    return compile_plan(load(), api_key, version, direction)


@cache
def embedded_plan(message: str, version: int) -> Plan:
    """The plan of a message inside a byte string, such as a consumer's subscription."""
    definition = load().message(message)
    ops = _Compiler(definition, version).ops()
    return Plan(message, message, -1, version, Direction.REQUEST, definition.is_flexible(version), ops)


def compile_plan(definitions: Definitions, api_key: int, version: int, direction: Direction) -> Plan:
    api = definitions.apis().get(api_key)
    if api is None:
        raise PlanUnknown(api=api_key, version=version, kafka=definitions.kafka_version)
    message = definitions.message(api + direction.capitalize())
    if version not in message.valid_versions:
        raise PlanUnknown(api=f"{api_key} ({api})", version=version, kafka=definitions.kafka_version)
    ops = _Compiler(message, version).ops()
    return Plan(message.name, api, api_key, version, direction, message.is_flexible(version), ops)


def surface(definitions: Definitions) -> Iterator[Plan]:
    """Every plan, by API, direction and version."""
    for api_key, api in definitions.apis().items():
        for direction in Direction:
            versions = definitions.message(api + direction.capitalize()).valid_versions
            for version in versions:
                yield compile_plan(definitions, api_key, version, direction)


def surface_table(definitions: Definitions) -> list[tuple[int, str, str, Direction, tuple[Kind, ...]]]:
    """(key, API, versions, direction, kinds), with consecutive versions of equal kinds in one row."""
    rows: list[tuple[int, str, str, Direction, tuple[Kind, ...]]] = []
    for each in surface(definitions):
        kinds = tuple(sorted(each.kinds))
        if rows:
            key, api, versions, direction, previous = rows[-1]
            if (key, direction, previous) == (each.api_key, each.direction, kinds):
                first = versions.partition("–")[0]
                rows[-1] = (key, api, f"{first}–{each.version}", direction, kinds)
                continue
        rows.append((each.api_key, each.api, str(each.version), each.direction, kinds))
    return rows


class _Compiler:
    """Compiles a definition to ops."""

    def __init__(self, message: Message, version: int) -> None:
        self.message = message
        self.version = version
        self.flexible = message.is_flexible(version)
        self._ops: list[Op] = []
        self.scopes: list[tuple[str, tuple[Field, ...], int]] = []  # path, fields, index of the current one

    def ops(self) -> tuple[Op, ...]:
        self.struct(self.message.fields, self.message.name)
        return tuple(self._ops)

    def struct(self, fields: tuple[Field, ...], path: str) -> None:
        shown = tuple(field for field in fields if self.version in field.versions)
        plain = tuple(field for field in shown if self.version not in field.tagged)
        endpoint_fields_left = 0
        for position, field in enumerate(plain):
            if endpoint_fields_left:
                endpoint_fields_left -= 1
                continue
            self.scopes.append((path, plain, position))
            if is_endpoint(plain[position : position + 3]):
                endpoint_fields_left = 2
                form = FORMATS[plain[position + 2].kind]
                self._ops.append(Op(OpCode.ENDPOINT, f"{path}.{field.name}", Kind.ENDPOINT, form))
            else:
                self.field(field, f"{path}.{field.name}")
            self.scopes.pop()
        if self.flexible:
            self.tags([field for field in shown if self.version in field.tagged], path)

    def tags(self, tagged: list[Field], path: str) -> None:
        self._ops.append(Op(OpCode.TAGS, f"{path}.tags"))
        for field in tagged:
            assert field.tag is not None, "a tagged field has a tag"
            self._ops.append(Op(OpCode.TAG, f"{path}.{field.name}", tag=field.tag))
            self.scopes.append((path, (), 0))
            self.field(field, f"{path}.{field.name}")
            self.scopes.pop()
            self._ops.append(Op(OpCode.END, path))
        self._ops.append(Op(OpCode.END, path))

    def field(self, field: Field, path: str) -> None:
        nullable = self.version in field.nullable
        if field.kind == STRUCT:
            code = OpCode.ARRAY if field.array else OpCode.OPTION
            block = field.array or nullable
            if block:
                self._ops.append(Op(code, path, nullable=nullable))
            self.struct(field.fields, path)
            if block:
                self._ops.append(Op(OpCode.END, path))
            return
        rule = rule_of(path, field)
        if rule is None:
            raise RuleMissing(path=path)
        discriminators = tuple(self.discriminator(name, rule) for name in rule.decided_by)
        form = FORMATS.get(field.kind)
        if form is not None:
            code = OpCode.VALUES if field.array else OpCode.FIXED
            self._ops.append(Op(code, path, rule.kind, form, nullable, discriminators=discriminators))
        elif field.array:
            self._ops.append(Op(OpCode.ARRAY, path, nullable=nullable))
            self._ops.append(Op(OpCode.SIZED, path, rule.kind, field.kind, discriminators=discriminators))
            self._ops.append(Op(OpCode.END, path))
        else:
            sized = Op(OpCode.SIZED, path, rule.kind, field.kind, nullable, discriminators=discriminators)
            self._ops.append(sized)

    def discriminator(self, name: str, rule: Rule) -> Discriminator:
        """Where the field that decides what the current one names is: around, before or right behind it."""
        for path, fields, position in reversed(self.scopes):
            names = [field.name for field in fields]
            if name in names:
                index = names.index(name)
                follows = index > position
                if follows:
                    is_next_byte = index == position + 1 and fields[index].kind == "int8"
                    assert is_next_byte, f"{path}.{name} is out of reach of the {rule.kind} it describes"
                return Discriminator(name, f"{path}.{name}", follows, None)
        return Discriminator(name, "", False, self.default(self.message.fields, name))

    def default(self, fields: tuple[Field, ...], name: str) -> bool | int | float | str | None:
        """The default of a field that only other versions have; None if there is none."""
        for field in fields:
            if field.name == name:
                return field.default
            inner = self.default(field.fields, name)
            if inner is not None:
                return inner
        return None
