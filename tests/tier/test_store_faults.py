"""The S3 stores of brokers and of the platform, while a server is down, slow, full or cuts what it sends."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from crc32c import crc32c

from penstock.fleet.jars import cache_directory
from penstock.fleet.runtime import obtain_runtime
from penstock.model.errors.backup import StoreUnavailable
from penstock.tier import store as store_module
from penstock.tier.plugin_jar import compiler
from penstock.tier.s3_jars import fetch_s3, s3_class_path
from penstock.tier.store import Store, StoreSettings
from tests.harness.object_server import Fault, ObjectServer
from tests.tier.test_plugin_contract import INDEXES, segment

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET: Final = "history"
READ_MS_MAX: Final = 3000  # of the plugin in these tests


def settings_of(server: ObjectServer) -> StoreSettings:
    return StoreSettings(
        "s3", "east", None, BUCKET, server.endpoint, access_key="backup", secret_key="backup-secret"
    )


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with ObjectServer.start() as started:
        yield started


@pytest.fixture
def store(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with limits of a second."""
    monkeypatch.setattr(store_module, "RETRIES_MAX", 1)
    monkeypatch.setattr(store_module, "CALL_SECONDS_MAX", 2.0)
    return Store(settings_of(server))


async def test_the_platforms_store_keeps_its_promises_on_s3(store: Store) -> None:
    await store.probe()
    assert await store.create("a/b", b"first")
    assert not await store.create("a/b", b"first")
    assert await store.read("a/b", 1, 3) == b"irs"
    assert [(one.key, one.size) async for one in store.list("a")] == [("a/b", 5)]


@pytest.mark.parametrize("fault", [Fault.OVERLOADED, Fault.FULL, Fault.SILENT])
async def test_a_write_to_a_sick_store_fails_within_limits_and_succeeds_later(
    store: Store, server: ObjectServer, fault: Fault
) -> None:
    server.fault = fault
    with pytest.raises(StoreUnavailable) as raised:
        await store.create("a/b", b"first")
    assert raised.value.retriable

    server.fault = Fault.NONE
    assert await store.create("a/b", b"first")
    assert await store.read("a/b") == b"first"


async def test_a_body_that_is_cut_is_never_taken_for_the_object(store: Store, server: ObjectServer) -> None:
    await store.create("a/b", b"content" * 1000)
    server.fault = Fault.CUT
    with pytest.raises(StoreUnavailable):
        await store.read("a/b")
    server.fault = Fault.NONE
    assert await store.read("a/b") == b"content" * 1000


@dataclass
class Plugin:
    """The plugin in a Java process, which carries out one command at a time."""

    process: subprocess.Popen[str]
    server: ObjectServer

    def do(self, command: str, number: int) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command} AAAAAAAAAAAAAAAAAAAA{chr(ord('A') + number)}Q\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def start_plugin(work: Path, **settings: Any) -> subprocess.Popen[str]:
    """With the jars of the S3 store, which it fetches if needed."""
    runtime = asyncio.run(obtain_runtime())
    cache = cache_directory()
    fetch_s3(cache, runtime)
    javac = compiler(runtime.java.executable)
    assert javac is not None
    classes = work / "classes"
    kafka = os.pathsep.join(map(str, sorted(runtime.jars.directory.glob("*.jar"))))
    program = Path(__file__).parent / "java" / "Remote.java"
    compiling = [str(javac), "-proc:none", "-d", str(classes), "-cp", kafka, str(program)]
    subprocess.run(compiling, check=True, timeout=300)
    data, end = segment()
    (work / "segment.log").write_bytes(data)
    for name, content in INDEXES.items():
        (work / name).write_bytes(content)
    command = [str(runtime.java.executable), "-Xmx192m", "-cp", f"{classes}{os.pathsep}{kafka}"]
    command += ["penstock.tier.Remote", s3_class_path(cache), str(work), str(end)]
    command += [f"{name}={value}" for name, value in settings.items()]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


@pytest.fixture
def plugin(server: ObjectServer, tmp_path: Path) -> Iterator[Plugin]:
    credentials = tmp_path / "credentials"
    credentials.write_text("[default]\naws_access_key_id = b\naws_secret_access_key = s\n")
    settings = {
        "store": "s3", "s3.bucket": BUCKET, "s3.region": "us-east-1", "s3.endpoint": server.endpoint,
        "s3.path.style": "true", "s3.credentials.file": credentials, "cluster.id": "east", "broker.id": 1,
        "read.timeout.ms": READ_MS_MAX,
    }  # fmt: skip
    process = start_plugin(tmp_path, **settings)
    yield Plugin(process, server)
    process.kill()
    process.communicate()


@pytest.mark.peers
@pytest.mark.kafka
@pytest.mark.timeout(900)
def test_the_plugin_stays_within_its_limits(plugin: Plugin) -> None:
    server = plugin.server
    data, _ = segment()
    whole = f"read {len(data)}:{crc32c(data):08x}"

    # A copy that the store refuses is retriable, and leaves no segment behind; the next one succeeds.
    for number, fault in enumerate((Fault.OVERLOADED, Fault.FULL)):
        server.fault = fault
        assert plugin.do("copy", number).startswith("RetriableRemoteStorageException "), fault
        assert plugin.do("delete", number).startswith("RetriableRemoteStorageException "), fault
    server.fault = Fault.NONE
    assert not [key for key in server.objects if key.endswith(".json")]
    assert not server.uploads
    server.fault = Fault.SLOW
    assert plugin.do("copy", 2) == "copied true"
    server.fault = Fault.NONE
    assert not server.uploads
    assert sorted(key.rpartition(".")[2] for key in server.objects) == ["idx", "json", "log"]

    # The same segment id again is refused, and its parts are removed.
    assert plugin.do("copy", 2).startswith("RetriableRemoteStorageException ")
    assert server.writes_refused_if_present
    assert not server.uploads

    # Nothing of a read that fails is used: once the store is well, every byte is right.
    for fault in (Fault.CUT, Fault.OVERLOADED):
        server.fault = fault
        assert "Exception " in plugin.do("read", 2), fault
    server.fault = Fault.NONE
    assert plugin.do("read", 2) == whole

    server.fault = Fault.SILENT
    assert "Exception " in plugin.do("index", 2)
    server.fault = Fault.NONE
    assert plugin.do("index", 2).startswith("read ")
    assert plugin.do("delete", 2) == "deleted"
    assert plugin.do("read", 2) == whole
