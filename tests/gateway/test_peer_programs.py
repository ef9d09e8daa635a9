"""What tenants run beside their clients: Kafka Streams, MirrorMaker, kcat. Each creates internal topics."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from penstock.fleet.jars import cache_directory, load_jars
from penstock.fleet.java import find_java
from tests.gateway.programs import PROGRAMS, SOURCES
from tests.gateway.test_librdkafka import consume, create, produce
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.gateway import Access

pytestmark = [pytest.mark.peers, pytest.mark.kafka, pytest.mark.timeout(900)]
SECONDS = 30.0
PROGRAM_SECONDS_MAX = 300
LOCAL = Path(__file__).parent
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m")


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command to run a class with the jars of Streams and MirrorMaker."""
    classes = tmp_path_factory.mktemp("programs")
    executable = find_java().executable
    jars = f"{load_jars(cache_directory(), PROGRAMS).directory}/*"
    sources = [LOCAL / "Tenants.java", SOURCES / "WordCount.java"]
    compiled = subprocess.run(
        [executable.with_name("javac"), "-d", classes, "-cp", jars, *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    return [str(executable), *QUICK, "-cp", f"{classes}:{jars}"]


def test_streams_count_words_for_two_tenants_under_the_same_names(
    program: list[str], ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    logins = (ada.key, ada.secret, bob.key, bob.secret)

    done = subprocess.run(
        [*program, "WordCount", ada.bootstrap, unique("sentences"), unique("counter"), *logins],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_SECONDS_MAX,
    )

    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    # name | counted | in the store | threads | internal topics | own group listed | other tenants' names
    lines = [line.split("|") for line in done.stdout.splitlines() if "|" in line]
    for line, name in zip(lines, ("t0", "t1"), strict=True):
        assert line[:2] == [name, f"{{{name}=20, water=20}}"]
        assert line[2:4] == ["20", "1"]
        assert line[4] == "-counts-changelog,-words-repartition"
        assert line[5:] == ["true", "false"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Start processes that are stopped after the test, and must end."""
    begun: list[subprocess.Popen[bytes]] = []

    def run(*command: str) -> Path:
        output = tmp_path / "said"
        with output.open("wb") as out:
            begun.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT))
        return output

    yield run
    for process in begun:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(SECONDS * 2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def mirror_properties(source: Access, target: Access, topic: str, group: str) -> str:
    """One direction, as in its documentation, with shorter intervals than by default."""
    lines = [
        "clusters = source, target",
        "source->target.enabled = true",
        f"source->target.topics = {topic}",
        f"source->target.groups = {group}",
        "source->target.sync.group.offsets.enabled = true",
        "target->source.enabled = false",
        "replication.factor = 3",
        "tasks.max = 1",
    ]
    lines += [f"{every}.interval.seconds = 2" for every in (
        "refresh.topics", "refresh.groups", "sync.topic.configs", "sync.topic.acls", "emit.heartbeats",
        "emit.checkpoints", "sync.group.offsets",
    )]  # fmt: skip
    for name, access in (("source", source), ("target", target)):
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        login = f'username="{access.key}" password="{access.secret}"'
        lines += [
            f"{name}.bootstrap.servers = {access.bootstrap}",
            f"{name}.security.protocol = SASL_PLAINTEXT",
            f"{name}.sasl.mechanism = PLAIN",
            f"{name}.sasl.jaas.config = {module} required {login};",
        ]
    return "\n".join(lines) + "\n"


def test_mirrormaker_copies_one_tenants_topic_to_anothers_cluster(
    program: list[str],
    start: Callable[..., Path],
    ada: Access,
    bob: Access,
    tmp_path: Path,
    unique: Callable[[str], str],
) -> None:
    topic, group = unique("orders"), unique("readers")
    create(ada, topic)
    create(bob, topic)  # another tenant's, of the same name
    produce(ada, topic, [f"ada-{n}" for n in range(10)])
    produce(bob, topic, ["bob"])
    consume(ada, [topic], group, 10)
    properties = tmp_path / "mirror.properties"
    properties.write_text(mirror_properties(ada, bob, topic, group))

    output = start(*program, "org.apache.kafka.connect.mirror.MirrorMaker", str(properties))
    copied = f"source.{topic}"
    client = AdminClient(bob.client_config())

    def topics_of_target() -> set[str]:
        return set(client.list_topics(timeout=SECONDS).topics)

    try:
        wait_for(lambda: copied in topics_of_target(), what="the copy", seconds=PROGRAM_SECONDS_MAX)
        assert consume(bob, [copied], unique("check"), 10) == sorted(f"ada-{n}" for n in range(10))
        wait_for(
            lambda: group in {one.group_id for one in client.list_consumer_groups().result(SECONDS).valid},
            what="the group's offsets",
            seconds=PROGRAM_SECONDS_MAX,
        )
    except BaseException:
        print(output.read_text()[-8000:])
        raise
    assert consume(bob, [topic], unique("check"), 1) == ["bob"]
    assert {"source.checkpoints.internal", "mm2-offsets.source.internal"} <= topics_of_target()
    assert (
        "mm2-offset-syncs.target.internal"
        in AdminClient(ada.client_config()).list_topics(timeout=SECONDS).topics
    )
    assert not any(name.startswith("lkc-") for name in topics_of_target())


# kcat, from the distribution's package


def kcat(access: Access, *arguments: str, output: str = "") -> str:
    executable = shutil.which("kcat")
    if executable is None:
        pytest.skip("NO TEST OF KCAT: it is not in PATH (Debian: apt install kcat)")
    config = access.client_config()
    settings = [word for name, value in config.items() for word in ("-X", f"{name}={value}")]
    done = subprocess.run(
        [executable, "-b", access.bootstrap, *settings, *arguments],
        input=output,
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_kcat_produces_consumes_and_lists_for_two_tenants_under_the_same_names(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, alone, group = unique("orders"), unique("alone"), unique("readers")
    create(ada, topic)
    create(bob, topic, alone)

    for access, name in ((ada, "ada"), (bob, "bob")):
        kcat(access, "-P", "-t", topic, "-p", "0", output="".join(f"{name}-{n}\n" for n in range(5)))

    for access, name in ((ada, "ada"), (bob, "bob")):
        expected = [f"{name}-{n}" for n in range(5)]
        # all of its modes: consumer, balanced consumer, offsets by time, metadata
        assert kcat(access, "-C", "-t", topic, "-o", "beginning", "-e", "-q").split() == expected
        assert (
            sorted(
                kcat(access, "-G", group, "-c", "5", "-q", "-X", "auto.offset.reset=earliest", topic).split()
            )
            == expected
        )
        assert kcat(access, "-Q", "-t", f"{topic}:0:-1").split() == [topic, "[0]", "offset", "5"]
        listed = kcat(access, "-L")
        assert f'topic "{topic}"' in listed
        assert (f'topic "{alone}"' in listed) == (access is bob)
        assert "lkc-" not in listed.replace(access.tenant.id, "")
        assert all(place in listed for place in access.bootstrap.split(","))
