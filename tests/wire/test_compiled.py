"""The compiled data path runs only if it matches its sources, and behaves as they do."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.wire.compiled import (
    FAILED_FILE,
    FOLDER,
    MODULES,
    SOURCES_FILE,
    VARIABLE,
    DataPath,
    data_path_in,
    source_listing,
)
from tools.compile_data_path import sources

ROOT = Path(__file__).resolve().parent.parent.parent
# Tests of the modules that every frame passes through; some compare them with a second implementation.
FRAMES = ("tests/gateway/test_session.py", "tests/gateway/test_fast_path.py")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Two sources, and a listing that claims code was compiled from them."""
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(f"NAME = {name!r}\n")
    (tmp_path / SOURCES_FILE).write_text(source_listing(sorted(tmp_path.glob("*.py")), tmp_path))
    return tmp_path


def test_code_compiled_from_the_current_sources_is_used(package: Path) -> None:
    assert data_path_in(package, package) is DataPath.COMPILED


def test_a_source_with_another_time_but_the_same_bytes_is_unchanged(package: Path) -> None:
    os.utime(package / "one.py", (1, 1))

    assert data_path_in(package, package) is DataPath.COMPILED


def test_code_compiled_from_a_source_that_changed_is_not_used(package: Path) -> None:
    (package / "two.py").write_text("NAME = 'two.px'\n")  # as long as before

    assert data_path_in(package, package) is DataPath.STALE


def test_code_compiled_from_a_source_that_was_deleted_is_not_used(package: Path) -> None:
    (package / "two.py").unlink()

    assert data_path_in(package, package) is DataPath.STALE


def test_without_compiled_code_the_sources_run(tmp_path: Path) -> None:
    assert data_path_in(tmp_path, tmp_path) is DataPath.PYTHON


def test_a_package_in_an_archive_has_no_compiled_code(tmp_path: Path) -> None:
    archive = tmp_path / "penstock.zip"
    archive.write_bytes(b"PK")

    assert data_path_in(archive / "penstock" / ".compiled", archive / "penstock") is DataPath.PYTHON


def test_the_sources_include_the_modules_that_compiled_ones_import() -> None:
    names = {path.name for path in sources()}

    assert {module.rpartition(".")[2] + ".py" for module in MODULES} <= names
    assert {"states.py", "codec_runtime.py"} <= names  # constants of other modules are compiled in


def test_the_last_compilation_did_not_fail() -> None:
    failed = FOLDER / FAILED_FILE

    assert not failed.exists(), failed.read_text()[-4_000:]


@pytest.mark.parametrize("variant", ["python", ""])
def test_the_environment_variable_chooses_the_variant_that_is_imported(variant: str) -> None:
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
    assert set(compiled) == {not variant and data_path_in(FOLDER) is DataPath.COMPILED}


@pytest.mark.skipif(
    data_path_in(FOLDER) is not DataPath.COMPILED, reason="THE DATA PATH IS NOT COMPILED HERE"
)
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
