"""`python -m tools.pump`: compile the gateway's data path, where a C compiler and Python's headers are.

Says in one line what it did. Without a compiler, and if it fails, the same sources are run as they are;
what the compiler said is then kept beside where its work would be, and a test shows it.
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

from penstock.wire.pump import FAILED_FILE, FOLDER, MODULES, PACKAGE, SOURCES_FILE, Pump, described, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
GROUP = "penstock.wire.pump"  # all modules are one library, which stands in the folder of this package
BUILD = "--build"  # for the process that compiles: compilers print, and change the process they run in


def main(words: list[str]) -> int:
    if words[:1] == [BUILD]:
        build(Path(words[1]))
        return 0
    if state_of(FOLDER) is Pump.COMPILED:
        print("pump: compiled, and of these sources")
        return 0
    shutil.rmtree(FOLDER, ignore_errors=True)
    if missing := what_is_missing():
        print(f"pump: plain Python, since {missing}")
        return 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "tools.pump", BUILD, scratch]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            FOLDER.mkdir(parents=True)
            (FOLDER / FAILED_FILE).write_text(done.stdout + done.stderr)
            print(
                f"pump: plain Python, since compiling failed; see {(FOLDER / FAILED_FILE).relative_to(ROOT)}"
            )
            return 0
        made = Path(scratch) / "made"
        (made / SOURCES_FILE).write_text(described(sources()))
        FOLDER.parent.mkdir(exist_ok=True)
        shutil.rmtree(FOLDER, ignore_errors=True)  # somebody else's, who was quicker
        shutil.move(made, FOLDER)
    print(f"pump: compiled in {time.monotonic() - begin:.0f} s")
    return 0


def what_is_missing() -> str:
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's headers are not installed"
    return ""


def build(scratch: Path) -> None:
    from mypyc.build import mypycify
    from setuptools import setup

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
    arguments = ["build_ext", "--build-lib", str(scratch / "made"), "--build-temp", str(scratch / "objects")]
    setup(name="pump", ext_modules=extensions, packages=[], script_args=arguments)


def sources() -> list[Path]:
    """The modules, and all of ours that they import: constants and types of those are compiled in."""
    found: dict[str, Path] = {}
    waiting = [*MODULES]
    while waiting:
        module = waiting.pop()
        path = path_of(module)
        if module not in found and path.exists():
            found[module] = path
            waiting += imported(path)
    return sorted(found.values())


def path_of(module: str) -> Path:
    place = PACKAGE.parent.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
