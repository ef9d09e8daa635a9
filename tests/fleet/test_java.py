"""Finding Java, and the command lines for it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet.java import Java, argument_file, find_java, jvm_flags
from penstock.fleet.spec import Jit
from penstock.model.errors.fleet import JavaMissing, JavaTooOld

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def make_java(tmp_path: Path) -> Callable[..., Path]:
    """A directory that looks like a Java runtime: a `release` file, a `java` that says something."""

    def make(*, release: str | None = None, says: str | None = None, mode: int = 0o755) -> Path:
        home = tmp_path / "jdk"
        (home / "bin").mkdir(parents=True)
        if release is not None:
            (home / "release").write_text(release)
        script = home / "bin" / "java"
        script.write_text(f"#!/bin/sh\necho {shlex.quote(says or '')} >&2\n")
        script.chmod(mode)
        return home

    return make


def test_java_home_comes_before_the_path(make_java: Callable[..., Path]) -> None:
    home = make_java(release='IMPLEMENTOR="x"\nJAVA_VERSION="21.0.3"\n')

    java = find_java({"JAVA_HOME": str(home), "PATH": "/nowhere"})

    assert java == Java(home / "bin" / "java", "21.0.3")


def test_without_java_home_the_path_serves(make_java: Callable[..., Path]) -> None:
    home = make_java(release='JAVA_VERSION="17.0.1"')

    for environment in ({"PATH": str(home / "bin")}, {"PATH": str(home / "bin"), "JAVA_HOME": ""}):
        assert find_java(environment).version == "17.0.1"


def test_a_link_leads_to_the_runtime_it_is_of(make_java: Callable[..., Path], tmp_path: Path) -> None:
    home = make_java(release='JAVA_VERSION="17.0.1"')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert find_java({"PATH": str(tmp_path / "bin")}).executable == home / "bin" / "java"


@pytest.mark.parametrize("release", [None, "", 'JAVA_VERSION=""', 'JAVA_VERSION="unknown"'])
def test_a_runtime_that_does_not_write_down_its_version_is_asked(
    make_java: Callable[..., Path], release: str | None
) -> None:
    home = make_java(release=release, says='openjdk version "18.0.2" 2022-07-19')

    assert find_java({"JAVA_HOME": str(home)}).version == "18.0.2"


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("21", 21), ("22-ea", 22), ("11.0.2+9", 11), ("1.8.0_392", 8), ("1.8", 8)],
)
def test_the_major_version_is_read_from_any_form_of_it(version: str, major: int) -> None:
    assert Java(Path("/j"), version).major == major


@pytest.mark.parametrize("version", ["11.0.22", "1.8.0_392", "16"])
def test_an_old_java_is_named_with_its_version_and_the_one_needed(
    make_java: Callable[..., Path], version: str
) -> None:
    home = make_java(release=f'JAVA_VERSION="{version}"')

    with pytest.raises(JavaTooOld) as caught:
        find_java({"JAVA_HOME": str(home)})

    assert str(caught.value) == f"{home}/bin/java is Java {version}, Kafka needs 17 or newer (PEN-2002)"
    assert "JAVA_HOME" in caught.value.advice


def test_a_missing_java_is_said_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=r"the PATH found no `java` \(PEN-2001\)"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(JavaMissing, match="JAVA_HOME=/gone found no"):
        find_java({"JAVA_HOME": "/gone", "PATH": "/usr/bin"})


def test_a_java_that_is_no_program_is_missing(make_java: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "other" / "bin" / "java").mkdir(parents=True)

    with pytest.raises(JavaMissing):
        find_java({"JAVA_HOME": str(tmp_path / "other")})


def test_a_java_that_cannot_be_run_is_missing_with_the_reason(make_java: Callable[..., Path]) -> None:
    home = make_java()
    (home / "bin" / "java").write_bytes(b"\x7fELF of another machine")

    with pytest.raises(JavaMissing, match="Exec format error"):
        find_java({"JAVA_HOME": str(home)})


def test_a_java_that_tells_no_version_is_missing(make_java: Callable[..., Path]) -> None:
    home = make_java(says="The operation couldn't be completed. Unable to locate a Java Runtime.")

    with pytest.raises(JavaMissing, match="does not tell its version"):
        find_java({"JAVA_HOME": str(home)})


def test_two_runtimes_never_share_an_archive() -> None:
    assert Java(Path("/a"), "17.0.1").fingerprint != Java(Path("/a"), "17.0.2").fingerprint
    assert Java(Path("/a"), "17.0.1").fingerprint != Java(Path("/b"), "17.0.1").fingerprint


def test_a_small_heap_is_collected_serially_and_a_large_one_by_g1() -> None:
    assert "-XX:+UseSerialGC" in jvm_flags(heap_mb=384, jit=Jit.QUICK, archive=None)
    assert "-XX:+UseG1GC" in jvm_flags(heap_mb=4096, jit=Jit.QUICK, archive=None)
    assert "-Xmx384m" in jvm_flags(heap_mb=384, jit=Jit.QUICK, archive=None)


def test_only_the_quick_compiler_is_bounded() -> None:
    assert "-XX:TieredStopAtLevel=1" in jvm_flags(heap_mb=384, jit=Jit.QUICK, archive=None)
    assert "-XX:TieredStopAtLevel=1" not in jvm_flags(heap_mb=384, jit=Jit.FULL, archive=None)


def test_an_archive_is_used_where_there_is_one() -> None:
    assert "-XX:SharedArchiveFile=/c.jsa" in jvm_flags(heap_mb=384, jit=Jit.FULL, archive=Path("/c.jsa"))
    assert not [f for f in jvm_flags(heap_mb=384, jit=Jit.FULL, archive=None) if "Archive" in f]


_printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20)


@given(st.lists(_printable, min_size=1, max_size=5))
def test_an_argument_file_gives_back_its_words(words: list[str]) -> None:
    lines = argument_file(words).splitlines()

    assert [shlex.split(line) for line in lines] == [[word] for word in words]
