"""The compiled pump: used if it is of these very sources, and doing the same as they do."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.wire.pump import FAILED_FILE, FOLDER, MODULES, SOURCES_FILE, VARIABLE, Pump, described, state_of
from tools.pump import sources

ROOT = Path(__file__).resolve().parent.parent.parent
# What all bytes pass through, and what is held against a second implementation of it.
FRAMES = ("tests/gateway/test_session.py", "tests/gateway/test_repeats.py")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Two sources, and code that says it was compiled from them."""
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(f"NAME = {name!r}\n")
    (tmp_path / SOURCES_FILE).write_text(described(sorted(tmp_path.glob("*.py")), tmp_path))
    return tmp_path


def test_code_of_these_sources_is_used(package: Path) -> None:
    assert state_of(package, package) is Pump.COMPILED


def test_a_source_with_another_time_and_the_same_bytes_is_the_same(package: Path) -> None:
    os.utime(package / "one.py", (1, 1))

    assert state_of(package, package) is Pump.COMPILED


def test_code_of_a_source_that_was_changed_is_not_used(package: Path) -> None:
    (package / "two.py").write_text("NAME = 'two.px'\n")  # as long as before

    assert state_of(package, package) is Pump.STALE


def test_code_of_a_source_that_is_gone_is_not_used(package: Path) -> None:
    (package / "two.py").unlink()

    assert state_of(package, package) is Pump.STALE


def test_without_compiled_code_the_sources_are_run(tmp_path: Path) -> None:
    assert state_of(tmp_path, tmp_path) is Pump.PYTHON


def test_a_package_in_an_archive_has_no_compiled_code(tmp_path: Path) -> None:
    archive = tmp_path / "penstock.zip"
    archive.write_bytes(b"PK")

    assert state_of(archive / "penstock" / ".compiled", archive / "penstock") is Pump.PYTHON


def test_what_is_compiled_in_is_looked_at_as_well() -> None:
    names = {path.name for path in sources()}

    assert {module.rpartition(".")[2] + ".py" for module in MODULES} <= names
    assert {"states.py", "primitives.py"} <= names  # constants of other modules are compiled in


def test_the_compiler_had_nothing_to_complain_of() -> None:
    failed = FOLDER / FAILED_FILE

    assert not failed.exists(), failed.read_text()[-4_000:]


@pytest.mark.parametrize("variant", ["python", ""])
def test_imports_find_what_is_meant(variant: str) -> None:
    script = f"import importlib; print(*(importlib.import_module(m).__file__ for m in {MODULES}))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, VARIABLE: variant, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )

    compiled = [path.endswith(tuple(EXTENSION_SUFFIXES)) for path in done.stdout.split()]
    assert len(compiled) == len(MODULES)
    assert set(compiled) == {not variant and state_of(FOLDER) is Pump.COMPILED}


@pytest.mark.skipif(state_of(FOLDER) is not Pump.COMPILED, reason="THE PUMP IS NOT COMPILED HERE")
@pytest.mark.timeout(300)
def test_the_other_variant_passes_the_same_tests() -> None:
    spec = find_spec(MODULES[0])
    assert spec is not None
    assert spec.origin is not None
    other = "python" if spec.origin.endswith(tuple(EXTENSION_SUFFIXES)) else ""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--budget=never", *FRAMES]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, VARIABLE: other}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout[-4_000:]
