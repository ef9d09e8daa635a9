"""The plugin's jar: compiled only when needed, the same bytes every time, errors that give the reason."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.tier import PluginNotCompiled
from penstock.tier import plugin_jar
from penstock.tier.plugin_jar import PluginJar, compile_jar, ensure_compiled, place

if TYPE_CHECKING:
    from pathlib import Path

# Writes one class for each source, in the reverse order, and counts its runs.
COMPILER = """#!/bin/sh
echo run >> {directory}/runs
while [ "$1" != -d ]; do shift; done
out=$2
mkdir -p $out/penstock/tier
for name in Second First; do echo $name > $out/penstock/tier/$name.class; done
"""
BROKEN = """#!/bin/sh
echo "First.java:3: error: ';' expected" >&2
echo "1 error" >&2
exit 1
"""


@pytest.fixture
def plugin(tmp_path: Path) -> PluginJar:
    sources = tmp_path / "plugin"
    sources.mkdir()
    (sources / "First.java").write_text("class First {}")
    return PluginJar("tier", sources, tmp_path / "penstock-tier.jar")


def compiler(directory: Path, script: str) -> Path:
    path = directory / "javac"
    path.write_text(script.format(directory=directory))
    path.chmod(0o755)
    return path


def test_the_jar_is_reproducible(plugin: PluginJar, tmp_path: Path) -> None:
    javac = compiler(tmp_path, COMPILER)

    first, second = compile_jar(plugin, javac, []), compile_jar(plugin, javac, [])

    assert first == second
    plugin.file.write_bytes(first)
    with zipfile.ZipFile(plugin.file) as jar:
        names = jar.namelist()
        assert names == sorted(names)
        assert {entry.date_time for entry in jar.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_it_is_compiled_when_a_source_changes_and_not_before(plugin: PluginJar, tmp_path: Path) -> None:
    compiler(tmp_path, COMPILER)
    java = tmp_path / "java"

    assert ensure_compiled(plugin, java, [])
    assert ensure_compiled(plugin, java, [])
    assert (tmp_path / "runs").read_text().count("run") == 1

    (plugin.sources / "First.java").write_text("class First { }")
    assert ensure_compiled(plugin, java, [])
    assert (tmp_path / "runs").read_text().count("run") == 2


def test_a_damaged_jar_is_compiled_again(plugin: PluginJar, tmp_path: Path) -> None:
    compiler(tmp_path, COMPILER)
    plugin.file.write_bytes(b"PK damaged")

    assert ensure_compiled(plugin, tmp_path / "java", [])

    assert plugin.is_current()


def test_without_a_compiler_there_is_no_jar(
    plugin: PluginJar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert not ensure_compiled(plugin, tmp_path / "java", [])


def test_the_first_error_of_the_compiler_is_shown(plugin: PluginJar, tmp_path: Path) -> None:
    with pytest.raises(PluginNotCompiled, match=r"First\.java:3: error: ';' expected"):
        compile_jar(plugin, compiler(tmp_path, BROKEN), [])


def test_the_name_in_the_cache_changes_with_the_content(plugin: PluginJar, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    plugin.file.write_bytes(b"one")
    first = place(plugin, cache)
    plugin.file.write_bytes(b"two")
    second = place(plugin, cache)

    assert first != second
    assert (first.read_bytes(), second.read_bytes()) == (b"one", b"two")
    second.write_bytes(b"damaged")
    assert place(plugin, cache).read_bytes() == b"two"


def test_the_committed_sources_are_the_ones_that_are_compiled() -> None:
    names = [path.name for path in plugin_jar.TIER.source_files()]

    assert "PenstockStorageManager.java" in names
    assert "TieredTopicPolicy.java" in names
