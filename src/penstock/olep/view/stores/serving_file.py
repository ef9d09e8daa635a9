"""The small file that names the serving generation of a view, for stores in a directory."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read_serving(directory: Path, view: str) -> int | None:
    """The serving generation; None before the first run."""
    try:
        return int((directory / f"{view}.serving").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def write_serving(directory: Path, view: str, generation: int) -> None:
    replace_file(directory / f"{view}.serving", str(generation))


def replace_file(path: Path, text: str) -> None:
    """Replaces a file atomically and durably."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
