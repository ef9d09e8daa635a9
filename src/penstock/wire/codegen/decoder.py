"""Source of a decoder for one version of a message.

Everything is inlined into one function. A run of fixed-size fields, with the length of the variable one
behind it, is one `unpack_from`; a struct is one dict display; an array is one loop. Reading past the end
raises and slicing there is harmless, so the end is checked once. An array's count is checked against the
bytes left before its loop starts.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from penstock.wire import codec_runtime
from penstock.wire.codec_runtime import FORMATS, SIZES
from penstock.wire.codegen.source import Source
from penstock.wire.definitions import STRUCT

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.wire.definitions import Field, Message

    Decode = Callable[[bytes, int], tuple[dict[str, Any], int]]

UNKNOWN_TAGS = "_tags"


def decoder(message: Message, version: int) -> Decode:
    writer = _DecoderWriter(version)
    writer.write(message)
    decode: Decode = writer.compiled("decode", f"decode {message.name} v{version}")
    return decode


def present(fields: tuple[Field, ...], version: int) -> list[Field]:
    return [field for field in fields if version in field.versions]


def size_min(fields: tuple[Field, ...], version: int, flexible: bool) -> int:
    """The fewest bytes a struct of these fields can have."""
    total = 1 if flexible else 0
    for field in present(fields, version):
        if version in field.tagged:
            continue
        if field.array or field.kind in ("bytes", "records"):
            total += 1 if flexible else 4
        elif field.kind == "string":
            total += 1 if flexible else 2
        elif field.kind != STRUCT:
            total += SIZES[field.kind]
        elif version in field.nullable:
            total += 1
        else:
            total += size_min(field.fields, version, flexible)
    return total


def default_source(field: Field, version: int) -> str:
    """An expression for the value of an absent tagged field."""
    if field.default_null:
        return "None"
    if field.array:
        return "[]"
    if field.kind == STRUCT:
        inner = present(field.fields, version)
        return "{" + ", ".join(f"{f.name!r}: {default_source(f, version)}" for f in inner) + "}"
    if field.kind == "uuid":
        return "uuid_zero"
    if field.kind == "records":
        return "None"
    return "b''" if field.kind == "bytes" else repr(field.default)


class _DecoderWriter(Source):
    def __init__(self, version: int) -> None:
        super().__init__()
        self.version = version
        self.run: list[tuple[str, str]] = []  # (format character, local name)
        for name in ("short", "null", "negative", "count_too_large", "out_of_order", "tag_size", "uuid_of"):
            self.globals[name] = getattr(codec_runtime, name)
        self.globals["uv"] = codec_runtime.uvarint_rest
        self.globals["read_tags"] = codec_runtime.read_tags
        self.globals["many"] = codec_runtime.unpack_many
        self.globals["uuid_zero"] = codec_runtime.uuid_of(bytes(16))
        self.globals |= {f"small_{ord(form)}": table for form, table in codec_runtime.UNPACK.items()}

    def write(self, message: Message) -> None:
        self.lines = ["def decode(b, p):", "  e = len(b)", "  mv = memoryview(b)"]
        result = self.struct(message.fields, message.is_flexible(self.version), message.name)
        self.emit("if p > e: short()")
        self.emit(f"return {result}, p")

    def fixed(self, form: str, stem: str) -> str:
        """Add a fixed-size value to the run; returns its local, set when the run is flushed."""
        name = self.fresh(stem)
        self.run.append((form, name))
        return name

    def flush(self) -> None:
        if not self.run:
            return
        form = ">" + "".join(form for form, _ in self.run)
        targets = [name for _, name in self.run]
        uuids = [name for form, name in self.run if form == "16s"]
        self.run = []
        if form == ">B":
            self.emit(f"{targets[0]} = b[p]; p += 1")
            return
        layout = struct.Struct(form)
        reader = f"read_{form[1:].replace('?', 'z')}"
        self.globals[reader] = layout.unpack_from
        self.emit(f"{', '.join(targets)}, = {reader}(b, p); p += {layout.size}")
        for name in uuids:
            self.emit(f"{name} = uuid_of({name})")

    def struct(self, fields: tuple[Field, ...], flexible: bool, path: str) -> str:
        """Read a struct; returns the local of its dict."""
        shown = present(fields, self.version)
        values: dict[str, str] = {}
        for field in shown:
            if self.version not in field.tagged:
                field_flexible = flexible if field.flexible is None else self.version in field.flexible
                values[field.name] = self.value(field, field_flexible, f"{path}.{field.name}")
        result = self.fresh("r")
        tagged = [field for field in shown if self.version in field.tagged]
        if not flexible:
            self.flush()
            self.display(result, shown, values)
            return result
        count = self.fixed("B", "t")
        self.flush()
        unknown = self.fresh("u")
        if not tagged:
            self.display(result, shown, values)
            self.emit(f"if {count}:")
            self.emit(f"  {unknown}, p = read_tags(b, p, {count})")
            self.emit(f"  if {unknown}: {result}[{UNKNOWN_TAGS!r}] = {unknown}")
            return result
        defaults = {field.name: default_source(field, self.version) for field in tagged}
        with self.block(f"if not {count}:"):
            self.display(result, shown, values | defaults)
        with self.block("else:"):
            for name, default in defaults.items():
                values[name] = local = self.fresh("g")
                self.emit(f"{local} = {default}")
            self.tags(tagged, count, unknown, values, path)
            self.display(result, shown, values)
            self.emit(f"if {unknown}: {result}[{UNKNOWN_TAGS!r}] = {unknown}")
        return result

    def display(self, result: str, shown: list[Field], values: dict[str, str]) -> None:
        items = ", ".join(f"{field.name!r}: {values[field.name]}" for field in shown)
        self.emit(f"{result} = {{{items}}}")

    def tags(self, tagged: list[Field], count: str, unknown: str, values: dict[str, str], path: str) -> None:
        """Read a section of tagged fields: known ones into their locals, others into `unknown`."""
        tag, size, end, last = (self.fresh(stem) for stem in ("k", "z", "q", "l"))
        self.emit(f"{unknown} = {{}}; {last} = -1")
        self.emit(f"if {count} > 127: {count}, p = uv(b, p, {count})")
        with self.block(f"for _ in range({count}):"):
            for name in (tag, size):
                self.emit(f"{name} = b[p]; p += 1")
                self.emit(f"if {name} > 127: {name}, p = uv(b, p, {name})")
            self.emit(f"if {tag} <= {last}: out_of_order({tag}, {last})")
            self.emit(f"{last} = {tag}; {end} = p + {size}")
            self.emit(f"if {end} > e: short()")
            word = "if"
            for field in tagged:
                with self.block(f"{word} {tag} == {field.tag}:"):
                    value = self.value(field, True, f"{path}.{field.name}")
                    self.flush()
                    self.emit(f"{values[field.name]} = {value}")
                    self.emit(f"if p != {end}: tag_size({field.name!r}, {size})")
                word = "elif"
            self.emit("else:")
            self.emit(f"  {unknown}[{tag}] = b[p:{end}]; p = {end}")

    def value(self, field: Field, flexible: bool, path: str) -> str:
        nullable = self.version in field.nullable
        if field.array:
            return self.array(field, flexible, nullable, path)
        if field.kind in FORMATS:
            return self.fixed(FORMATS[field.kind], "f")
        if field.kind == STRUCT:
            if not nullable:
                return self.struct(field.fields, flexible, path)
            marker = self.fixed("b", "n")
            self.flush()
            name = self.fresh("v")
            self.emit(f"{name} = None")
            with self.block(f"if {marker} >= 0:"):
                result = self.struct(field.fields, flexible, path)
                self.emit(f"{name} = {result}")
            return name
        return self.sized(field.kind, flexible, nullable, path)

    def length(self, form: str, flexible: bool) -> str:
        """Read a length or count; returns its local, −1 for null."""
        name = self.fixed("B" if flexible else form, "n")
        self.flush()
        if flexible:
            self.emit(f"if {name} > 127: {name}, p = uv(b, p, {name})")
            self.emit(f"{name} -= 1")
        return name

    def sized(self, kind: str, flexible: bool, nullable: bool, path: str) -> str:
        length = self.length("h" if kind == "string" else "i", flexible)
        end, name = self.fresh("q"), self.fresh("s")
        self.emit(f"{end} = p + {length}")
        value = {"string": f"b[p:{end}].decode()", "bytes": f"b[p:{end}]", "records": f"mv[p:{end}]"}[kind]
        self.emit(f"if {length} >= 0: {name} = {value}; p = {end}")
        self.otherwise_null(length, name, nullable, path)
        return name

    def otherwise_null(self, length: str, name: str, nullable: bool, path: str) -> None:
        if nullable:
            self.emit(f"elif {length} == -1: {name} = None")
            self.emit(f"else: negative({path!r}, {length})")
        else:
            self.emit(f"else: null({path!r})")

    def array(self, field: Field, flexible: bool, nullable: bool, path: str) -> str:
        count = self.length("i", flexible)
        name = self.fresh("a")
        form = FORMATS.get(field.kind, "")
        if field.kind == STRUCT:
            smallest = size_min(field.fields, self.version, flexible)
        elif form:
            smallest = SIZES[field.kind]
        else:
            smallest = 1 if flexible else 2 if field.kind == "string" else 4
        assert smallest > 0, f"{path}: a count of empty elements cannot be checked against the bytes left"
        self.emit(f"if {count} * {smallest} > e - p: count_too_large({path!r}, {count}, e - p)")
        with self.block(f"if {count} >= 0:"):
            if form and form != "16s":
                table = f"small_{ord(form)}"
                few = f"[*{table}[{count}](b, p)]"
                self.emit(
                    f"{name} = {few} if {count} < {codec_runtime.SMALL} else many(b, p, {count}, {form!r})"
                )
                self.emit(f"p += {count} * {smallest}")
            else:
                self.emit(f"{name} = []")
                with self.block(f"for _ in range({count}):"):
                    if field.kind == STRUCT:
                        element = self.struct(field.fields, flexible, path)
                    elif form:
                        element = self.fixed(form, "f")
                        self.flush()
                    else:
                        element = self.sized(field.kind, flexible, False, path)
                    self.emit(f"{name}.append({element})")
        self.otherwise_null(count, name, nullable, path)
        return name
