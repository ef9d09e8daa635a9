"""Finding Java, and building its command lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet import java
from penstock.fleet.java import Java, argument_file, find_java, jvm_flags
from penstock.fleet.spec import Jit
from penstock.model.errors.fleet import JavaMissing, JavaTooOld

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def make_java(tmp_path: Path) -> Callable[..., Path]:
    """A directory like a Java runtime, with a `release` file and a `java` that prints something."""

    def make(*, release: str | None = None, prints: str | None = None, mode: int = 0o755) -> Path:
        home = tmp_path / "jdk"
        (home / "bin").mkdir(parents=True)
        if release is not None:
            (home / "release").write_text(release)
        script = home / "bin" / "java"
        script.write_text(f"#!/bin/sh\necho {shlex.quote(prints or '')} >&2\n")
        script.chmod(mode)
        return home

    return make


def test_java_home_comes_before_the_path(make_java: Callable[..., Path]) -> None:
    home = make_java(release='IMPLEMENTOR="x"\nJAVA_VERSION="21.0.3"\n')

    java = find_java({"JAVA_HOME": str(home), "PATH": "/nowhere"})

    assert java == Java(home / "bin" / "java", "21.0.3")


def test_without_java_home_the_path_is_used(make_java: Callable[..., Path]) -> None:
    home = make_java(release='JAVA_VERSION="17.0.1"')

    for environment in ({"PATH": str(home / "bin")}, {"PATH": str(home / "bin"), "JAVA_HOME": ""}):
        assert find_java(environment).version == "17.0.1"


def test_a_symbolic_link_is_resolved(make_java: Callable[..., Path], tmp_path: Path) -> None:
    home = make_java(release='JAVA_VERSION="17.0.1"')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert find_java({"PATH": str(tmp_path / "bin")}).executable == home / "bin" / "java"


@pytest.mark.parametrize("release", [None, "", 'JAVA_VERSION=""', 'JAVA_VERSION="unknown"'])
def test_without_a_release_file_java_is_run_to_get_its_version(
    make_java: Callable[..., Path], release: str | None
) -> None:
    home = make_java(release=release, prints='openjdk version "18.0.2" 2022-07-19')

    assert find_java({"JAVA_HOME": str(home)}).version == "18.0.2"


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("21", 21), ("22-ea", 22), ("11.0.2+9", 11), ("1.8.0_392", 8), ("1.8", 8)],
)
def test_the_major_version_is_parsed_from_any_form(version: str, major: int) -> None:
    assert Java(Path("/j"), version).major == major


@pytest.mark.parametrize("version", ["11.0.22", "1.8.0_392", "16"])
def test_an_old_java_is_an_error_with_both_versions(make_java: Callable[..., Path], version: str) -> None:
    home = make_java(release=f'JAVA_VERSION="{version}"')

    with pytest.raises(JavaTooOld) as caught:
        find_java({"JAVA_HOME": str(home)})

    assert str(caught.value) == f"{home}/bin/java is Java {version}; Kafka needs 17 or newer (PEN-2002)"
    assert "JAVA_HOME" in caught.value.advice


def test_a_missing_java_is_an_error_that_names_the_searched_place(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=r"there is no `java` on the PATH \(PEN-2001\)"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(JavaMissing, match="JAVA_HOME=/gone has no bin/java"):
        find_java({"JAVA_HOME": "/gone", "PATH": "/usr/bin"})


def test_a_java_that_is_a_directory_is_an_error(make_java: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "other" / "bin" / "java").mkdir(parents=True)

    with pytest.raises(JavaMissing):
        find_java({"JAVA_HOME": str(tmp_path / "other")})


def test_a_java_that_cannot_run_is_an_error_with_the_reason(make_java: Callable[..., Path]) -> None:
    home = make_java()
    (home / "bin" / "java").write_bytes(b"\x7fELF of another machine")

    with pytest.raises(JavaMissing, match="Exec format error"):
        find_java({"JAVA_HOME": str(home)})


def test_a_java_without_a_version_is_an_error(make_java: Callable[..., Path]) -> None:
    home = make_java(prints="The operation couldn't be completed. Unable to locate a Java Runtime.")

    with pytest.raises(JavaMissing, match="does not report its version"):
        find_java({"JAVA_HOME": str(home)})


def test_two_runtimes_never_share_an_archive() -> None:
    assert Java(Path("/a"), "17.0.1").fingerprint != Java(Path("/a"), "17.0.2").fingerprint
    assert Java(Path("/a"), "17.0.1").fingerprint != Java(Path("/b"), "17.0.1").fingerprint


def test_small_heaps_use_the_serial_collector_and_large_ones_g1() -> None:
    assert "-XX:+UseSerialGC" in jvm_flags(heap_mb=384, jit=Jit.QUICK, archive=None)
    assert "-XX:+UseG1GC" in jvm_flags(heap_mb=4096, jit=Jit.QUICK, archive=None)
    assert "-Xmx384m" in jvm_flags(heap_mb=384, jit=Jit.QUICK, archive=None)


def test_only_quick_mode_limits_the_compiler() -> None:
    assert "-XX:TieredStopAtLevel=1" in jvm_flags(heap_mb=384, jit=Jit.QUICK, archive=None)
    assert "-XX:TieredStopAtLevel=1" not in jvm_flags(heap_mb=384, jit=Jit.FULL, archive=None)


def test_an_existing_archive_is_used() -> None:
    assert "-XX:SharedArchiveFile=/c.jsa" in jvm_flags(heap_mb=384, jit=Jit.FULL, archive=Path("/c.jsa"))
    assert not [f for f in jvm_flags(heap_mb=384, jit=Jit.FULL, archive=None) if "Archive" in f]


_printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20)


@given(st.lists(_printable, min_size=1, max_size=5))
def test_an_argument_file_preserves_its_arguments(words: list[str]) -> None:
    lines = argument_file(words).splitlines()

    assert [shlex.split(line) for line in lines] == [[word] for word in words]


def test_no_metric_is_dropped_by_the_rules_that_make_scrapes_cheap() -> None:
    rules = yaml.safe_load((Path(java.__file__).parent / "jmx.yaml").read_text())["rules"]
    dropped = [re.compile(rule["pattern"]) for rule in rules if not rule["name"]]
    samples = [f"{_sample(rule['pattern'])}: 0" for rule in rules if rule["name"]]

    assert dropped
    assert [text for text in samples if any(pattern.search(text) for pattern in dropped)] == []


def _sample(pattern: str) -> str:
    """An attribute that the pattern matches."""
    for expression, text in {
        r"(\d+)": "1",
        r"(\w+)": "Produce",
        r"(\S+)": "INTERNAL",
        "(.+)": "orders",
    }.items():
        pattern = pattern.replace(expression, text)
    return pattern.removesuffix(":")
