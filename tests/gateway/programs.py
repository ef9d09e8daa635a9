"""The jars of programs that tenants run beside their clients, pinned like Kafka's own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.fleet.jars import KAFKA_VERSION, Pin

SOURCES: Final = Path(__file__).parent / "peer" / "java"
PROGRAMS: Final = Pin("tenants", KAFKA_VERSION, SOURCES / "pom.xml", SOURCES / "jars.sha256")
