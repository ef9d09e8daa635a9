"""A fake `java` that pretends to format and run nodes, in milliseconds.

It is for tests of process handling: starting, locking, taking over, stopping. Such tests prove nothing
about Kafka. Environment variables control it:

    FAKE_JAVA_FORMAT=fails|nothing   a formatter that fails, or that creates no storage
    FAKE_JAVA_NODE=dies|deaf         a node that dies at once, or that ignores SIGTERM
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from penstock.atomic_files import write_atomically
from penstock.fleet.jars import Jars
from penstock.fleet.java import Java
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import LocalFleet, open_fleet
from penstock.fleet.node import Runtime
from penstock.fleet.spec_file import parse_fleet

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import os, pathlib, re, shlex, signal, sys, time

def format(words):
    if os.environ.get("FAKE_JAVA_FORMAT") == "fails":
        print("Error while formatting: no such luck")
        print("  at org.apache.kafka.Something")
        sys.exit(1)
    if os.environ.get("FAKE_JAVA_FORMAT") == "nothing":
        return
    text = pathlib.Path(words[words.index("-c") + 1]).read_text()
    properties = dict(line.split("=", 1) for line in text.splitlines())
    data = pathlib.Path(properties["log.dirs"])
    data.mkdir(exist_ok=True)
    (data / "formatted").open("a").write("once\\n")
    (data / "arguments").write_text(" ".join(words))
    identity = f"cluster.id={words[words.index('-t') + 1]}\\nnode.id={properties['node.id']}\\n"
    (data / "meta.properties").write_text(identity)

if sys.argv[1].startswith("@"):
    format(shlex.split(pathlib.Path(sys.argv[1][1:]).read_text()))
elif os.environ.get("FAKE_JAVA_NODE") == "dies":
    print("Error: Could not find or load main class kafka.Kafka")
    sys.exit(3)
else:
    deaf = os.environ.get("FAKE_JAVA_NODE") == "deaf"
    signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else lambda *_: sys.exit(143))
    print("up", flush=True)
    while True:
        time.sleep(3600)
"""


def fake_runtime(directory: Path) -> Runtime:
    directory.mkdir(parents=True, exist_ok=True)
    java = directory / "java"
    # A file that is being executed cannot be opened for writing: replace it.
    write_atomically(java, f"#!{sys.executable} -IS\n{_PROGRAM}", mode=0o755)
    (directory / "jars").mkdir(exist_ok=True)
    plugin = directory / "tier.jar"
    return Runtime(Java(java, "17.0.1"), Jars(directory / "jars", plugin), archive=None)


def fake_fleet(directory: Path, *clusters: dict[str, Any]) -> LocalFleet:
    """A fleet below `directory/home` that uses this Java."""
    spec = parse_fleet({"clusters": [{"port": 0} | keys for keys in clusters or ({"brokers": 1},)]})
    return open_fleet(spec, Layout(directory / "home"), fake_runtime(directory / "java"))
