"""Plans: for each (API, version, direction) a flat program that says where names are.

A plan is a tuple of ops in the order of the bytes. Most say how to pass over a field; the ones
with a kind say that a name stands there, and which. `ARRAY`, `OPTION`, `TAGS` and `TAG` open a
block that the matching `END` closes. A plan is the one truth about a message's layout: the code
that splices (`splicing`, `streaming`) is generated from it, and the public table of what a
gateway does with each API (`surface`) is read off it.

A plan knows nothing of tenants. Which kinds matter, and what becomes of them, is for the `Names`
it is driven with; fields of other kinds are passed over like any others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.model.errors.plans import PlanUnknown, RuleMissing
from penstock.wire.definitions import STRUCT, load
from penstock.wire.primitives import FORMATS
from penstock.wire.rules import Kind, is_endpoint, rule_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.wire.definitions import Definitions, Field, Message
    from penstock.wire.rules import Rule


class Direction(StrEnum):
    REQUEST = "request"  # towards a broker
    RESPONSE = "response"  # towards a client


class Code(StrEnum):
    FIXED = "fixed"  # one value of a fixed size
    SIZED = "sized"  # a length, then that many bytes
    ENDPOINT = "endpoint"  # broker id, host, port
    VALUES = "values"  # a count, then that many values of a fixed size
    ARRAY = "array"  # a count, then the block that many times
    OPTION = "option"  # a byte that says whether the block follows
    TAGS = "tags"  # a section of tagged fields; its known ones are TAG blocks
    TAG = "tag"
    END = "end"


OPENING: Final = frozenset((Code.ARRAY, Code.OPTION, Code.TAGS, Code.TAG))


@dataclass(frozen=True, slots=True)
class Beside:
    """A field that decides what another one is, and where the walk finds it."""

    name: str
    path: str  # of that field, if this version has it
    follows: bool  # it stands right behind the value it explains, and is one byte
    default: bool | int | float | str | None  # what it stands for where this version has none


@dataclass(frozen=True, slots=True)
class Op:
    code: Code
    path: str
    kind: Kind = Kind.PLAIN
    form: str = ""  # FIXED, VALUES: struct format; SIZED: string, bytes or records; ENDPOINT: the port's
    nullable: bool = False
    tag: int = -1
    by: tuple[Beside, ...] = ()

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Plan:
    message: str
    api: str  # the message's name itself for embedded ones
    api_key: int
    version: int
    direction: Direction
    flexible: bool
    ops: tuple[Op, ...]

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of name this message can carry, in this version and direction."""
        return frozenset(op.kind for op in self.ops) - {Kind.PLAIN}

    @property
    def header_flexible(self) -> bool:
        """ApiVersions is answered in the oldest header, since the client may know no other."""
        return self.flexible and not (self.api_key == 18 and self.direction is Direction.RESPONSE)

    @property
    def streams(self) -> bool:
        """It carries records, which pass as they come and are never held."""
        return Kind.RECORDS in self.kinds

    def slots(self) -> Iterator[Op]:
        """The ops that have a kind, in order."""
        return (op for op in self.ops if op.kind is not Kind.PLAIN)

    def listing(self) -> str:
        """The program for a reader: one line an op, blocks indented."""
        lines, depth = [f"{self.message} v{self.version}{' flexible' if self.flexible else ''}"], 1
        for op in self.ops:
            if op.code is Code.END:
                depth -= 1
                continue
            words = [
                str(op.code),
                op.form.replace("16s", "uuid"),
                op.name if op.code is not Code.TAGS else "",
            ]
            words[1] = str(op.tag) if op.code is Code.TAG else words[1]
            words += ["nullable"] * op.nullable
            words += [] if op.kind is Kind.PLAIN else ["←", str(op.kind)]
            words += ["by", ", ".join(beside.name for beside in op.by)] if op.by else []
            lines.append("  " * depth + " ".join(word for word in words if word))
            depth += op.code in OPENING
        return "\n".join(lines)


@cache
def plan(api_key: int, version: int, direction: Direction) -> Plan:
    """The plan of an API in the installed definitions."""
    return compile_plan(load(), api_key, version, direction)


@cache
def embedded_plan(message: str, version: int) -> Plan:
    """The plan of a message that travels inside a byte string, such as a consumer's subscription."""
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
    """Every plan there is: API by API, version by version, requests first."""
    for api_key, api in definitions.apis().items():
        for direction in Direction:
            versions = definitions.message(api + direction.capitalize()).valid_versions
            for version in versions:
                yield compile_plan(definitions, api_key, version, direction)


