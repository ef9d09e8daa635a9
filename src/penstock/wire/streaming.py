"""Source code of a splicer for frames that are too large to hold: the same plan, as a generator.

    walk = stream(b, p, size, names, o, seen)
    next(walk) or walk.send((data, start, o))

It yields 0 when it needs more bytes, and n > 0 when the next n bytes are records, or as good as:
the caller passes exactly those on, then sends what follows them. All of its state is in its locals,
so it can stop at any byte and never walks one twice (but for the one short field it stopped in).
It returns (b, p, s): the frame ended at `p`, and `b[s:p]` is still to be written.

The new size stands before anything else, so it has to be known before the names are seen:

- towards a broker every length of a topic name is written one varint byte longer than it came, so
  that a frame grows by exactly topics × (growth + 1); Kafka takes such lengths for what they are;
- towards a client the width stays as it came, and growth is what the prefix takes away;
- texts are cut or padded to the size they had;
- broker addresses at a frame's end are blanked (see `spans.hidden_tail`).

What comes before the first topic is held until the size is known: header and transactional id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.wire.plans import Code, Direction, Op
from penstock.wire.rules import Kind
from penstock.wire.spans import PROLOGUE_BYTES_MAX, ROWS_MAX, TAIL_BYTES_MAX
from penstock.wire.splicing import Emitter
from penstock.wire.walking import Block, blocks, compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from penstock.wire.plans import Plan


class StreamEmitter(Emitter):
    sized_yet = False  # has the frame's size been written?

    def function(self) -> str:
        self.lines = ["def stream(b, p, size, names, o, seen):"]
        self.emit("m = memoryview(b); n = len(b); end = p + 4 + size; s = p + 4; g = 0; h = []")
        self.emit(f"t = {self.growth()}")
        for kind in sorted(self.early_kinds()):
            self.emit(f"f_{kind} = names.{kind}")
        self.header()
        self.body(blocks(self.plan.ops))
        self.flush()
        self.frame_end()
        if self.plan.direction is Direction.REQUEST:
            self.emit("if p < end:")
            self.skip("end - p")
        self.emit("return b, p, s")
        return "\n".join(self.lines)

    def growth(self) -> str:
        """Bytes that each topic adds to the frame."""
        named = any(op.kind is Kind.TOPIC and self.wanted(op) for op in self.plan.ops)
        if not named:
            return "0"
        return f"names.topic_growth + {self.widening}"

    @property
    def widening(self) -> int:
        return int(self.flexible and self.plan.direction is Direction.REQUEST)

    def sink(self) -> str:
        return "o" if self.sized_yet else "h"

    # How bytes are had

    def need(self, count: str | int) -> None:
        self.emit(f"while n - p < {count} and n < end:")
        self.depth += 1
        if self.sized_yet:
            self.emit("if s < p: o.append(m[s:p]); s = p")
        else:
            self.emit(f"if n - s > {PROLOGUE_BYTES_MAX}: too_long('header', {PROLOGUE_BYTES_MAX})")
        self.emit("d, i, o = yield 0")
        self.emit("if s < n: d = b[s:n] + (d[i:] if i else d); i = 0")
        self.emit("p += i - s; end += i - s; s = i; b = d; m = memoryview(b); n = len(b)")
        self.depth -= 1

    def skip(self, count: str) -> None:
        self.depth += 1
        if self.sized_yet:
            self.emit(f"p += {count}")
            self.emit("if p > n:")
            self.depth += 1
            self.emit("if p > end: short()")
            self.emit("if s < n: o.append(m[s:n])")
            self.emit("i = end - p; b, p, o = yield p - n")
            self.emit("s = p; end = p + i; m = memoryview(b); n = len(b)")
            self.depth -= 1
        else:
            self.emit(f"if {count} > end - p: short()")
            self.need(count)
            self.emit(f"p += {count}")
        self.depth -= 1

    def have(self, name: str, *, flexible: bool, behind: bool, start: str) -> None:
        width, size = self.fresh("w"), self.fresh("z")
        self.emit(f"{size} = {name}{' - 1' if flexible else ''}; {width} = p - {start}")
        self.emit(f"if {size} > end - p: short()")
        # Step back, so that the length is not written before its new value is known.
        self.emit(f"p = {start}")
        self.need(f"{width} + {size} + {int(behind)}")
        self.emit(f"{start} = p; p += {width}")
        self.width = width

    width = ""

    def slot(self, op: Op) -> None:
        self.flush()
        self.need(5)
        super().slot(op)

    # What changes, and by how much

    def rename(self, op: Op, a: str, e: str, x: str, y: str) -> None:
        if not self.sized_yet:
            self.rename_held(op, a, e, x, y)
            return
        self.emit(f"{y} = {self.call(op, x, e)}")
        if op.kind is Kind.TEXT:
            self.emit(f"if {y} != {x}: o.append(m[s:p]); o.append(fitted({y}, len({x}))); s = {e}")
            return
        assert op.kind is Kind.TOPIC, f"{op.path}: a {op.kind} cannot change inside a stream"
        self.emit(f"if {y} is None: {self.refusal(op)}")
        self.emit(f"if len({y}) - len({x}) != names.topic_growth:")
        self.emit(f"  grew(len({y}) - len({x}), names.topic_growth)")
        if self.flexible:
            length = f"padded(len({y}) + 1, {self.width} + {self.widening})"
        else:
            length = f"{self.packer('h')}(len({y}))"
        self.emit(f"o.append(m[s:{a}]); o.append({length} + {y}); s = {e}")

    def rename_held(self, op: Op, a: str, e: str, x: str, y: str) -> None:
        """Before the size is written a value may become as long as it likes."""
        self.emit(f"{y} = {self.call(op, x, e)}")
        self.emit(f"if {y} != {x}:")
        self.depth += 1
        if op.kind is Kind.TEXT:
            absent = self.encoded_null(op) if op.nullable else repr(self.empty(op))
            self.emit(f"i = {self.encoded(op, y)} if {y} is not None else {absent}")
        else:
            self.emit(f"if {y} is None: {self.refusal(op)}")
            self.emit(f"i = {self.encoded(op, y)}")
        self.emit(f"h.append(b[s:{a}]); h.append(i); g += len(i) - ({e} - {a}); s = {e}")
        self.depth -= 1

    def before_loop(self, block: Block, count: str) -> None:
        carries = any(op.kind is Kind.RECORDS for op in block.everything())
        if self.sized_yet or not carries:
            return
        self.emit(f"o.append(size_pack(size + g + t * max({count}, 0))); o += h")
        self.sized_yet = True

    def row(self, op: Op) -> None:
        super().row(op)
        if self.watch is not None and op.path == self.row_path:
            self.emit(f"if len(seen) > {ROWS_MAX}: too_long('list of partitions', {ROWS_MAX})")

    def can_leave_out(self, block: Block) -> bool:
        return False

    def array(self, block: Block) -> None:
        if not any(inner.op.kind is Kind.ENDPOINT and self.wanted(inner.op) for inner in block.inner):
            super().array(block)
            return
        self.flush()
        self.emit(f"if end - p > {TAIL_BYTES_MAX}: too_long('list of addresses', {TAIL_BYTES_MAX})")
        self.need("end - p")
        self.emit("o.append(m[s:p]); o.append(hidden_tail(b[p:end])); s = p = end")
        self.ended = True

    ended = False  # the rest of the frame is written

    def body(self, inside: list[Block]) -> None:
        for block in inside:
            if not self.ended:
                super().body([block])

    def endpoint(self, op: Op) -> None:
        if self.wanted(op):
            raise AssertionError(f"{op.path}: an address cannot change inside a stream")
        super().endpoint(op)

    # Tagged fields

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
        return any(op.kind is Kind.ENDPOINT and self.wanted(op) for op in block.everything())

    def blank_tag(self, size: str) -> None:
        """Same size, another tag, and nothing in it. What holds its number and size came in one byte each
        or more; both are written again in the width they had."""
        self.emit(f"if {size} > {TAIL_BYTES_MAX}: too_long('list of addresses', {TAIL_BYTES_MAX})")
        self.emit(f"if {size} > end - p: short()")
        self.need(size)
        self.emit(f"o.append(blank_field({self.tag_width}, padded({size}, {self.size_width})))")
        self.emit(f"o.append(bytes({size})); p += {size}; s = p")

    tag_width = size_width = ""

    def tags(self, block: Block) -> None:
        of_interest = self.tags_of_interest(block)
        count = self.length("", flexible=True)
        self.emit(f"for _ in range({count}) if {count} else ():")
        self.depth += 1
        # Number and size together, so that neither is written before both are known.
        self.need(10)
        start = self.fresh("a")
        self.emit(f"{start} = p")
        tag, self.tag_width = self.varint_here(start)
        middle = self.fresh("a")
        self.emit(f"{middle} = p")
        size, self.size_width = self.varint_here(middle)
        word = "if"
        for inner in of_interest:
            self.emit(f"{word} {tag} == {inner.op.tag}:")
            self.depth += 1
            if self.has_addresses(inner):
                self.emit(f"if s < {start}: o.append(m[s:{start}])")
                self.emit("s = p")
            self.known_tag(inner, start, middle, size)
            self.depth -= 1
            word = "elif"
        self.emit("else:" if of_interest else "if True:")
        self.skip(size)
        self.depth -= 1

    def skip_tags(self) -> None:
        self.tags(Block(Op(Code.TAGS, "tags")))

    def varint_here(self, start: str) -> tuple[str, str]:
        """A varint whose bytes are known to be here; its local, and the local of its width."""
        name, width = self.fresh("n"), self.fresh("w")
        self.emit(f"{name} = b[p]; p += 1")
        self.emit(f"if {name} > 127: {name}, p = uv(b, p, {name})")
        self.emit(f"{width} = p - {start}")
        return name, width


def stream_splicer(
    plan: Plan, kinds: frozenset[Kind], *, watched: bool = False
) -> Callable[..., Generator[int, tuple[bytes, int, list[Any]], tuple[bytes, int, int]]]:
    emitter = StreamEmitter(plan, kinds, watched=watched)
    source = emitter.function()
    return compiled(source, "stream", emitter.globals, f"stream {plan.message} v{plan.version}")
