"""The help of every command, kept in tests/cli/golden so that a change of it is seen and meant.

python -m tests.cli.snapshots       # rewrites the files; read the diff before you commit
"""

from __future__ import annotations

import contextlib
import io
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.app import command_tree, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cyclopts import App

GOLDEN = Path(__file__).with_name("golden")
COLUMNS = "100"


def nodes(tree: App | None = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every place of the command tree, by the words that lead there."""
    app = command_tree() if tree is None else tree
    yield path
    for name in app:
        if not name.startswith("-"):
            yield from nodes(app[name], (*path, name))


@cache
def help_of(words: tuple[str, ...]) -> str:
    """What `--help` prints, at a fixed width and without trailing blanks."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    os.environ |= {"COLUMNS": COLUMNS, "NO_COLOR": "1"}
    os.environ.pop("FORCE_COLOR", None)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            assert run([*words, "--help"]) == 0
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip() + "\n"


def golden_path(words: tuple[str, ...]) -> Path:
    return GOLDEN / f"{'-'.join(('penstock', *words))}.txt"


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    expected = {golden_path(words): help_of(words) for words in nodes()}
    for path in GOLDEN.glob("*.txt"):
        if path not in expected:
            path.unlink()
    for path, text in expected.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
