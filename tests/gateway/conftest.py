"""Gateways for tests: one shared by three tenants, and as many private ones as a test needs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.fleet.jars import cache_directory, load_jars
from penstock.fleet.java import find_java
from tests.harness.gateway import Access, RunningGateway, access_of, new_access, start_gateway
from tests.harness.gateway_process import GatewayFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.fleet import Fleet

JAVA_SECONDS = 200.0
# A file with tenants of another deployment: tests that need nothing but tenants run there.
TENANTS_FILE = os.environ.get("PENSTOCK_TEST_TENANTS")
INSIDE = {"fleet", "gateway", "make_gateway", "file"}  # fixtures that look into a fleet or a gateway here
JAVA_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if TENANTS_FILE is None:
        return
    inside = [item for item in items if INSIDE & {*getattr(item, "fixturenames", ())}]
    items[:] = [item for item in items if item not in inside]
    config.hook.pytest_deselected(items=inside)


@pytest.fixture(scope="session")
def gateway(fleet: Fleet) -> Iterator[RunningGateway]:
    """One gateway for the shared fleet, with three tenants; tests leave it unchanged."""
    running = start_gateway(fleet, [new_access(), new_access(), new_access()])
    yield running
    running.stop()


@pytest.fixture
def tenants(request: pytest.FixtureRequest) -> list[Access]:
    if TENANTS_FILE is not None:
        return [access_of(**values) for values in json.loads(Path(TENANTS_FILE).read_text())]
    return _living(request.getfixturevalue("gateway")).accesses


@pytest.fixture
def ada(tenants: list[Access]) -> Access:
    return tenants[0]


@pytest.fixture
def bob(tenants: list[Access]) -> Access:
    return tenants[1]


@pytest.fixture
def eve(tenants: list[Access]) -> Access:
    """For attacks. They create groups with other tenants' names below this tenant's prefix, which tests of
    the other tenants should not meet.
    """
    return tenants[2]


@pytest.fixture(scope="session")
def java_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs a class, Kafka's or one beside this file, with Kafka's jars."""
    classes = tmp_path_factory.mktemp("classes")
    executable = find_java().executable
    jars = f"{load_jars(cache_directory()).directory}/*"
    sources = sorted(str(path) for path in Path(__file__).parent.glob("*.java"))
    compiled = subprocess.run(
        [executable.with_name("javac"), "-d", classes, "-cp", jars, *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    return [str(executable), *JAVA_QUICK, "-cp", f"{classes}:{jars}"]


@pytest.fixture(scope="session")
def java(java_command: list[str]) -> Callable[..., str]:
    """Run a class; returns its output."""

    def run(main: str, *arguments: str) -> str:
        command = [*java_command, main, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                out, err = process.communicate(timeout=JAVA_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                pytest.fail(f"{main} did not end in {JAVA_SECONDS} s; it printed:\n{out}{err}")
        assert process.returncode == 0, out + err
        return out

    return run


@pytest.fixture
def make_gateway(fleet: Fleet) -> Iterator[Callable[..., RunningGateway]]:
    made: list[RunningGateway] = []

    def make(*accesses: Access, **more: Any) -> RunningGateway:
        running = start_gateway(fleet, accesses, **more)
        made.append(running)
        return running

    yield make
    for running in made:
        running.stop()


@pytest.fixture
def file(fleet: Fleet, tmp_path: Path) -> Iterator[GatewayFile]:
    """The file of a gateway with the shared fleet; `file.start()` runs a process from it."""
    made = GatewayFile(fleet, tmp_path / "gateway.yaml")
    yield made
    made.stop()


def _living(running: RunningGateway) -> RunningGateway:
    assert running.thread.is_alive(), (
        "a test before this one ended the shared gateway; use make_gateway for that"
    )
    return running
