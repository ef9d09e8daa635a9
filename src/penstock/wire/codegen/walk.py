"""What the splicers of `whole` and `stream` share: source that walks a frame by its plan.

`WalkWriter` writes the source that reads lengths, skips fields without a name, and collects the values of
`field_observer`. A run of fixed-size fields costs one addition, or one `unpack_from` if some of their
values are needed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.wire import codec_runtime, splice_runtime
from penstock.wire.codec_runtime import UVARINT_BYTES_MAX, uvarint
from penstock.wire.codegen.source import Source
from penstock.wire.field_observer import (
    BATCH_HEADER_BYTES,
    LAST_OFFSET_DELTA,
    MAX_TIMESTAMP,
    OBSERVED_FIELDS,
    RECORD_BYTES,
    TOPIC,
)
from penstock.wire.field_rules import Kind
from penstock.wire.plans import OPENING, Direction, Op, OpCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.wire.plans import Plan

_CALLED_SHARED: Final = ("short", "negative", "null", "count_too_large")
_CALLED: Final = (
    "skip_tags",
    "resized",
    "recounted",
    "compact",
    "padded",
    "fitted",
    "blank_field",
    "hidden_tail",
    "trailing",
    "tag_count",
    "tag_size",
    "too_long",
    "too_many",
    "growth_broken",
)
# Kinds whose method of `Names` is looked up once per frame rather than once per name.
BOUND_ONCE: Final = frozenset((Kind.TOPIC, Kind.TOPIC_ID, Kind.GROUP, Kind.BROKER_ID))
# Byte strings with a message inside. Its elements count, too, so the number left is kept where both find it.
_EMBEDDING: Final = frozenset((Kind.SUBSCRIPTION, Kind.ASSIGNMENT))


@dataclass(slots=True)
class Block:
    """An op, with the blocks inside it if it opens one."""

    op: Op
    inner: list[Block] = field(default_factory=list)

    def descendants(self) -> Iterable[Op]:
        yield self.op
        for block in self.inner:
            yield from block.descendants()


def blocks(ops: tuple[Op, ...]) -> list[Block]:
    """The flat plan as a tree."""
    top: list[Block] = []
    stack = [top]
    for op in ops:
        if op.code is OpCode.END:
            stack.pop()
            continue
        block = Block(op)
        stack[-1].append(block)
        if op.code in OPENING:
            stack.append(block.inner)
    return top


class WalkWriter(Source):
    """Writes the source of a walk; subclasses write what happens to names."""

    def __init__(
        self, plan: Plan, kinds: frozenset[Kind], *, observed: bool, elements_max: int | None = None
    ) -> None:
        super().__init__()
        self.plan = plan
        self.elements_max = elements_max  # of all arrays and tagged fields together; None for no limit
        self.embedded = plan.api_key < 0
        embeds = self.embedded or not plan.kinds.isdisjoint(kinds & _EMBEDDING)
        self.elements_left = "names.elements_left" if embeds else "left"
        self.kinds = kinds - {Kind.RECORDS, Kind.PLAIN}
        self.flexible = plan.flexible
        self.run: list[tuple[str, str]] = []  # fixed-size fields not yet skipped: format, local or ""
        self.globals |= {name: getattr(codec_runtime, name) for name in _CALLED_SHARED}
        self.globals |= {name: getattr(splice_runtime, name) for name in _CALLED}
        self.globals |= {
            "uv": splice_runtime.uvarint_on,
            "uvarint": uvarint,
            "zero": bytes(16),
            "size_pack": struct.Struct(">i").pack,
        }
        self.observed = OBSERVED_FIELDS.get(plan.message) if observed else None
        array = self.observed.array if self.observed else ""
        self.row_path = f"{plan.message}.{array}" if array else ""
        self.field_locals: dict[str, str] = {}  # path of a field whose value is needed → its local
        self._choose_field_locals()
        # Of the blocks around, innermost last; "" if it cannot be omitted.
        self.omission_flags: list[str] = []

    def _choose_field_locals(self) -> None:
        for op in self.plan.ops:
            if self.renames(op):
                for discriminator in op.discriminators:
                    if discriminator.path and not discriminator.follows:
                        self.field_locals[discriminator.path] = self.fresh("v")
        observed = self.observed
        if observed is None:
            return
        paths = {f"{self.plan.message}.{name}" for name in observed.head}
        paths |= {f"{self.row_path}.{name}" for name in observed.row if self.row_path}
        present = {op.path for op in self.plan.ops}
        for path in sorted(paths & present):
            self.field_locals.setdefault(path, self.fresh("v"))
        if TOPIC in observed.row:
            for name in ("Name", "Topic", "TopicId"):
                path = f"{self.plan.message}.{observed.topic}.{name}"
                if path in present:
                    self.field_locals[path] = "topic"

    def renames(self, op: Op) -> bool:
        return op.kind in self.kinds

    def bind_methods(self) -> None:
        for kind in sorted(self.kinds & self.plan.kinds & BOUND_ONCE):
            self.emit(f"f_{kind} = names.{kind}")

    def limit_elements(self) -> None:
        if self.elements_max is not None:
            also = "names.elements_max = " if self.elements_left != "left" else ""
            self.emit(f"{self.elements_left} = {also}{self.elements_max}")

    def count_elements(self, path: str, count: str) -> None:
        """Count elements before they are read."""
        if self.elements_max is not None or self.embedded:
            limit = "names.elements_max" if self.embedded else self.elements_max
            self.emit(f"{self.elements_left} -= {count}")
            self.emit(f"if {self.elements_left} < 0: too_many({path!r}, {limit})")

    def count_array(self, path: str, length: str) -> None:
        """Count an array as one more than its elements, so that empty ones are not free."""
        self.count_elements(path, length if self.flexible else f"{length} + 1")

    def reader(self, form: str) -> str:
        name = "r_" + form.replace("?", "z")
        self.globals[name] = struct.Struct(">" + form).unpack_from
        return name

    def packer(self, form: str) -> str:
        name = "w_" + form.replace("?", "z")
        self.globals[name] = struct.Struct(">" + form).pack
        return name

    @property
    def pad(self) -> int:
        """Bytes of the open run."""
        return struct.calcsize(">" + "".join(form for form, _ in self.run))

    def plus(self, pad: int) -> str:
        return f"p + {pad}" if pad else "p"

    def require(self, count: str | int) -> None:
        """Wait for `count` bytes from `p` on, or for the frame's end. A whole frame has them."""

    def flush(self) -> None:
        """Skip the open run, reading the values that are needed."""
        if not self.run:
            return
        size = self.pad
        self.require(size)
        targets = [local for _, local in self.run if local]
        if targets:
            form = "".join(form if local else f"{struct.calcsize('>' + form)}x" for form, local in self.run)
            self.emit(f"{', '.join(targets)}, = {self.reader(form)}(b, p)")
        self.emit(f"p += {size}")
        self.run = []

    def header(self) -> None:
        if self.embedded:
            return
        if self.plan.direction is Direction.REQUEST:
            self.run.append(("12s", ""))
            self.skip_sized("string", "client id", flexible=False)
        else:
            self.run.append(("8s", ""))
        if self.plan.header_flexible:
            self.skip_tags()

    def length(self, form: str, *, flexible: bool) -> str:
        """Read a length or count into a local: plus one if flexible, so that 0 is null."""
        name = self.fresh("n")
        if flexible:
            pad = self.pad
            self.require(pad + UVARINT_BYTES_MAX)
            if any(local for _, local in self.run):
                self.run.append(("B", name))
                self.flush()
            else:
                self.emit(f"{name} = b[{self.plus(pad)}]; p += {pad + 1}")
                self.run = []
            self.emit(f"if {name} > 127: {name}, p = uv(b, p, {name})")
        else:
            self.run.append((form, name))
            self.flush()
        return name

    def skip(self, count: str) -> None:
        """The body of an `if`: skip `count` bytes."""
        self.emit(f"  p += {count}")

    def skip_sized(self, form: str, path: str, *, flexible: bool) -> None:
        name = self.length("h" if form == "string" else "i", flexible=flexible)
        if flexible:
            self.emit(f"if {name} > 1:")
            self.skip(f"{name} - 1")
        else:
            self.emit(f"if {name} > 0:")
            self.skip(name)
            self.emit(f"elif {name} < -1: negative({path!r}, {name})")

    def skip_array(self, op: Op, size: int) -> None:
        """Skip an array of fixed-size elements; without a loop, its count needs no check."""
        name = self.length("i", flexible=self.flexible)
        # Those in an embedded message are numbers that the broker does not read, and bytes are cheap.
        if size > 1 and not self.embedded:
            self.count_array(op.path, name)
        if self.flexible:
            self.emit(f"if {name} > 1:")
            self.skip(f"({name} - 1) * {size}")
        else:
            self.emit(f"if {name} > 0:")
            self.skip(f"{name} * {size}")
            self.emit(f"elif {name} < -1: negative({op.path!r}, {name})")

    def skip_tags(self) -> None:
        if any(local for _, local in self.run):
            self.flush()
        pad = self.pad
        with self.block(f"if b[{self.plus(pad)}]:"):
            self.count_elements("tagged fields", f"tag_count(b, {self.plus(pad)}, end)")
            self.emit(f"p = skip_tags(b, {self.plus(pad)}, end)")
        self.emit(f"else: p += {pad + 1}")
        self.run = []

    def records(self, op: Op) -> None:
        name = self.length("i", flexible=self.flexible)
        less = " - 1" if self.flexible else ""
        if self.observed is not None and RECORD_BYTES in self.observed.row:
            self.emit(f"record_bytes = {name}{less}")
            self.emit("if record_bytes < 0: record_bytes = 0")
            if LAST_OFFSET_DELTA in self.observed.row:
                values, header = "last_offset_delta, max_timestamp", self.reader("23xi8xq")
                self.require(BATCH_HEADER_BYTES)
                self.emit("last_offset_delta = max_timestamp = -1")
                self.emit(f"if record_bytes >= {BATCH_HEADER_BYTES}: {values} = {header}(b, p)")
        self.emit(f"if {name} > {1 if self.flexible else 0}:")
        self.skip(f"{name}{less}")
        if not self.flexible:
            self.emit(f"elif {name} < -1: negative({op.path!r}, {name})")

    def observe_message(self, block: Block) -> None:
        """Report the message's own values as soon as its first array is reached."""
        observed = self.observed
        if observed is None or not observed.head or block.op.code not in (OpCode.ARRAY, OpCode.TAGS):
            return
        self.flush()
        self.emit(f"seen.append(({self.observed_values(self.plan.message, observed.head)}))")
        self.observed = replace(observed, head=()) if observed.array else None

    def observed_values(self, path: str, names: tuple[str, ...]) -> str:
        special = {TOPIC: "topic"} | {name: name for name in (RECORD_BYTES, LAST_OFFSET_DELTA, MAX_TIMESTAMP)}
        absent = {"Name": "None", "TopicId": "None"}
        values = [
            special.get(name) or self.field_locals.get(f"{path}.{name}") or absent.get(name, "-1")
            for name in names
        ]
        return ", ".join(values) + ","

    def observe_element(self, op: Op) -> None:
        if self.observed is not None and op.path == self.row_path:
            self.flush()
            self.emit(f"seen.append(({self.observed_values(op.path, self.observed.row)}))")
