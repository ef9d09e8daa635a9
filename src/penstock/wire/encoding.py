"""Source code of an encoder, for one message in one version.

The encoder collects pieces of bytes in a list that is joined once. Fixed-size neighbours become
one `pack`, all pieces up to the next loop one list extension. A struct whose dict holds exactly
the version's fields takes the quick way (one `itemgetter`); any other dict goes through
`Completer`, which fills in defaults and refuses what the version has no place for.
"""

from __future__ import annotations

import struct
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from penstock.wire import primitives
from penstock.wire.decoding import UNKNOWN_TAGS, default_source, present
from penstock.wire.definitions import STRUCT
from penstock.wire.primitives import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.wire.definitions import Field, Message

    Encode = Callable[[Mapping[str, Any]], list[bytes]]

UUID_ZERO = primitives.uuid_of(bytes(16))


class Unfit(ValueError):
    """A field that cannot be written; the public entry turns it into the catalogue's error."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field} {reason}")
        self.field, self.reason = field, reason


def encoder(message: Message, version: int) -> Encode:
    emitter = _Emitter(version)
    source = emitter.function(message)
    code = compile(source, f"<encode {message.name} v{version}>", "exec")
    exec(code, emitter.names)  # noqa: S102  (the source is made from Kafka's definitions alone)
    encode: Encode = emitter.names["encode"]
    return encode


def default_of(field: Field) -> Any:
    """What a field that the caller left out stands for."""
    if field.default_null or field.kind == "records":
        return None
    if field.array:
        return ()
    if field.kind == STRUCT:
        return {}
    if field.kind == "uuid":
        return UUID_ZERO
    return b"" if field.kind == "bytes" else field.default


class Completer:
    """The values of a struct in the order of its fields, then its unknown tags or None."""

    __slots__ = ("absent", "defaults", "flexible", "version")

    def __init__(self, fields: tuple[Field, ...], version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.defaults = {field.name: default_of(field) for field in present(fields, version)}
        self.absent = {field.name: field for field in fields if field.name not in self.defaults}

    def __call__(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        tags = None
        for name, value in values.items():
            if name in self.defaults:
                continue
            if name == UNKNOWN_TAGS:
                tags = self._tags(value)
            elif name not in self.absent:
                raise Unfit(name, f"is not a field here; known are {', '.join(self.defaults)}")
            elif not self.absent[name].ignorable and not _empty(value, self.absent[name]):
                raise Unfit(name, f"is {value!r}, which version {self.version} has no place for")
        return (*({**self.defaults, **values}[name] for name in self.defaults), tags)

    def _tags(self, tags: Mapping[int, bytes]) -> Mapping[int, bytes]:
        if tags and not self.flexible:
            raise Unfit(UNKNOWN_TAGS, f"has tags, which version {self.version} has no place for")
        return tags


def _empty(value: Any, field: Field) -> bool:
    return value is None or value == default_of(field) or (field.array and len(value) == 0)


class _Emitter:
    def __init__(self, version: int) -> None:
        self.version = version
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        self.out = "o"
        self.run: list[tuple[str, str]] = []  # (format, expression; empty for a constant zero)
        self.pieces: list[str] = []
        self.names: dict[str, Any] = {
            "U": primitives.UVARINTS,
            "uv": primitives.uvarint,
            "many": primitives.pack_many,
            "many_compact": primitives.pack_many_compact,
            "write_tags": primitives.write_tags,
            "uuid_zero": UUID_ZERO,
        }
        self.names |= {f"small_{ord(form)}": table for form, table in primitives.PACK.items()}
        self.names |= {f"compact_{ord(form)}": table for form, table in primitives.PACK_COMPACT.items()}

    def function(self, message: Message) -> str:
        self.lines = ["def encode(v):", "  o = []"]
        self.struct(message.fields, "v", message.is_flexible(self.version))
        self.flush()
        self.emit("return o")
        return "\n".join(self.lines)

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def constant(self, value: object, stem: str) -> str:
        name = self.fresh(stem)
        self.names[name] = value
        return name

    def close_run(self) -> None:
        if not self.run:
            return
        form = "".join(form for form, _ in self.run)
        arguments = [expression for _, expression in self.run if expression]
        self.run = []
        if not arguments:
            self.pieces.append(repr(bytes(len(form))))
            return
        writer = f"write_{form.replace('?', 'z')}"
        self.names[writer] = struct.Struct(">" + form).pack
        self.pieces.append(f"{writer}({', '.join(arguments)})")

    def piece(self, expression: str) -> None:
        self.close_run()
        self.pieces.append(expression)

    def flush(self) -> None:
        self.close_run()
        if len(self.pieces) == 1:
            self.emit(f"{self.out}.append({self.pieces[0]})")
        elif self.pieces:
            self.emit(f"{self.out} += ({', '.join(self.pieces)})")
        self.pieces = []

    def struct(self, fields: tuple[Field, ...], source: str, flexible: bool) -> None:
        shown = present(fields, self.version)
        values = {field.name: self.fresh("f") for field in shown}
        extra = self.fresh("t")
        complete = self.constant(Completer(fields, self.version, flexible), "complete")
        targets = "".join(f"{name}, " for name in values.values())
        self.emit(f"if len({source}) == {len(shown)}:")
        if shown:
            getter = self.constant(itemgetter(*(field.name for field in shown)), "get")
            one = "(" + getter + f"({source}),)" if len(shown) == 1 else f"{getter}({source})"
            self.emit(f"  try: {targets} = {one}; {extra} = None")
            self.emit(f"  except KeyError: {targets}{extra}, = {complete}({source})")
        else:
            self.emit(f"  {extra} = None")
        self.emit(f"else: {targets}{extra}, = {complete}({source})")
        for field in shown:
            if self.version not in field.tagged:
                own_flexible = flexible if field.flexible is None else self.version in field.flexible
                self.value(field, values[field.name], own_flexible)
        if flexible:
            tagged = [(field, values[field.name]) for field in shown if self.version in field.tagged]
            self.tags(tagged, extra)

    def tags(self, tagged: list[tuple[Field, str]], extra: str) -> None:
        """A section without tags is one zero byte, packed with what stands before it; any tag replaces it."""
        out = self.out
        self.run.append(("x", ""))
        self.flush()
        if not tagged:
            self.emit(f"if {extra}: {out}[-1] = {out}[-1][:-1]; write_tags({out}, {extra}.items())")
            return
        found = self.fresh("k")
        conditions = [self.differs(field, value) for field, value in tagged]
        self.emit(f"if {' or '.join([*conditions, extra])}:")
        self.depth += 1
        self.emit(f"{found} = []")
        for (field, value), condition in zip(tagged, conditions):
            self.emit(f"if {condition}:")
            self.depth += 1
            self.out = part = self.fresh("o")
            self.emit(f"{part} = []")
            self.value(field, value, True)
            self.flush()
            self.out = out
            self.emit(f"{part} = b''.join({part})")
            if field.kind == STRUCT and not field.array and not field.default_null:
                # A caller may have left out what has a default: only the bytes tell.
                default = self.constant(self.default_bytes(field), "default")
                self.emit(f"if {part} != {default}: {found}.append(({field.tag}, {part}))")
            else:
                self.emit(f"{found}.append(({field.tag}, {part}))")
            self.depth -= 1
        self.emit(f"if {extra}: {found} += {extra}.items()")
        self.emit(f"if {found}: {out}[-1] = {out}[-1][:-1]; write_tags({out}, {found})")
        self.depth -= 1

    def differs(self, field: Field, value: str) -> str:
        """An expression that is false where the value surely is the field's default."""
        if field.default_null or field.kind == "records":
            return f"{value} is not None"
        if field.array or field.kind == "bytes":
            return f"({value} is None or len({value}))"
        if field.kind == STRUCT:
            return f"{value} != {default_source(field, self.version)}"
        return f"{value}.int" if field.kind == "uuid" else f"{value} != {field.default!r}"

    def default_bytes(self, field: Field) -> bytes:
        inner = _Emitter(self.version)
        inner.lines = ["def encode(v):", "  o = []"]
        inner.value(field, "v", True)
        inner.flush()
        inner.emit("return b''.join(o)")
        exec("\n".join(inner.lines), inner.names)  # noqa: S102  (see `encoder`)
        encoded: bytes = inner.names["encode"]({})
        return encoded

    def value(self, field: Field, value: str, flexible: bool) -> None:
        nullable = self.version in field.nullable
        if field.array:
            self.array(field, value, flexible, nullable)
        elif field.kind in FORMATS:
            self.run.append((FORMATS[field.kind], f"{value}.bytes" if field.kind == "uuid" else value))
        elif field.kind == STRUCT:
            if nullable:
                self.flush()
                self.emit(f"if {value} is None: {self.out}.append(b'\\xff')")
                self.emit("else:")
                self.depth += 1
                self.pieces.append("b'\\x01'")
                self.struct(field.fields, value, flexible)
                self.flush()
                self.depth -= 1
            else:
                self.struct(field.fields, value, flexible)
        else:
            self.sized(field.kind, value, flexible, nullable)

    def length(self, name: str, form: str, flexible: bool) -> None:
        if flexible:
            self.piece(f"U[{name}] if {name} < {len(primitives.UVARINTS)} else uv({name})")
        else:
            self.run.append((form, name))

    def sized(self, kind: str, value: str, flexible: bool, nullable: bool) -> None:
        length, content = self.fresh("n"), self.fresh("s")
        taken = f"{value}.encode()" if kind == "string" else value
        counted = f"len({content}){' + 1' if flexible else ''}"
        if nullable:
            self.emit(f"if {value} is None: {content} = b''; {length} = {0 if flexible else -1}")
            self.emit(f"else: {content} = {taken}; {length} = {counted}")
        else:
            self.emit(f"{content} = {taken}; {length} = {counted}")
        self.length(length, "h" if kind == "string" else "i", flexible)
        self.piece(content)

    def array(self, field: Field, value: str, flexible: bool, nullable: bool) -> None:
        length = self.fresh("n")
        more = " + 1" if flexible else ""
        if nullable:
            self.emit(f"if {value} is None: {value} = (); {length} = {0 if flexible else -1}")
            self.emit(f"else: {length} = len({value}){more}")
        else:
            self.emit(f"{length} = len({value}){more}")
        form = FORMATS.get(field.kind, "")
        few = primitives.SMALL
        if form and form != "16s" and flexible:
            one, many = (
                f"compact_{ord(form)}[{length}]({length}, *{value})",
                f"many_compact({length}, {value}, {form!r})",
            )
            self.piece(f"{one} if {length} < {few} else {many}")
            return
        self.length(length, "i", flexible)
        if form == "16s":
            self.piece(f"b''.join([x.bytes for x in {value}])")
        elif form:
            table = f"small_{ord(form)}"
            self.piece(
                f"{table}[len({value})](*{value}) if len({value}) < {few} else many({value}, {form!r})"
            )
        else:
            self.flush()
            element = self.fresh("x")
            self.emit(f"for {element} in {value}:")
            self.depth += 1
            if field.kind == STRUCT:
                self.struct(field.fields, element, flexible)
            else:
                self.sized(field.kind, element, flexible, False)
            self.flush()
            self.depth -= 1
            if self.lines[-1].endswith(f"for {element} in {value}:"):
                self.emit("  pass")
