"""Kafka's jars are downloaded once and verified before every use."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.fleet import jars as module
from penstock.fleet.jars import (
    Jars,
    cache_directory,
    fetch_jars,
    jar_checksums,
    jars_directory,
    load_jars,
    verify,
)
from penstock.fleet.launcher import launcher_path
from penstock.model.errors.fleet import DirectoryNotWritable, JarDamaged, JarsUnresolved, MavenMissing

if TYPE_CHECKING:
    from collections.abc import Callable

CONTENT = {"kafka-1.jar": b"one", "lib-2.jar": b"two"}
LOCK = {name: hashlib.sha256(data).hexdigest() for name, data in CONTENT.items()}


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a `mvn` on the PATH that runs the given shell lines; `$out` is the target directory."""
    monkeypatch.setattr(module, "jar_checksums", lambda: LOCK)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def make(lines: str) -> None:
        script = tmp_path / "bin" / "mvn"
        find_out = 'for w in "$@"; do case $w in -DoutputDirectory=*) out=${w#*=};; esac; done\n'
        script.write_text(f"#!/bin/sh\n{find_out}{lines}\n")
        script.chmod(0o755)

    return make


GOOD = "mkdir $out; printf one > $out/kafka-1.jar; printf two > $out/lib-2.jar"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "jars"
    path.mkdir()
    for name, data in CONTENT.items():
        (path / name).write_bytes(data)
    return path


def test_the_lock_file_has_checksums_of_kafka_and_the_exporter() -> None:
    lock = jar_checksums()

    assert any(name.startswith("kafka-clients-4.3.1") for name in lock)
    assert any(name.startswith("jmx_prometheus_javaagent-") for name in lock)
    assert all(len(bytes.fromhex(digest)) == 32 for digest in lock.values())


def test_another_lock_file_uses_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = jars_directory(tmp_path)
    (tmp_path / "jars.sha256").write_text("0 x.jar")
    monkeypatch.setattr(module, "CHECKSUM_FILE", tmp_path / "jars.sha256")

    assert jars_directory(tmp_path) != before


def test_jars_that_match_the_lock_file_pass(directory: Path) -> None:
    verify(directory, LOCK)


def spoil(directory: Path, how: str) -> None:
    jar = directory / "lib-2.jar"
    match how:
        case "missing":
            jar.unlink()
        case "damaged":
            jar.write_bytes(b"twO")
        case "cut short":
            jar.write_bytes(b"")
        case "a directory":
            jar.unlink()
            jar.mkdir()
        case "unexpected":
            (directory / "evil.jar").write_bytes(b"")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "lib-2.jar is missing in "),
        ("damaged", "lib-2.jar is damaged in "),
        ("cut short", "lib-2.jar is damaged in "),
        ("a directory", "lib-2.jar is damaged in "),
        ("unexpected", "evil.jar is unexpected in "),
    ],
)
def test_a_jar_that_does_not_match_the_lock_file_is_named(directory: Path, how: str, message: str) -> None:
    spoil(directory, how)

    with pytest.raises(JarDamaged) as caught:
        verify(directory, LOCK)

    assert caught.value.message == f"{message}{directory}"
    assert "penstock fleet fetch --force" in caught.value.advice


def test_the_classpath_is_sorted_and_ends_with_the_launcher(directory: Path) -> None:
    *kafkas, launcher = Jars(directory).classpath.split(os.pathsep)

    assert kafkas == [f"{directory}/kafka-1.jar", f"{directory}/lib-2.jar"]
    assert launcher == str(launcher_path(directory.parent))


def test_the_cache_is_configured_or_in_the_usual_place() -> None:
    assert cache_directory({"PENSTOCK_CACHE": "/c"}) == Path("/c")
    assert cache_directory({"PENSTOCK_CACHE": "c"}) == Path.cwd() / "c"
    assert cache_directory({"XDG_CACHE_HOME": "/x"}).name == "penstock"


def test_jars_are_downloaded_once(tmp_path: Path, maven: Callable[[str], None]) -> None:
    maven(f"{GOOD}; echo run >> {tmp_path}/runs")

    first = load_jars(tmp_path / "cache")
    second = load_jars(tmp_path / "cache")

    assert first.directory == second.directory
    assert (tmp_path / "runs").read_text() == "run\n"


def test_force_replaces_a_damaged_jar(tmp_path: Path, maven: Callable[[str], None]) -> None:
    maven(GOOD)
    directory = fetch_jars(tmp_path / "cache")
    (directory / "lib-2.jar").write_bytes(b"bad")
    with pytest.raises(JarDamaged):
        load_jars(tmp_path / "cache")

    fetch_jars(tmp_path / "cache", force=True)

    assert load_jars(tmp_path / "cache").directory == directory


def leftovers(cache: Path) -> list[str]:
    return [p.name for p in jars_directory(cache).parent.iterdir() if p.name != "fetch.lock"]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            "echo '[ERROR] Could not transfer artifact'; echo '[ERROR] more'; exit 1",
            "Could not transfer artifact",
        ),
        ("exit 7", "exit code 7"),
    ],
)
def test_errors_of_maven_are_reported_and_nothing_is_left_behind(
    tmp_path: Path, maven: Callable[[str], None], lines: str, reason: str
) -> None:
    maven(lines)

    with pytest.raises(JarsUnresolved) as caught:
        load_jars(tmp_path / "cache")

    assert caught.value.message == f"Maven could not resolve Kafka's jars: {reason}"
    assert leftovers(tmp_path / "cache") == []


def test_wrong_jars_never_reach_the_cache(tmp_path: Path, maven: Callable[[str], None]) -> None:
    maven("mkdir $out; printf evil > $out/kafka-1.jar; printf two > $out/lib-2.jar")

    with pytest.raises(JarDamaged, match=r"kafka-1.jar is damaged"):
        load_jars(tmp_path / "cache")

    assert leftovers(tmp_path / "cache") == []


def test_a_maven_that_cannot_run_is_an_error(tmp_path: Path, maven: Callable[[str], None]) -> None:
    maven("")
    (tmp_path / "bin" / "mvn").write_text("#!/no/such/shell\n")

    with pytest.raises(JarsUnresolved, match="No such file"):
        load_jars(tmp_path / "cache")


def test_a_missing_maven_is_an_error_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(MavenMissing) as caught:
        load_jars(tmp_path / "cache")

    assert "penstock fleet fetch" in caught.value.advice


def test_a_cache_that_is_not_writable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")

    with pytest.raises(DirectoryNotWritable):
        load_jars(tmp_path / "cache")
