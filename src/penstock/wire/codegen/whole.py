"""Source of a splicer for frames that have arrived completely: one function per plan and set of kinds.

    whole(b, p, end, o, names, seen) -> s

`b[p:end]` is a frame with its size field. The bytes from `s` to `p` are not written yet. A name that
changes appends this span and then the new name to the list `o`. The function returns the last `s`, from
which the caller writes the rest. An unchanged frame appends nothing and returns its start. The values of
`field_observer` go to `seen`.

Lengths, counts and sizes are written in canonical encoding. Reading past the buffer raises. Slices are
checked against the frame's end, counts against the bytes left, and the end of the walk against the frame's
last byte, so nothing loops or grows beyond the frame.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.wire import splice_runtime
from penstock.wire.codegen.walk import BOUND_ONCE, Block, WalkWriter, blocks
from penstock.wire.field_observer import OBSERVED_FIELDS
from penstock.wire.field_rules import Kind
from penstock.wire.plans import Direction, Op, OpCode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from penstock.wire.plans import Plan

SLICE_ELEMENTS: Final = 250  # about a quarter of a millisecond
# If one of these has no counterpart on the other side, its element still cannot be omitted.
_NEVER_OMITTED: Final = frozenset(
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
        Kind.FETCH_BYTES,
    )
)
# Values of a fixed size that may have no counterpart on the other side.
_FIXED_OR_NONE: Final = frozenset((Kind.TOPIC_ID, Kind.REPLICA_ID, Kind.FOLLOWER))


class WholeWriter(WalkWriter):
    """Writes the splicer of whole frames; `stream.StreamWriter` overrides how bytes are obtained."""

    function = "whole"
    count_piece = "-1"  # the local of where the current array's count is in `o`

    def write(self) -> None:
        """The function `whole`, or `sliced`."""
        self.lines = [f"def {self.function}(b, p, end, o, names, seen):"]
        self.emit("s = p; k0 = len(o)")
        self.limit_elements()
        self.bind_methods()
        self.header()
        self.body(blocks(self.plan.ops))
        self.flush()
        self.frame_end()
        self.emit("if len(o) > k0:")
        self.emit("  first = o[k0]; size = len(first) - 4 + end - s")
        self.emit("  size += len(o[-1]) if len(o) == k0 + 2 else sum(map(len, o[k0 + 1:]))")
        self.emit("  o[k0] = size_pack(size) + first[4:]")
        self.emit("return s")

    def frame_end(self) -> None:
        """Bytes after the last field are kept in a request and refused in a response.

        Brokers ignore them, and librdkafka (up to 2.16 at least) sends three in a Metadata request for
        all topics.
        """
        comparison = ">" if self.plan.direction is Direction.REQUEST else "!="
        self.emit(f"if p {comparison} end: trailing(end, p)")

    def write_embedded(self) -> None:
        """The function `embedded(b, names)`: a message in a byte string, after its version. Bytes after
        the message are kept."""
        self.lines = ["def embedded(b, names):", "  p = 2; s = 0; o = []; end = len(b)"]
        self.bind_methods()
        self.body(blocks(self.plan.ops))
        self.flush()
        self.emit("if p > end: short()")
        self.emit("return b''.join(o) + b[s:] if o else b")

    def body(self, inner_blocks: list[Block]) -> None:
        for block in inner_blocks:
            self.observe_message(block)
            op = block.op
            match op.code:
                case OpCode.FIXED:
                    self.fixed(op)
                case OpCode.SIZED:
                    self.sized(op)
                case OpCode.ENDPOINT:
                    self.endpoint(op)
                case OpCode.VALUES:
                    self.values(op)
                case OpCode.ARRAY:
                    self.array(block)
                case OpCode.OPTION:
                    self.option(block)
                case _:
                    self.tags(block)

    def sized(self, op: Op) -> None:
        if op.form == "records":
            self.records(op)
        elif self.renames(op) or op.path in self.field_locals:
            self.variable(op)
        else:
            self.skip_sized(op.form, op.path, flexible=self.flexible)

    def call(self, op: Op, value: str, end: str) -> str:
        """The call that renames `value`, with the fields that decide what it names as arguments."""
        arguments = [value]
        for discriminator in op.discriminators:
            if discriminator.follows:
                arguments.append(f"{self.reader('b')}(b, {end})[0]")
            elif discriminator.path:
                arguments.append(self.field_locals[discriminator.path])
            else:
                default = discriminator.default
                arguments.append(repr(default.encode() if isinstance(default, str) else default))
        function = f"f_{op.kind}" if op.kind in BOUND_ONCE else f"names.{op.kind}"
        return f"{function}({', '.join(arguments)})"

    def variable(self, op: Op) -> None:
        """A string or byte string that is renamed or whose value is needed."""
        flexible = self.flexible
        self.flush()
        a, e, x, y = (self.fresh(stem) for stem in ("a", "e", "x", "y"))
        self.emit(f"{a} = p")
        name = self.length("h" if op.form == "string" else "i", flexible=flexible)
        local = self.field_locals.get(op.path)
        if local:
            self.emit(f"{local} = None")
        with self.block(f"if {name} > {0 if flexible else -1}:"):
            behind = any(discriminator.follows for discriminator in op.discriminators)
            self.require_value(name, flexible=flexible, behind=behind, start=a)
            self.emit(f"{e} = p + {name}{' - 1' if flexible else ''}")
            self.emit(f"if {e} > end: short()")
            self.emit(f"{x} = b[p:{e}]")
            if self.renames(op):
                self.rename(op, a, e, x, y)
            if local:
                brokers_value = y if self.renames(op) and self.plan.direction is Direction.REQUEST else x
                self.emit(f"{local} = {brokers_value}")
            self.emit(f"p = {e}")
        if not flexible:
            self.emit(f"elif {name} < -1: negative({op.path!r}, {name})")
        if not op.nullable:
            self.emit(f"else: null({op.path!r})")

    def require_value(self, name: str, *, flexible: bool, behind: bool, start: str) -> None:
        """Wait for a value of length `name`, and the byte behind it if needed. Its length is at `start`."""

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
        with self.block(f"if {y} != {x}:"), self.unless_omitted(op, y):
            self.emit(f"o.append(b[s:{a}]); o.append({self.encoded(op, y)}); s = {e}")

    @contextmanager
    def unless_omitted(self, op: Op, y: str) -> Iterator[None]:
        """Handle None, which has no counterpart on the other side."""
        flag = self.omission_flags[-1] if self.omission_flags else ""
        if flag:
            self.emit(f"if {y} is None: {flag} = True")
            with self.block("else:"):
                yield
        else:
            self.emit(f"if {y} is None: {self.refusal(op)}")
            yield

    def refusal(self, op: Op) -> str:
        name = self.fresh("refuse")
        is_request = self.plan.direction is Direction.REQUEST
        refuse = splice_runtime.refuse_request if is_request else splice_runtime.refuse_response
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
        """The local of the list that bytes are appended to."""
        return "o"

    def fixed(self, op: Op) -> None:
        local = self.field_locals.get(op.path, "")
        if not self.renames(op):
            self.run.append((op.form, local))
            return
        self.flush()
        size = struct.calcsize(">" + op.form)
        self.require(size)
        x = local or self.fresh("x")
        y = self.fresh("y")
        if op.form == "16s":
            self.emit(f"{x} = b[p:p + 16]")
        else:
            self.emit(f"{x}, = {self.reader(op.form)}(b, p)")
        # The zero topic id and the error code 0 carry nothing, so `Names` is not called for them.
        unless = {Kind.TOPIC_ID: f" if {x} != zero else {x}", Kind.ERROR: f" if {x} else 0"}
        self.emit(f"{y} = {self.call(op, x, 'p')}{unless.get(op.kind, '')}")
        packed = y if op.form == "16s" else f"{self.packer(op.form)}({y})"
        sink = self.sink()
        may_omit = self.unless_omitted(op, y) if op.kind in _FIXED_OR_NONE else nullcontext()
        with self.block(f"if {y} != {x}:"), may_omit:
            self.emit(f"{sink}.append(b[s:p]); {sink}.append({packed}); s = p + {size}")
            if local and self.plan.direction is Direction.REQUEST:
                self.emit(f"{local} = {y}")
        self.emit(f"p += {size}")

    def endpoint(self, op: Op) -> None:
        if not self.renames(op):
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
        host = f"compact({y}[1])" if self.flexible else f"{self.packer('h')}(len({y}[1])) + {y}[1]"
        whole = f"{self.packer('i')}({y}[0]) + {host} + {self.packer(op.form)}({y}[2])"
        with self.block(f"if {y} != ({i}, {h}, {port}):"), self.unless_omitted(op, y):
            self.emit(f"o.append(b[s:{a}]); o.append({whole}); s = p")

    def array_count(self, op: Op, smallest: int) -> str:
        """Read an array's count and check it against the bytes left; returns its expression, −1 for null."""
        name = self.length("i", flexible=self.flexible)
        count = f"{name} - 1" if self.flexible else name
        times = f" * {smallest}" if smallest > 1 else ""
        bracketed = f"({count})" if times and self.flexible else count
        self.emit(f"if {bracketed}{times} > end - p: count_too_large({op.path!r}, {count}, end - p)")
        if not self.flexible:
            self.emit(f"if {name} < -1: negative({op.path!r}, {name})")
        self.count_array(op.path, name)
        return count

    def values(self, op: Op) -> None:
        size = struct.calcsize(">" + op.form)
        if not self.renames(op):
            self.skip_array(op, size)
            return
        count = self.array_count(op, size)
        with self.block(f"for _ in range({count}):"):
            self.fixed(op)
            self.flush()

    def array(self, block: Block) -> None:
        op = block.op
        flat = self.fixed_element_size(block)
        if flat:
            self.skip_array(op, flat)
            return
        omits = self.can_omit(block)
        a, c, k, omitted = (self.fresh(stem) for stem in ("a", "c", "k", "omitted"))
        if omits:
            self.flush()
            self.emit(f"{a} = p - s; {k} = len(o); {omitted} = 0")
        count = self.array_count(op, 1)
        self.count_piece = k if omits else "-1"
        self.before_loop(block, count)
        if omits:
            self.emit(f"{c} = p - s")
        with self.block(f"for _ in range({count}):"):
            self.element(block, omits, omitted)
        if omits:
            left = f"{count} - {omitted}"
            written = f"uvarint({left} + 1)" if self.flexible else f"{self.packer('i')}({left})"
            self.emit(f"if {omitted}: recounted(o, {k}, {a}, {c}, {written})")

    def before_loop(self, block: Block, count: str) -> None:
        """Hook for streams, which write the frame's size before the first topic."""

    def element(self, block: Block, omits: bool, omitted: str) -> None:
        start = len(self.lines)
        flag, ke, se, pe = (self.fresh(stem) for stem in ("omitted", "k", "s", "p"))
        if omits:
            self.emit(f"{flag} = False; {ke} = len(o); {se} = s; {pe} = p")
        self.inside(block, flag if omits else "")
        if omits:
            self.emit(f"if {flag}:")
            self.emit(f"  del o[{ke}:]; o.append(b[{se}:{pe}]); s = p; {omitted} += 1; continue")
        self.observe_element(block.op)
        if len(self.lines) == start:
            self.emit("pass")

    def inside(self, block: Block, omission_flag: str) -> None:
        self.omission_flags.append(omission_flag)
        self.body(block.inner)
        self.flush()
        self.omission_flags.pop()

    def can_omit(self, block: Block) -> bool:
        """Only responses omit elements, and only if their size is not written yet."""
        if self.plan.direction is Direction.REQUEST and self.plan.api_key >= 0:
            return False
        observed = OBSERVED_FIELDS.get(self.plan.message)
        reported = observed is not None and block.op.path == f"{self.plan.message}.{observed.topic}"
        if reported or any(op.kind is Kind.RECORDS for op in block.descendants()):
            return False  # records are forwarded before the element has been read to its end
        return self.has_direct_names(block)

    def has_direct_names(self, block: Block) -> bool:
        own = (inner.op for inner in block.inner if inner.op.code is not OpCode.VALUES)
        return any(self.renames(op) and op.kind not in _NEVER_OMITTED for op in own)

    def fixed_element_size(self, block: Block) -> int:
        """Bytes of an element that has a fixed size and can be skipped; 0 for any other."""
        if self.flexible or self.row_path.startswith(block.op.path):
            return 0
        ops = [op for inner in block.inner for op in inner.descendants()]
        plain = all(
            op.code is OpCode.FIXED and not self.renames(op) and op.path not in self.field_locals
            for op in ops
        )
        return sum(struct.calcsize(">" + op.form) for op in ops) if plain else 0

    def option(self, block: Block) -> None:
        self.flush()
        there, start = self.fresh("n"), self.fresh("p")
        omits = self.can_omit(block)
        self.require(1)
        self.emit(f"{there} = b[p]; {start} = p; p += 1")
        with self.block(f"if {there} < 128:"):
            flag, ke, se = (self.fresh(stem) for stem in ("omitted", "k", "s"))
            if omits:
                self.emit(f"{flag} = False; {ke} = len(o); {se} = s")
            self.inside(block, flag if omits else "")
            if omits:
                self.emit(f"if {flag}:")
                self.emit(f"  del o[{ke}:]; o.append(b[{se}:{start}]); o.append(b'\\xff'); s = p")

    def tags(self, block: Block) -> None:
        relevant = self.walked_tags(block)
        if not relevant:
            self.skip_tags()
            return
        count = self.length("", flexible=True)
        self.count_elements("tagged fields", count)
        with self.block(f"for _ in range({count}) if {count} else ():"):
            tag_at = self.fresh("a")
            self.emit(f"{tag_at} = p")
            tag = self.length("", flexible=True)
            size_at = self.fresh("a")
            self.emit(f"{size_at} = p")
            size = self.length("", flexible=True)
            word = "if"
            for inner in relevant:
                with self.block(f"{word} {tag} == {inner.op.tag}:"):
                    self.known_tag(inner, tag_at, size_at, size)
                word = "elif"
            self.emit("else:")
            self.skip(size)

    def walked_tags(self, block: Block) -> list[Block]:
        """The known tagged fields that are read: in a response, those that contain a name to rewrite.

        In a request all of them. Brokers ignore the size of a field they know, so skipping one by the size a
        client claims could skip what a broker reads.
        """
        if self.plan.direction is Direction.REQUEST:
            return block.inner
        return [tag for tag in block.inner if any(self.renames(op) for op in tag.descendants())]

    def known_tag(self, tag: Block, tag_at: str, size_at: str, size: str) -> None:
        q, k, a, c = (self.fresh(stem) for stem in ("q", "k", "a", "c"))
        self.emit(f"{q} = p + {size}; {k} = len(o); {a} = {size_at} - s; {c} = p - s")
        self.emit(f"if {q} > end: short()")
        self.inside(tag, "")
        self.emit(f"if p != {q}: tag_size({tag.op.path!r})")
        self.emit(f"if len(o) > {k}: resized(o, {k}, {a}, {c}, p - s)")


