"""Source code of a splicer for whole frames: one plan, for one set of kinds, as one function.

    whole(b, p, end, o, names, seen) -> s

`b[p:end]` is a frame with its size field. Bytes pass in spans: what lies between `s` and the walk
has not been written yet, and a name that changes writes the span before it, then the new name,
to the list `o`. The function returns the last `s`; the caller writes the rest with whatever
follows. An unchanged frame writes nothing, and `s` is its start. `seen` takes the facts of `watch`.

Lengths, counts and sizes come out canonical. Bounds: reading past the buffer raises, a slice is
held against the frame's end, a count against the bytes left, and the walk must not end behind the
frame's last byte, so nothing loops or grows beyond the frame.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.wire import spans
from penstock.wire.plans import Code, Direction, Op
from penstock.wire.rules import Kind
from penstock.wire.walking import BOUND_EARLY, Block, Walker, blocks, compiled
from penstock.wire.watch import WATCHES

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.wire.plans import Plan

# Kinds whose absence on the other side cannot be shown by leaving the element out.
_NEVER_LEFT_OUT: Final = frozenset(
    (
        Kind.TEXT,
        Kind.BROKER_ID,
        Kind.REPLICA_ID,
        Kind.PORT,
        Kind.OPERATIONS,
        Kind.THROTTLE,
        Kind.ERROR,
        Kind.SESSION,
        Kind.SESSION_EPOCH,
    )
)


class Emitter(Walker):
    """Writes the splicer of whole frames; `streaming.StreamEmitter` overrides how bytes are had."""

    # Functions

    def function(self) -> str:
        self.lines = ["def whole(b, p, end, o, names, seen):"]
        self.emit("s = p; k0 = len(o)")
        for kind in sorted(self.early_kinds()):
            self.emit(f"f_{kind} = names.{kind}")
        self.header()
        self.body(blocks(self.plan.ops))
        self.flush()
        self.frame_end()
        self.emit("if len(o) > k0:")
        self.emit("  first = o[k0]; size = len(first) - 4 + end - s")
        self.emit("  size += len(o[-1]) if len(o) == k0 + 2 else sum(map(len, o[k0 + 1:]))")
        self.emit("  o[k0] = size_pack(size) + first[4:]")
        self.emit("return s")
        return "\n".join(self.lines)

    def frame_end(self) -> None:
        """Brokers read no further than the last field, and librdkafka (up to 2.16 at least) leaves three
        bytes behind it in a Metadata request for all topics. So those of a request pass as they are."""
        behind = ">" if self.plan.direction is Direction.REQUEST else "!="
        self.emit(f"if p {behind} end: trailing(end, p)")

    def embedded_function(self) -> str:
        """embedded(b, names): a message inside a byte string, behind its version; what follows it stays."""
        self.lines = ["def embedded(b, names):", "  p = 2; s = 0; o = []; end = len(b)"]
        for kind in sorted(self.early_kinds()):
            self.emit(f"f_{kind} = names.{kind}")
        self.body(blocks(self.plan.ops))
        self.flush()
        self.emit("if p > end: short()")
        self.emit("return b''.join(o) + b[s:] if o else b")
        return "\n".join(self.lines)

    def body(self, inside: list[Block]) -> None:
        for block in inside:
            self.head_row(block)
            op = block.op
            match op.code:
                case Code.FIXED:
                    self.fixed(op)
                case Code.SIZED:
                    self.sized(op)
                case Code.ENDPOINT:
                    self.endpoint(op)
                case Code.VALUES:
                    self.values(op)
                case Code.ARRAY:
                    self.array(block)
                case Code.OPTION:
                    self.option(block)
                case _:
                    self.tags(block)

    def sized(self, op: Op) -> None:
        if op.form == "records":
            self.records(op)
        elif self.wanted(op) or op.path in self.taken:
            self.slot(op)
        else:
            self.skip_sized(op.form, op.path, flexible=self.flexible)

    def call(self, op: Op, value: str, end: str) -> str:
        """The call that renames `value`; the fields that decide over it are handed over, too."""
        arguments = [value]
        for beside in op.by:
            if beside.follows:
                arguments.append(f"{self.reader('b')}(b, {end})[0]")
            elif beside.path:
                arguments.append(self.taken[beside.path])
            else:
                default = beside.default
                arguments.append(repr(default.encode() if isinstance(default, str) else default))
        function = f"f_{op.kind}" if op.kind in BOUND_EARLY else f"names.{op.kind}"
        return f"{function}({', '.join(arguments)})"

    def slot(self, op: Op) -> None:
        """A string or byte string that is renamed, or whose value is kept, or both."""
        flexible = self.flexible
        self.flush()
        a, e, x, y = (self.fresh(stem) for stem in ("a", "e", "x", "y"))
        self.emit(f"{a} = p")
        name = self.length("h" if op.form == "string" else "i", flexible=flexible)
        kept = self.taken.get(op.path)
        if kept:
            self.emit(f"{kept} = None")
        self.emit(f"if {name} > {0 if flexible else -1}:")
        self.depth += 1
        self.have(name, flexible=flexible, behind=any(beside.follows for beside in op.by), start=a)
        self.emit(f"{e} = p + {name}{' - 1' if flexible else ''}")
        self.emit(f"if {e} > end: short()")
        self.emit(f"{x} = b[p:{e}]")
        if self.wanted(op):
            self.rename(op, a, e, x, y)
        if kept:
            as_broker_knows = y if self.wanted(op) and self.plan.direction is Direction.REQUEST else x
            self.emit(f"{kept} = {as_broker_knows}")
        self.emit(f"p = {e}")
        self.depth -= 1
        if not flexible:
            self.emit(f"elif {name} < -1: negative({op.path!r}, {name})")
        if not op.nullable:
            self.emit(f"else: null({op.path!r})")

    def have(self, name: str, *, flexible: bool, behind: bool, start: str) -> None:
        """Make sure that a value of length `name` is here; `start` names where its length began."""

    def rename(self, op: Op, a: str, e: str, x: str, y: str) -> None:
        if op.kind is Kind.TEXT:
            self.emit(f"{y} = {self.call(op, x, e)} if {x} else {x}")
            self.emit(f"if {y} != {x}:")
            absent = self.encoded_null(op) if op.nullable else repr(self.empty(op))
            self.emit(f"  o.append(b[s:{a}])")
            self.emit(f"  o.append({self.encoded(op, y)} if {y} is not None else {absent})")
            self.emit(f"  s = {e}")
            return
        self.emit(f"{y} = {self.call(op, x, e)}")
        self.emit(f"if {y} != {x}:")
        self.depth += 1
        opened = self.unless_left_out(op, y)
        self.emit(f"o.append(b[s:{a}]); o.append({self.encoded(op, y)}); s = {e}")
        self.depth -= 1 + opened

    def unless_left_out(self, op: Op, y: str) -> int:
        """None means that the value has no place on the other side; how many blocks were opened."""
        flag = self.drops[-1] if self.drops else ""
        if not flag:
            self.emit(f"if {y} is None: {self.refusal(op)}")
            return 0
        self.emit(f"if {y} is None: {flag} = True")
        self.emit("else:")
        self.depth += 1
        return 1

    def refusal(self, op: Op) -> str:
        name = self.fresh("refuse")
        refuse = spans.refuse_request if self.plan.direction is Direction.REQUEST else spans.refuse_answer
        self.globals[name] = partial(refuse, op.path, op.kind)
        return f"{name}()"

    def empty(self, op: Op) -> bytes:
        return b"\x01" if self.flexible else bytes(2 if op.form == "string" else 4)

    def encoded_null(self, op: Op) -> str:
        return repr(b"\0" if self.flexible else b"\xff" * (2 if op.form == "string" else 4))

    def encoded(self, op: Op, y: str) -> str:
        if self.flexible:
            return f"compact({y})"
        return f"{self.packer('h' if op.form == 'string' else 'i')}(len({y})) + {y}"

    def sink(self) -> str:
        """The list that bytes are written to."""
        return "o"

    def fixed(self, op: Op) -> None:
        kept = self.taken.get(op.path, "")
        if not self.wanted(op):
            self.run.append((op.form, kept))
            return
        self.flush()
        size = struct.calcsize(">" + op.form)
        self.need(size)
        x = kept or self.fresh("x")
        y = self.fresh("y")
        if op.form == "16s":
            self.emit(f"{x} = b[p:p + 16]")
        else:
            self.emit(f"{x}, = {self.reader(op.form)}(b, p)")
        # No id is no name, and no error is no news: neither is asked about.
        unless = {Kind.TOPIC_ID: f" if {x} != zero else {x}", Kind.ERROR: f" if {x} else 0"}
        self.emit(f"{y} = {self.call(op, x, 'p')}{unless.get(op.kind, '')}")
        self.emit(f"if {y} != {x}:")
        self.depth += 1
        opened = self.unless_left_out(op, y) if op.kind is Kind.TOPIC_ID else 0
        packed = y if op.form == "16s" else f"{self.packer(op.form)}({y})"
        sink = self.sink()
        self.emit(f"{sink}.append(b[s:p]); {sink}.append({packed}); s = p + {size}")
        if kept and self.plan.direction is Direction.REQUEST:
            self.emit(f"{kept} = {y}")
        self.depth -= 1 + opened
        self.emit(f"p += {size}")

    def endpoint(self, op: Op) -> None:
        if not self.wanted(op):
            self.run.append(("i", ""))
            self.skip_sized("string", op.path, flexible=self.flexible)
            self.run.append((op.form, ""))
            return
        self.flush()
        a, i, h, y = (self.fresh(stem) for stem in ("a", "i", "h", "y"))
        self.emit(f"{a} = p; {i}, = {self.reader('i')}(b, p); p += 4")
        name = self.length("h", flexible=self.flexible)
        self.emit(f"if {name} < {1 if self.flexible else 0}: null({op.path!r})")
        self.emit(f"{h} = b[p:p + {name}{' - 1' if self.flexible else ''}]; p += len({h})")
        port = self.fresh("q")
        size = struct.calcsize(">" + op.form)
        self.emit(f"{port}, = {self.reader(op.form)}(b, p); p += {size}")
        self.emit(f"{y} = {self.call(op, f'{i}, {h}, {port}', 'p')}")
        self.emit(f"if {y} != ({i}, {h}, {port}):")
        self.depth += 1
        opened = self.unless_left_out(op, y)
        host = f"compact({y}[1])" if self.flexible else f"{self.packer('h')}(len({y}[1])) + {y}[1]"
        whole = f"{self.packer('i')}({y}[0]) + {host} + {self.packer(op.form)}({y}[2])"
        self.emit(f"o.append(b[s:{a}]); o.append({whole}); s = p")
        self.depth -= 1 + opened

    def counted(self, op: Op, smallest: int) -> str:
        """Read an array's count and hold it against the bytes left; the expression of it, −1 for null."""
        name = self.length("i", flexible=self.flexible)
        count = f"{name} - 1" if self.flexible else name
        times = f" * {smallest}" if smallest > 1 else ""
        bracketed = f"({count})" if times and self.flexible else count
        self.emit(f"if {bracketed}{times} > end - p: count_lies({op.path!r}, {count}, end - p)")
        if not self.flexible:
            self.emit(f"if {name} < -1: negative({op.path!r}, {name})")
        return count

    def values(self, op: Op) -> None:
        size = struct.calcsize(">" + op.form)
        if not self.wanted(op):
            self.skip_array(op, size)
            return
        count = self.counted(op, size)
        self.emit(f"for _ in range({count}):")
        self.depth += 1
        self.fixed(op)
        self.flush()
        self.depth -= 1

    def array(self, block: Block) -> None:
        op = block.op
        flat = self.flat_size(block)
        if flat:
            self.skip_array(op, flat)
            return
        leaves_out = self.can_leave_out(block)
        a, c, k, gone = (self.fresh(stem) for stem in ("a", "c", "k", "gone"))
        if leaves_out:
            self.flush()
            self.emit(f"{a} = p - s; {k} = len(o); {gone} = 0")
        count = self.counted(op, 1)
        self.before_loop(block, count)
        if leaves_out:
            self.emit(f"{c} = p - s")
        self.emit(f"for _ in range({count}):")
        self.depth += 1
        self.element(block, leaves_out, gone)
        self.depth -= 1
        if leaves_out:
            left = f"{count} - {gone}"
            written = f"uvarint({left} + 1)" if self.flexible else f"{self.packer('i')}({left})"
            self.emit(f"if {gone}: recounted(o, {k}, {a}, {c}, {written})")

    def before_loop(self, block: Block, count: str) -> None:
        """A hook for streams, which announce their size where the first topic is about to come."""

    def element(self, block: Block, leaves_out: bool, gone: str) -> None:
        start = len(self.lines)
        flag, ke, se, pe = (self.fresh(stem) for stem in ("gone", "k", "s", "p"))
        if leaves_out:
            self.emit(f"{flag} = False; {ke} = len(o); {se} = s; {pe} = p")
        self.drops.append(flag if leaves_out else "")
        self.body(block.inner)
        self.flush()
        self.drops.pop()
        if leaves_out:
            self.emit(f"if {flag}:")
            self.emit(f"  del o[{ke}:]; o.append(b[{se}:{pe}]); s = p; {gone} += 1; continue")
        self.row(block.op)
        if len(self.lines) == start:
            self.emit("pass")

    def can_leave_out(self, block: Block) -> bool:
        """Only answers lose elements, and only where no size was announced before they were seen."""
        if self.plan.direction is Direction.REQUEST and self.plan.api_key >= 0:
            return False
        watch = WATCHES.get(self.plan.message)
        reported = watch is not None and block.op.path == f"{self.plan.message}.{watch.topic}"
        if reported or any(op.kind is Kind.RECORDS for op in block.everything()):
            return False  # the data path: what is inside is out before the element is seen to its end
        return self.has_own_names(block)

    def has_own_names(self, block: Block) -> bool:
        own = (inner.op for inner in block.inner if inner.op.code is not Code.VALUES)
        return any(self.wanted(op) and op.kind not in _NEVER_LEFT_OUT for op in own)

    def flat_size(self, block: Block) -> int:
        """Bytes of an element that is of a fixed size and of no interest; 0 if it is not."""
        if self.flexible or self.row_path.startswith(block.op.path):
            return 0
        ops = [op for inner in block.inner for op in inner.everything()]
        plain = all(op.code is Code.FIXED and not self.wanted(op) and op.path not in self.taken for op in ops)
        return sum(struct.calcsize(">" + op.form) for op in ops) if plain else 0

    def option(self, block: Block) -> None:
        self.flush()
        there, start = self.fresh("n"), self.fresh("p")
        leaves_out = self.can_leave_out(block)
        self.need(1)
        self.emit(f"{there} = b[p]; {start} = p; p += 1")
        self.emit(f"if {there} < 128:")
        self.depth += 1
        flag, ke, se = (self.fresh(stem) for stem in ("gone", "k", "s"))
        if leaves_out:
            self.emit(f"{flag} = False; {ke} = len(o); {se} = s")
        self.drops.append(flag if leaves_out else "")
        self.body(block.inner)
        self.flush()
        self.drops.pop()
        if leaves_out:
            self.emit(f"if {flag}:")
            self.emit(f"  del o[{ke}:]; o.append(b[{se}:{start}]); o.append(b'\\xff'); s = p")
        self.depth -= 1

    def tags(self, block: Block) -> None:
        of_interest = self.tags_of_interest(block)
        if not of_interest:
            self.skip_tags()
            return
        count = self.length("", flexible=True)
        self.emit(f"for _ in range({count}):")
        self.depth += 1
        tag_at = self.fresh("a")
        self.emit(f"{tag_at} = p")
        tag = self.length("", flexible=True)
        size_at = self.fresh("a")
        self.emit(f"{size_at} = p")
        size = self.length("", flexible=True)
        word = "if"
        for inner in of_interest:
            self.emit(f"{word} {tag} == {inner.op.tag}:")
            self.depth += 1
            self.known_tag(inner, tag_at, size_at, size)
            self.depth -= 1
            word = "elif"
        self.emit("else:")
        self.skip(size)
        self.depth -= 1

    def tags_of_interest(self, block: Block) -> list[Block]:
        """The known tagged fields that have a wanted name in them."""
        return [tag for tag in block.inner if any(self.wanted(op) for op in tag.everything())]

    def known_tag(self, tag: Block, tag_at: str, size_at: str, size: str) -> None:
        q, k, a, c = (self.fresh(stem) for stem in ("q", "k", "a", "c"))
        self.emit(f"{q} = p + {size}; {k} = len(o); {a} = {size_at} - s; {c} = p - s")
        self.emit(f"if {q} > end: short()")
        self.drops.append("")
        self.body(tag.inner)
        self.flush()
        self.drops.pop()
        self.emit(f"if p != {q}: tag_size({tag.op.path!r})")
        self.emit(f"if len(o) > {k}: resized(o, {k}, {a}, {c}, p - s)")


def whole_splicer(plan: Plan, kinds: frozenset[Kind], *, watched: bool = False) -> Callable[..., int]:
    emitter = Emitter(plan, kinds, watched=watched)
    source = emitter.function()
    return compiled(source, "whole", emitter.globals, f"splice {plan.message} v{plan.version}")


def embedded_splicer(plan: Plan, kinds: frozenset[Kind]) -> Callable[..., bytes]:
    emitter = Emitter(plan, kinds, watched=False)
    source = emitter.embedded_function()
    return compiled(source, "embedded", emitter.globals, f"splice {plan.message} v{plan.version}")
