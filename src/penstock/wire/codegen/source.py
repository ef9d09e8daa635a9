"""Build a Python function from generated source, line by line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Source:
    """The lines of one function, and the global names they refer to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.serial = 0
        self.globals: dict[str, Any] = {}

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    @contextmanager
    def block(self, header: str = "") -> Iterator[None]:
        """Indent the lines emitted inside, below `header` if given."""
        if header:
            self.emit(header)
        self.depth += 1
        yield
        self.depth -= 1

    def fresh(self, stem: str) -> str:
        """A local name that is not used yet."""
        self.serial += 1
        return f"{stem}{self.serial}"

    def compiled(self, function: str, title: str) -> Any:
        """The function of this name; tracebacks show `title` as its file."""
        code = compile("\n".join(self.lines), f"<{title}>", "exec")
        exec(code, self.globals)  # noqa: S102  (the source is generated from Kafka's definitions alone)
        return self.globals[function]
