"""Source of an encoder for one version of a message.

The encoder collects pieces of bytes in a list that is joined once. Adjacent fixed-size fields become one
`pack`, and all pieces up to the next loop one list extension. A dict with exactly the version's fields is
read by one `itemgetter`. Any other goes through `Completer`, which fills in defaults and refuses values
that the version cannot carry.
"""

from __future__ import annotations

import struct
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from penstock.wire import codec_runtime
from penstock.wire.codec_runtime import FORMATS
from penstock.wire.codegen.decoder import UNKNOWN_TAGS, default_source, present
from penstock.wire.codegen.source import Source
from penstock.wire.definitions import STRUCT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.wire.definitions import Field, Message

    Encode = Callable[[Mapping[str, Any]], list[bytes]]

UUID_ZERO = codec_runtime.uuid_of(bytes(16))


class Unfit(ValueError):
    """A field that cannot be encoded; the public functions turn it into an error of the catalogue."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field} {reason}")
        self.field, self.reason = field, reason


def encoder(message: Message, version: int) -> Encode:
    writer = _EncoderWriter(version)
    writer.write(message)
    encode: Encode = writer.compiled("encode", f"encode {message.name} v{version}")
    return encode


def default_of(field: Field) -> Any:
    """The value of a field that the caller left out."""
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
    """Returns the values of a struct in the order of its fields, then its unknown tags or None."""

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
                raise Unfit(name, f"is {value!r}, which version {self.version} cannot carry")
        return (*({**self.defaults, **values}[name] for name in self.defaults), tags)

    def _tags(self, tags: Mapping[int, bytes]) -> Mapping[int, bytes]:
        if tags and not self.flexible:
            raise Unfit(UNKNOWN_TAGS, f"has tags, which version {self.version} cannot carry")
        return tags


def _empty(value: Any, field: Field) -> bool:
    return value is None or value == default_of(field) or (field.array and len(value) == 0)


class _EncoderWriter(Source):
    def __init__(self, version: int) -> None:
        super().__init__()
        self.version = version
        self.out = "o"
        self.run: list[tuple[str, str]] = []  # (format, expression; empty for a constant zero)
        self.pieces: list[str] = []
        self.globals |= {
            "U": codec_runtime.UVARINTS,
            "uv": codec_runtime.uvarint,
            "many": codec_runtime.pack_many,
            "many_compact": codec_runtime.pack_many_compact,
            "write_tags": codec_runtime.write_tags,
            "uuid_zero": UUID_ZERO,
        }
        self.globals |= {f"small_{ord(form)}": table for form, table in codec_runtime.PACK.items()}
        self.globals |= {f"compact_{ord(form)}": table for form, table in codec_runtime.PACK_COMPACT.items()}

    def write(self, message: Message) -> None:
        self.lines = ["def encode(v):", "  o = []"]
        self.struct(message.fields, "v", message.is_flexible(self.version))
        self.flush()
        self.emit("return o")

    def constant(self, value: object, stem: str) -> str:
        name = self.fresh(stem)
        self.globals[name] = value
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
        self.globals[writer] = struct.Struct(">" + form).pack
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
                field_flexible = flexible if field.flexible is None else self.version in field.flexible
                self.value(field, values[field.name], field_flexible)
        if flexible:
            tagged = [(field, values[field.name]) for field in shown if self.version in field.tagged]
            self.tags(tagged, extra)

    def tags(self, tagged: list[tuple[Field, str]], extra: str) -> None:
        """An empty section is one zero byte, packed with the fields before it; a tag replaces this byte."""
        out = self.out
        self.run.append(("x", ""))
        self.flush()
        if not tagged:
            self.emit(f"if {extra}: {out}[-1] = {out}[-1][:-1]; write_tags({out}, {extra}.items())")
            return
        tags = self.fresh("k")
        conditions = [self.differs(field, value) for field, value in tagged]
        with self.block(f"if {' or '.join([*conditions, extra])}:"):
            self.emit(f"{tags} = []")
            for (field, value), condition in zip(tagged, conditions):
                with self.block(f"if {condition}:"):
                    self.out = part = self.fresh("o")
                    self.emit(f"{part} = []")
                    self.value(field, value, True)
                    self.flush()
                    self.out = out
                    self.emit(f"{part} = b''.join({part})")
                    if field.kind == STRUCT and not field.array and not field.default_null:
                        # The caller may have left out members with defaults, so compare the encoded bytes.
                        default = self.constant(self.default_bytes(field), "default")
                        self.emit(f"if {part} != {default}: {tags}.append(({field.tag}, {part}))")
                    else:
                        self.emit(f"{tags}.append(({field.tag}, {part}))")
            self.emit(f"if {extra}: {tags} += {extra}.items()")
            self.emit(f"if {tags}: {out}[-1] = {out}[-1][:-1]; write_tags({out}, {tags})")

    def differs(self, field: Field, value: str) -> str:
        """An expression that is false only if the value is the field's default."""
        if field.default_null or field.kind == "records":
            return f"{value} is not None"
        if field.array or field.kind == "bytes":
            return f"({value} is None or len({value}))"
        if field.kind == STRUCT:
            return f"{value} != {default_source(field, self.version)}"
        return f"{value}.int" if field.kind == "uuid" else f"{value} != {field.default!r}"

    def default_bytes(self, field: Field) -> bytes:
        inner = _EncoderWriter(self.version)
        inner.lines = ["def encode(v):", "  o = []"]
        inner.value(field, "v", True)
        inner.flush()
        inner.emit("return b''.join(o)")
        encoded: bytes = inner.compiled("encode", f"default of {field.name}")({})
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
                with self.block("else:"):
                    self.pieces.append("b'\\x01'")
                    self.struct(field.fields, value, flexible)
                    self.flush()
            else:
                self.struct(field.fields, value, flexible)
        else:
            self.sized(field.kind, value, flexible, nullable)

    def length(self, name: str, form: str, flexible: bool) -> None:
        if flexible:
            self.piece(f"U[{name}] if {name} < {len(codec_runtime.UVARINTS)} else uv({name})")
        else:
            self.run.append((form, name))

    def sized(self, kind: str, value: str, flexible: bool, nullable: bool) -> None:
        length, content = self.fresh("n"), self.fresh("s")
        raw = f"{value}.encode()" if kind == "string" else value
        size = f"len({content}){' + 1' if flexible else ''}"
        if nullable:
            self.emit(f"if {value} is None: {content} = b''; {length} = {0 if flexible else -1}")
            self.emit(f"else: {content} = {raw}; {length} = {size}")
        else:
            self.emit(f"{content} = {raw}; {length} = {size}")
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
        few = codec_runtime.SMALL
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
            with self.block(f"for {element} in {value}:"):
                if field.kind == STRUCT:
                    self.struct(field.fields, element, flexible)
                else:
                    self.sized(field.kind, element, flexible, False)
                self.flush()
            if self.lines[-1].endswith(f"for {element} in {value}:"):
                self.emit("  pass")
