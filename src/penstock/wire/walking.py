"""Walking a plan to write source: what all splicers share, which is how to pass over things.

`Walker` writes the reading of lengths, the passing over of fields that nobody asks about, and the
facts of `watch` that are kept on the way. A run of fixed-size fields costs one addition, or one
`unpack_from` if some of their values are kept.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.wire import spans
from penstock.wire.plans import OPENING, Code, Direction, Op
from penstock.wire.primitives import UVARINT_BYTES_MAX, uvarint
from penstock.wire.rules import Kind
from penstock.wire.watch import BATCH_HEADER_BYTES, LAST_OFFSET_DELTA, RECORD_BYTES, TOPIC, WATCHES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.wire.plans import Plan

_CALLED: Final = (
    "skip_tags",
    "resized",
    "recounted",
    "compact",
    "padded",
    "fitted",
    "blank_field",
    "hidden_tail",
    "short",
    "trailing",
    "negative",
    "null",
    "count_lies",
    "tag_size",
    "too_long",
    "grew",
)
# Their methods are looked up once a frame rather than once a name.
BOUND_EARLY: Final = frozenset((Kind.TOPIC, Kind.TOPIC_ID, Kind.GROUP, Kind.BROKER_ID))


@dataclass(slots=True)
class Block:
    """An op, and what its block holds if it opens one."""

    op: Op
    inner: list[Block] = field(default_factory=list)

    def everything(self) -> Iterable[Op]:
        yield self.op
        for block in self.inner:
            yield from block.everything()


def blocks(ops: tuple[Op, ...]) -> list[Block]:
    """The flat program as a tree."""
    top: list[Block] = []
    stack = [top]
    for op in ops:
        if op.code is Code.END:
            stack.pop()
            continue
        block = Block(op)
        stack[-1].append(block)
        if op.code in OPENING:
            stack.append(block.inner)
    return top


class Walker:
    def __init__(self, plan: Plan, kinds: frozenset[Kind], *, watched: bool) -> None:
        self.plan = plan
        self.kinds = kinds - {Kind.RECORDS, Kind.PLAIN}
        self.flexible = plan.flexible
        self.lines: list[str] = []
        self.depth = 1
        self.serial = 0
        self.run: list[tuple[str, str]] = []  # fixed values not yet passed: format, local or ""
        self.globals: dict[str, Any] = {name: getattr(spans, name) for name in _CALLED}
        self.globals |= {
            "uv": spans.uvarint_on,
            "uvarint": uvarint,
            "zero": bytes(16),
            "size_pack": struct.Struct(">i").pack,
        }
        self.watch = WATCHES.get(plan.message) if watched else None
        self.row_path = f"{plan.message}.{self.watch.array}" if self.watch and self.watch.array else ""
        self.taken: dict[str, str] = {}  # path of a field whose value is kept → its local
        self._choose_taken()
        self.drops: list[str] = []  # flags of the blocks around, innermost last; "" cannot be left out

    def _choose_taken(self) -> None:
        for op in self.plan.ops:
            if self.wanted(op):
                for beside in op.by:
                    if beside.path and not beside.follows:
                        self.taken[beside.path] = self.fresh("v")
        watch = self.watch
        if watch is None:
            return
        paths = {f"{self.plan.message}.{name}" for name in watch.head}
        paths |= {f"{self.row_path}.{name}" for name in watch.row if self.row_path}
        present = {op.path for op in self.plan.ops}
        for path in sorted(paths & present):
            self.taken.setdefault(path, self.fresh("v"))
        if TOPIC in watch.row:
            for name in ("Name", "Topic", "TopicId"):
                path = f"{self.plan.message}.{watch.topic}.{name}"
                if path in present:
                    self.taken[path] = "topic"

    def wanted(self, op: Op) -> bool:
        return op.kind in self.kinds

    def fresh(self, stem: str) -> str:
        self.serial += 1
        return f"{stem}{self.serial}"

    def early_kinds(self) -> frozenset[Kind]:
        """Kinds whose method is looked up once a frame rather than once a name."""
        return self.kinds & self.plan.kinds & BOUND_EARLY

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

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
        """Bytes of the run that is open."""
        return struct.calcsize(">" + "".join(form for form, _ in self.run))

    def plus(self, pad: int) -> str:
        return f"p + {pad}" if pad else "p"

    def need(self, count: str | int) -> None:
        """Make sure that so many bytes behind `p` are here, or the frame's last one."""

    def flush(self) -> None:
        """Pass the open run, keeping what is to be kept."""
        if not self.run:
            return
        size = self.pad
        self.need(size)
        targets = [local for _, local in self.run if local]
        if targets:
            form = "".join(form if local else f"{struct.calcsize('>' + form)}x" for form, local in self.run)
            self.emit(f"{', '.join(targets)}, = {self.reader(form)}(b, p)")
        self.emit(f"p += {size}")
        self.run = []

    def header(self) -> None:
        if self.plan.api_key < 0:
            return
        if self.plan.direction is Direction.REQUEST:
            self.run.append(("12s", ""))
            self.skip_sized("string", "client id", flexible=False)
        else:
            self.run.append(("8s", ""))
        if self.plan.header_flexible:
            self.skip_tags()

    def length(self, form: str, *, flexible: bool) -> str:
        """Read a length or count. Afterwards the local holds it plus one if flexible: 0 is null."""
        name = self.fresh("n")
        if flexible:
            pad = self.pad
            self.need(pad + UVARINT_BYTES_MAX)
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
        """The body of an `if`: pass over so many bytes."""
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
        """Past an array whose elements have a fixed size; no loop, so no count to be afraid of."""
        name = self.length("i", flexible=self.flexible)
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
        self.emit(f"if b[{self.plus(pad)}]: p = skip_tags(b, {self.plus(pad)}, end)")
        self.emit(f"else: p += {pad + 1}")
        self.run = []

    def records(self, op: Op) -> None:
        name = self.length("i", flexible=self.flexible)
        less = " - 1" if self.flexible else ""
        if self.watch is not None and RECORD_BYTES in self.watch.row:
            self.emit(f"record_bytes = {name}{less}")
            self.emit("if record_bytes < 0: record_bytes = 0")
            if LAST_OFFSET_DELTA in self.watch.row:
                delta = self.reader("23xi")
                self.need(BATCH_HEADER_BYTES)
                self.emit("last_offset_delta = -1")
                self.emit(f"if record_bytes >= {BATCH_HEADER_BYTES}: last_offset_delta, = {delta}(b, p)")
        self.emit(f"if {name} > {1 if self.flexible else 0}:")
        self.skip(f"{name}{less}")
        if not self.flexible:
            self.emit(f"elif {name} < -1: negative({op.path!r}, {name})")

    def head_row(self, block: Block) -> None:
        """The facts of the message itself, reported as soon as its first array is reached."""
        watch = self.watch
        if watch is None or not watch.head or block.op.code not in (Code.ARRAY, Code.TAGS):
            return
        self.flush()
        self.emit(f"seen.append(({self.facts(self.plan.message, watch.head)}))")
        self.watch = None if not watch.array else type(watch)((), watch.array, watch.row, watch.topic)

    def facts(self, path: str, names: tuple[str, ...]) -> str:
        special = {
            TOPIC: "topic",
            RECORD_BYTES: "record_bytes",
            LAST_OFFSET_DELTA: "last_offset_delta",
        }
        absent = {"Name": "None", "TopicId": "None"}
        found = [
            special.get(name) or self.taken.get(f"{path}.{name}") or absent.get(name, "-1") for name in names
        ]
        return ", ".join(found) + ","

    def row(self, op: Op) -> None:
        if self.watch is not None and op.path == self.row_path:
            self.flush()
            self.emit(f"seen.append(({self.facts(op.path, self.watch.row)}))")


def compiled(source: str, function: str, names: dict[str, Any], title: str) -> Callable[..., Any]:
    code = compile(source, f"<{title}>", "exec")
    exec(code, names)  # noqa: S102  (the source is made from Kafka's definitions alone)
    made: Callable[..., Any] = names[function]
    return made
