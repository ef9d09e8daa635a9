"""`python -m tools.jars`: pin the jars again after a POM has changed.

Resolves each POM with Maven and writes the checksum of every jar to the committed lock beside it. The POMs
are Kafka's, those of Spark's connectors and of Amazon's SDK, and that of the Java programs that tests run as
tenants.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from penstock.fleet.jars import CHECKSUM_FILE, KAFKA_VERSION, POM_FILE, Pin, resolve_jars
from penstock.pipeline.spark.connectors import CONNECTORS
from penstock.tier.s3_jars import SDK
from tests.gateway.programs import PROGRAMS

KAFKA = Pin("kafka", KAFKA_VERSION, POM_FILE, CHECKSUM_FILE)


def main() -> int:
    for pin in (KAFKA, CONNECTORS, SDK, PROGRAMS):
        with tempfile.TemporaryDirectory() as scratch:
            jars = resolve_jars(Path(scratch), pin)
            lines = [
                f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}"
                for jar in sorted(jars.glob("*.jar"))
            ]
        pin.lock.write_text("\n".join(lines) + "\n")
        print(f"{len(lines)} jars pinned for {pin.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