class SlicedWriter(WholeWriter):
    """Writes the same as a generator, which pauses between elements of the outermost arrays.

    It yields the index in `o` of the piece that the array's count is in, −1 if the count does not change.
    Those after it may be joined meanwhile.
    """

    function = "sliced"
    nested = 0  # in elements, options and tagged fields

    def bind_methods(self) -> None:
        super().bind_methods()
        self.emit(f"turn = {SLICE_ELEMENTS}")
        self.emit("if turn < 0: yield")  # without an array, it is a generator as well

    def element(self, block: Block, omits: bool, omitted: str) -> None:
        self.emit("turn -= 1")
        if not self.nested:
            self.emit(f"if turn < 0: turn = {SLICE_ELEMENTS}; yield {self.count_piece}")
        super().element(block, omits, omitted)

    def inside(self, block: Block, omission_flag: str) -> None:
        self.nested += 1
        super().inside(block, omission_flag)
        self.nested -= 1


def sliced_splicer(plan: Plan, kinds: frozenset[Kind]) -> Callable[..., Generator[int, None, int]]:
    writer = SlicedWriter(plan, kinds, observed=False)
    writer.write()
    title = f"slice {plan.message} v{plan.version}"
    splicer: Callable[..., Generator[int, None, int]] = writer.compiled(writer.function, title)
    return splicer


def whole_splicer(
    plan: Plan, kinds: frozenset[Kind], *, observed: bool = False, elements_max: int | None = None
) -> Callable[..., int]:
    writer = WholeWriter(plan, kinds, observed=observed, elements_max=elements_max)
    writer.write()
    splicer: Callable[..., int] = writer.compiled("whole", f"splice {plan.message} v{plan.version}")
    return splicer


def embedded_splicer(plan: Plan, kinds: frozenset[Kind]) -> Callable[..., bytes]:
    writer = WholeWriter(plan, kinds, observed=False)
    writer.write_embedded()
    splicer: Callable[..., bytes] = writer.compiled("embedded", f"splice {plan.message} v{plan.version}")
    return splicer