def surface_table(definitions: Definitions) -> list[tuple[int, str, str, Direction, tuple[Kind, ...]]]:
    """(key, API, versions, direction, kinds), neighbouring versions with equal kinds in one row."""
    rows: list[tuple[int, str, str, Direction, tuple[Kind, ...]]] = []
    for made in surface(definitions):
        kinds = tuple(sorted(made.kinds))
        if rows:
            key, api, versions, direction, before = rows[-1]
            if (key, direction, before) == (made.api_key, made.direction, kinds):
                first = versions.partition("–")[0]
                rows[-1] = (key, api, f"{first}–{made.version}", direction, kinds)
                continue
        rows.append((made.api_key, made.api, str(made.version), made.direction, kinds))
    return rows


class _Compiler:
    """From a definition to ops; blocks are flattened as they are met."""

    def __init__(self, message: Message, version: int) -> None:
        self.message = message
        self.version = version
        self.flexible = message.is_flexible(version)
        self.found: list[Op] = []
        self.scopes: list[tuple[str, tuple[Field, ...], int]] = []  # path, fields, position of the current

    def ops(self) -> tuple[Op, ...]:
        self.struct(self.message.fields, self.message.name)
        return tuple(self.found)

    def struct(self, fields: tuple[Field, ...], path: str) -> None:
        shown = tuple(field for field in fields if self.version in field.versions)
        plain = tuple(field for field in shown if self.version not in field.tagged)
        addressed = 0
        for position, field in enumerate(plain):
            if addressed:
                addressed -= 1
                continue
            self.scopes.append((path, plain, position))
            if is_endpoint(plain[position : position + 3]):
                addressed = 2
                form = FORMATS[plain[position + 2].kind]
                self.found.append(Op(Code.ENDPOINT, f"{path}.{field.name}", Kind.ENDPOINT, form))
            else:
                self.field(field, f"{path}.{field.name}")
            self.scopes.pop()
        if self.flexible:
            self.tags([field for field in shown if self.version in field.tagged], path)

    def tags(self, tagged: list[Field], path: str) -> None:
        self.found.append(Op(Code.TAGS, f"{path}.tags"))
        for field in tagged:
            assert field.tag is not None, "a tagged field has a tag"
            self.found.append(Op(Code.TAG, f"{path}.{field.name}", tag=field.tag))
            self.scopes.append((path, (), 0))
            self.field(field, f"{path}.{field.name}")
            self.scopes.pop()
            self.found.append(Op(Code.END, path))
        self.found.append(Op(Code.END, path))

    def field(self, field: Field, path: str) -> None:
        nullable = self.version in field.nullable
        if field.kind == STRUCT:
            code = Code.ARRAY if field.array else Code.OPTION
            block = field.array or nullable
            if block:
                self.found.append(Op(code, path, nullable=nullable))
            self.struct(field.fields, path)
            if block:
                self.found.append(Op(Code.END, path))
            return
        rule = rule_of(path, field)
        if rule is None:
            raise RuleMissing(path=path)
        by = tuple(self.beside(name, rule) for name in rule.by)
        form = FORMATS.get(field.kind)
        if form is not None:
            code = Code.VALUES if field.array else Code.FIXED
            self.found.append(Op(code, path, rule.kind, form, nullable, by=by))
        elif field.array:
            self.found.append(Op(Code.ARRAY, path, nullable=nullable))
            self.found.append(Op(Code.SIZED, path, rule.kind, field.kind, by=by))
            self.found.append(Op(Code.END, path))
        else:
            self.found.append(Op(Code.SIZED, path, rule.kind, field.kind, nullable, by=by))

    def beside(self, name: str, rule: Rule) -> Beside:
        """Where the walk finds the field that decides over the current one: above, before or behind."""
        for path, fields, position in reversed(self.scopes):
            names = [field.name for field in fields]
            if name in names:
                where = names.index(name)
                follows = where > position
                if follows:
                    behind = fields[position + 1]
                    next_to_it = where == position + 1 and behind.kind == "int8"
                    assert next_to_it, f"{path}.{name} is out of reach of the {rule.kind} it explains"
                return Beside(name, f"{path}.{name}", follows, None)
        return Beside(name, "", False, self.default(self.message.fields, name))

    def default(self, fields: tuple[Field, ...], name: str) -> bool | int | float | str | None:
        """The default of a field that other versions have; None if none does."""
        for field in fields:
            if field.name == name:
                return field.default
            inner = self.default(field.fields, name)
            if inner is not None:
                return inner
        return None
