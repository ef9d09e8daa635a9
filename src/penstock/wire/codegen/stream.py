"""Source of a splicer for frames too large to buffer: the same plan as a generator.

    walk = stream(b, p, size, names, o, seen)
    next(walk) or walk.send((data, start, o))

It yields 0 when it needs more bytes. It yields n > 0 when the next n bytes need no rewriting, mostly
records: the caller forwards exactly those, then sends what follows. All state is in its locals, so it can
stop at any byte and reads only the one short field it stopped in twice. It returns (b, p, s): the frame
ended at `p`, and `b[s:p]` is not written yet.

A frame begins with its size, so the new size must be known before the names have arrived:

- Towards a broker, the length of every topic name is written one varint byte longer than necessary, so
  a frame grows by exactly topics × (growth + 1). Kafka accepts such lengths.
- Towards a client, lengths keep their width, and growth is minus the length of the prefix.
- Texts are cut or padded to their old size.
- Broker addresses at a frame's end are blanked (see `splice_runtime.hidden_tail`).

The header and the transactional id, which come before the first topic, are buffered until the size is
known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.wire.codegen.walk import Block, blocks
from penstock.wire.codegen.whole import WholeWriter
from penstock.wire.field_rules import Kind
from penstock.wire.plans import Direction, Op, OpCode
from penstock.wire.splice_runtime import PROLOGUE_BYTES_MAX, ROWS_MAX, TAIL_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from penstock.wire.plans import Plan

    StreamSplicer = Callable[..., Generator[int, tuple[bytes, int, list[Any]], tuple[bytes, int, int]]]


class StreamWriter(WholeWriter):
    """Writes the splicer of streams: bytes are awaited, and sizes are fixed in advance."""

    size_written = False  # whether the new size of the frame is already in `o`
    frame_written = False  # whether the rest of the frame is
    width = tag_width = size_width = ""  # locals of the widths of varints just read

    def write(self) -> None:
        """The generator function `stream`."""
        self.lines = ["def stream(b, p, size, names, o, seen):"]
        self.emit("m = memoryview(b); n = len(b); end = p + 4 + size; s = p + 4; g = 0; h = []")
        self.emit(f"t = {self.growth()}")
        self.limit_elements()
        self.bind_methods()
        self.header()
        self.body(blocks(self.plan.ops))
        self.flush()
        self.frame_end()
        if self.plan.direction is Direction.REQUEST:
            self.emit("if p < end:")
            self.skip("end - p")
        self.emit("return b, p, s")

    def growth(self) -> str:
        """The expression of the bytes that each topic adds to the frame."""
        named = any(op.kind is Kind.TOPIC and self.renames(op) for op in self.plan.ops)
        if not named:
            return "0"
        return f"names.topic_growth + {self.widening}"

    @property
    def widening(self) -> int:
        return int(self.flexible and self.plan.direction is Direction.REQUEST)

    def sink(self) -> str:
        return "o" if self.size_written else "h"

    def require(self, count: str | int) -> None:
        with self.block(f"while n - p < {count} and n < end:"):
            if self.size_written:
                self.emit("if s < p: o.append(m[s:p]); s = p")
            else:
                self.emit(f"if n - s > {PROLOGUE_BYTES_MAX}: too_long('header', {PROLOGUE_BYTES_MAX})")
            self.emit("d, i, o = yield 0")
            self.emit("if s < n: d = b[s:n] + (d[i:] if i else d); i = 0")
            self.emit("p += i - s; end += i - s; s = i; b = d; m = memoryview(b); n = len(b)")

    def skip(self, count: str) -> None:
        with self.block():
            if self.size_written:
                self.emit(f"p += {count}")
                with self.block("if p > n:"):
                    self.emit("if p > end: short()")
                    self.emit("if s < n: o.append(m[s:n])")
                    self.emit("i = end - p; b, p, o = yield p - n")
                    self.emit("s = p; end = p + i; m = memoryview(b); n = len(b)")
            else:
                self.emit(f"if {count} > end - p: short()")
                self.require(count)
                self.emit(f"p += {count}")

    def require_value(self, name: str, *, flexible: bool, behind: bool, start: str) -> None:
        width, size = self.fresh("w"), self.fresh("z")
        self.emit(f"{size} = {name}{' - 1' if flexible else ''}; {width} = p - {start}")
        self.emit(f"if {size} > end - p: short()")
        # Step back, so that the length is not forwarded before its new value is known.
        self.emit(f"p = {start}")
        self.require(f"{width} + {size} + {int(behind)}")
        self.emit(f"{start} = p; p += {width}")
        self.width = width

    def variable(self, op: Op) -> None:
        self.flush()
        self.require(5)
        super().variable(op)

    def rename(self, op: Op, a: str, e: str, x: str, y: str) -> None:
        if not self.size_written:
            self.rename_held(op, a, e, x, y)
            return
        self.emit(f"{y} = {self.call(op, x, e)}")
        if op.kind is Kind.TEXT:
            self.emit(f"if {y} != {x}: o.append(m[s:p]); o.append(fitted({y}, len({x}))); s = {e}")
            return
        assert op.kind is Kind.TOPIC, f"{op.path}: a {op.kind} cannot change inside a stream"
        self.emit(f"if {y} is None: {self.refusal(op)}")
        self.emit(f"if len({y}) - len({x}) != names.topic_growth:")
        self.emit(f"  growth_broken(len({y}) - len({x}), names.topic_growth)")
        if self.flexible:
            length = f"padded(len({y}) + 1, {self.width} + {self.widening})"
        else:
            length = f"{self.packer('h')}(len({y}))"
        self.emit(f"o.append(m[s:{a}]); o.append({length} + {y}); s = {e}")

    def rename_held(self, op: Op, a: str, e: str, x: str, y: str) -> None:
        """Before the frame's size is written, a value may change its length freely."""
        self.emit(f"{y} = {self.call(op, x, e)}")
        with self.block(f"if {y} != {x}:"):
            if op.kind is Kind.TEXT:
                absent = self.encoded_null(op) if op.nullable else repr(self.empty(op))
                self.emit(f"i = {self.encoded(op, y)} if {y} is not None else {absent}")
            else:
                self.emit(f"if {y} is None: {self.refusal(op)}")
                self.emit(f"i = {self.encoded(op, y)}")
            self.emit(f"h.append(b[s:{a}]); h.append(i); g += len(i) - ({e} - {a}); s = {e}")

    def before_loop(self, block: Block, count: str) -> None:
        carries = any(op.kind is Kind.RECORDS for op in block.descendants())
        if self.size_written or not carries:
            return
        self.emit(f"o.append(size_pack(size + g + t * max({count}, 0))); o += h")
        self.size_written = True

    def observe_element(self, op: Op) -> None:
        super().observe_element(op)
        if self.observed is not None and op.path == self.row_path:
            self.emit(f"if len(seen) > {ROWS_MAX}: too_long('list of partitions', {ROWS_MAX})")

    def can_omit(self, block: Block) -> bool:
        return False

    def array(self, block: Block) -> None:
        if not any(inner.op.kind is Kind.ENDPOINT and self.renames(inner.op) for inner in block.inner):
            super().array(block)
            return
        self.flush()
        self.emit(f"if end - p > {TAIL_BYTES_MAX}: too_long('list of addresses', {TAIL_BYTES_MAX})")
        self.require("end - p")
        self.emit("o.append(m[s:p]); o.append(hidden_tail(b[p:end])); s = p = end")
        self.frame_written = True

    def body(self, inner_blocks: list[Block]) -> None:
        for block in inner_blocks:
            if not self.frame_written:
                super().body([block])

    def endpoint(self, op: Op) -> None:
        if self.renames(op):
            raise AssertionError(f"{op.path}: an address cannot change inside a stream")
        super().endpoint(op)

    def known_tag(self, tag: Block, tag_at: str, size_at: str, size: str) -> None:
        if self.has_addresses(tag):
            self.blank_tag(size)
            return
        left = self.fresh("q")
        self.emit(f"{left} = end - p - {size}")
        self.emit(f"if {left} < 0: short()")
        self.body(tag.inner)
        self.flush()
        self.emit(f"if end - p != {left}: tag_size({tag.op.path!r})")

    def has_addresses(self, block: Block) -> bool:
        return any(op.kind is Kind.ENDPOINT and self.renames(op) for op in block.descendants())

    def blank_tag(self, size: str) -> None:
        """Replace a tagged field by an unknown one of the same size, filled with zeros. Its tag and size keep
        the widths they had."""
        self.emit(f"if {size} > {TAIL_BYTES_MAX}: too_long('list of addresses', {TAIL_BYTES_MAX})")
        self.emit(f"if {size} > end - p: short()")
        self.require(size)
        self.emit(f"o.append(blank_field({self.tag_width}, padded({size}, {self.size_width})))")
        self.emit(f"o.append(bytes({size})); p += {size}; s = p")

    def tags(self, block: Block) -> None:
        relevant = self.walked_tags(block)
        count = self.length("", flexible=True)
        self.count_elements("tagged fields", count)
        with self.block(f"for _ in range({count}) if {count} else ():"):
            # Tag and size together, so that neither is forwarded before both are known.
            self.require(10)
            start = self.fresh("a")
            self.emit(f"{start} = p")
            tag, self.tag_width = self.varint_here(start)
            middle = self.fresh("a")
            self.emit(f"{middle} = p")
            size, self.size_width = self.varint_here(middle)
            word = "if"
            for inner in relevant:
                with self.block(f"{word} {tag} == {inner.op.tag}:"):
                    if self.has_addresses(inner):
                        self.emit(f"if s < {start}: o.append(m[s:{start}])")
                        self.emit("s = p")
                    self.known_tag(inner, start, middle, size)
                word = "elif"
            self.emit("else:" if relevant else "if True:")
            self.skip(size)

    def skip_tags(self) -> None:
        self.tags(Block(Op(OpCode.TAGS, "tags")))

    def varint_here(self, start: str) -> tuple[str, str]:
        """Read a varint whose bytes have arrived; returns its local and that of its width."""
        name, width = self.fresh("n"), self.fresh("w")
        self.emit(f"{name} = b[p]; p += 1")
        self.emit(f"if {name} > 127: {name}, p = uv(b, p, {name})")
        self.emit(f"{width} = p - {start}")
        return name, width


def stream_splicer(
    plan: Plan, kinds: frozenset[Kind], *, observed: bool = False, elements_max: int | None = None
) -> StreamSplicer:
    writer = StreamWriter(plan, kinds, observed=observed, elements_max=elements_max)
    writer.write()
    splicer: StreamSplicer = writer.compiled("stream", f"stream {plan.message} v{plan.version}")
    return splicer
