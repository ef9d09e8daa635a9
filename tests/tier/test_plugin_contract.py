"""The plugin as a broker calls it: what it stores, byte for byte, what it returns, and each of its errors.

The objects in `golden` are format 1: a change of one of them is a change of the format.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from penstock.fleet.runtime import obtain_runtime
from penstock.tier.plugin_jar import compiler
from penstock.wire.digest import BatchDigest, spans
from penstock.wire.records import Record, write

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.kafka

GOLDEN = Path(__file__).with_name("golden")
STEM = "tier/MkU3OEVBNTcwNTJENDM2Qg/yRFUd0jGSsexGPmz78fUMg/3/00000000000000000000-"
CHUNK = 4 << 20
INDEXES = {
    "offset": b"offset index", "timestamp": b"time index", "producer_snapshot": b"snapshot",
    "leader_epoch": b"leader epochs", "transaction": b"aborted",
}  # fmt: skip


def segment() -> tuple[bytes, int]:
    """About 9 MB, so three chunks, and its last offset."""
    data, offset = b"", 0
    for number in range(18):
        records = [
            Record(offset + n, 1_700_000_000_000 + n, b"key", bytes([number + n]) * 100_000) for n in range(5)
        ]
        data += write(records)
        offset += 5
    return data, offset - 1


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mapping[str, list[str]], Path]:
    """Everything the Java program printed, and the store it left."""
    runtime = asyncio.run(obtain_runtime())
    work = tmp_path_factory.mktemp("contract")
    source, store, classes = work / "segment", work / "store", work / "classes"
    source.mkdir()
    data, end = segment()
    (source / "segment.log").write_bytes(data)
    for name, content in INDEXES.items():
        (source / name).write_bytes(content)
    javac = compiler(runtime.java.executable)
    if javac is None:
        pytest.skip("there is no Java compiler")
    program = Path(__file__).parent / "java" / "Contract.java"
    class_path = runtime.jars.classpath
    compiling = [str(javac), "-proc:none", "-d", str(classes), "-cp", class_path, str(program)]
    subprocess.run(compiling, check=True, timeout=300)
    command = [str(runtime.java.executable), "-Xmx192m", "-cp", f"{classes}{os.pathsep}{class_path}"]
    command += ["penstock.tier.Contract", str(store), str(source), str(end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    printed: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        printed.setdefault(name, []).append(value)
    return printed, store


def shown(data: bytes) -> str:
    return f"{len(data)}:{crc32c(data):08x}"


def test_the_stored_objects_are_format_1(results: tuple[Mapping[str, list[str]], Path]) -> None:
    printed, store = results
    stem = store / f"{STEM}AAAAAAAAAAAAAAAAAAAAAQ"
    data, end = segment()

    manifest = stem.with_name(stem.name + ".json").read_bytes()
    assert manifest == (GOLDEN / "manifest.json").read_bytes()
    assert stem.with_name(stem.name + ".log").read_bytes() == data
    assert stem.with_name(stem.name + ".idx").read_bytes() == (GOLDEN / "indexes.idx").read_bytes()
    fields = json.loads(manifest)
    assert manifest == json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    assert fields["end_offset"] == end
    assert fields["batch_digest"] == BatchDigest(spans(data, verify=True)).hexdigest()
    chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    assert fields["chunk_crc32c"] == [f"{crc32c(chunk):08x}" for chunk in chunks]
    assert printed["custom"] == [f"01{crc32c(manifest):08x}"]


def test_it_reads_back_what_it_stored(results: tuple[Mapping[str, list[str]], Path]) -> None:
    printed, _ = results
    data, _ = segment()

    assert printed["whole"] == [shown(data)]
    assert printed["range"] == [shown(data[100:4_200_001])]
    assert printed["past-the-end"] == ["7"]
    assert printed["after-the-end"] == ["0"]
    assert {name: printed[name.upper()] for name in INDEXES} == {
        name: [content.decode()] for name, content in INDEXES.items()
    }


def test_all_readers_share_one_get_of_a_chunk(results: tuple[Mapping[str, list[str]], Path]) -> None:
    printed, _ = results
    data, _ = segment()

    assert printed["reader"] == [shown(data)] * 8
    assert printed["gets-of-cached"] == ["0"]
    assert printed["gets"] == ["4"]  # three chunks and the indexes


def test_a_failed_copy_is_always_retriable(results: tuple[Mapping[str, list[str]], Path]) -> None:
    """After any other exception, the broker deletes the segment."""
    printed, store = results

    for case in ("again", "short-file", "wrong-end", "damaged"):
        assert printed[case] == ["RetriableRemoteStorageException"], case
    assert printed["error"] == ["RetriableRemoteStorageException"] * 2, (
        "an error ends the copies of a partition"
    )
    assert (printed["blocked"], printed["blocked-after"]) == (["1"], ["0"])
    complete = {path.stem[-1] for path in store.rglob("*.json")}
    assert complete == {"Q", "g", "w"}  # of the attempts 1, 2 and 7: the others do not exist
    damaged = [path for path in store.rglob("*.log") if path.stem.endswith(("AAw", "ABA", "ABQ"))]
    assert damaged == []


def test_each_failed_read_has_its_exception(results: tuple[Mapping[str, list[str]], Path]) -> None:
    printed, _ = results

    assert printed["no-transactions"] == ["RemoteResourceNotFoundException"]
    assert printed["missing"] == ["RemoteResourceNotFoundException"]
    # Not "there is no such index": the broker would serve aborted transactions as committed.
    assert printed["missing-index"] == ["RemoteStorageException"]
    assert printed["negative"] == ["IllegalArgumentException"]
    assert printed["spoilt"] == ["IOException"]
    assert printed["wrong-custom"] == ["RemoteStorageException"]


def test_delete_only_marks(results: tuple[Mapping[str, list[str]], Path]) -> None:
    printed, store = results
    data, _ = segment()

    (tombstone,) = store.rglob("*.gone")
    fields = json.loads(tombstone.read_bytes())
    assert (fields["format"], fields["reason"], fields["state"]) == (1, "broker", "COPY_SEGMENT_STARTED")
    assert printed["after-delete"] == [shown(data)]
    assert not list((store / ".uploads").iterdir())
