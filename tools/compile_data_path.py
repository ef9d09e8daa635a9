"""`python -m tools.compile_data_path`: compile the data path of gateway and OLEP with mypyc.

Needs a C compiler and Python's headers, and prints one line with the outcome. Without them, and if
compiling fails, the sources run as plain Python. The compiler's output is then kept in `FAILED_FILE`, and
`tests/wire/test_compiled.py` fails with it.
"""

from __future__ import annotations

import ast
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.wire.compiled import (
    FAILED_FILE,
    FOLDER,
    MODULES,
    PACKAGE,
    SOURCES_FILE,
    DataPath,
    data_path_in,
    source_listing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
GROUP = "penstock.wire.compiled"  # all modules become one library, built into the folder of this package
OUTPUT = "output"  # the folder of the compiled modules below the scratch directory
BUILD = "--build"  # runs the compiler in a separate process: it prints and changes global state


def main(arguments: list[str]) -> int:
    if arguments[:1] == [BUILD]:
        build(Path(arguments[1]))
        return 0
    if data_path_in(FOLDER) is DataPath.COMPILED:
        print("data path: compiled and up to date")
        return 0
    shutil.rmtree(FOLDER, ignore_errors=True)
    if missing := missing_prerequisite():
        print(f"data path: plain Python, since {missing}")
        return 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "tools.compile_data_path", BUILD, scratch]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            FOLDER.mkdir(parents=True)
            (FOLDER / FAILED_FILE).write_text(done.stdout + done.stderr)
            log = (FOLDER / FAILED_FILE).relative_to(ROOT)
            print(f"data path: plain Python, since compiling failed; see {log}")
            return 0
        output = Path(scratch) / OUTPUT
        (output / SOURCES_FILE).write_text(source_listing(sources()))
        FOLDER.parent.mkdir(exist_ok=True)
        shutil.rmtree(FOLDER, ignore_errors=True)  # a concurrent run may have finished first
        shutil.move(output, FOLDER)
    print(f"data path: compiled in {time.monotonic() - start:.0f} s")
    return 0


def missing_prerequisite() -> str:
    """What compiling needs and this machine lacks, or an empty string."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's headers are not installed"
    return ""


def build(scratch: Path) -> None:
    from mypyc.build import mypycify
    from setuptools import setup  # type: ignore[import-untyped]  # its stubs are not installed

    paths = [str(path_of(module).relative_to(ROOT)) for module in MODULES]
    options = ["--config-file=pyproject.toml", f"--cache-dir={scratch / 'types'}"]
    extensions = mypycify(
        [*options, *paths],
        only_compile_paths=paths,
        group_name=GROUP,
        opt_level="3",
        target_dir=str(scratch / "source"),
    )
    for extension in extensions:
        extension.extra_compile_args += ["-fvisibility=hidden"]
    arguments = ["build_ext", "--build-lib", str(scratch / OUTPUT), "--build-temp", str(scratch / "objects")]
    setup(name="penstock-data-path", ext_modules=extensions, packages=[], script_args=arguments)


def sources() -> list[Path]:
    """The modules and all of ours that they import, since constants and types of those are compiled in."""
    paths: dict[str, Path] = {}
    waiting = [*MODULES]
    while waiting:
        module = waiting.pop()
        path = path_of(module)
        if module not in paths and path.exists():
            paths[module] = path
            waiting += imported(path)
    return sorted(paths.values())


def path_of(module: str) -> Path:
    location = PACKAGE.parent.joinpath(*module.split("."))
    return location / "__init__.py" if location.is_dir() else location.with_suffix(".py")


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
