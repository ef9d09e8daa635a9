"""What Spark needs beside its own wheel: the Kafka source, Iceberg, a driver for the local catalog.

Resolved once with Maven from a pinned POM, checked before every use, and handed to Spark as local
files: nothing is fetched at run time. Each jar stands in the POM by itself, since the parent POMs
of Spark name repositories that need not be reachable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.fleet.jars import Pin, fetch_jars, load_jars
from penstock.model.errors.fleet import JarDamaged, JarsUnresolved, MavenMissing
from penstock.model.errors.pipeline import ConnectorsMissing

SPARK_VERSION: Final = "4.1.3"
_HERE: Final = Path(__file__).parent
CONNECTORS: Final = Pin("spark-connectors", SPARK_VERSION, _HERE / "pom.xml", _HERE / "jars.sha256")


def connector_jars(cache: Path, *, force: bool = False) -> tuple[Path, ...]:
    """The jars, fetched if they are not here yet. Raises ConnectorsMissing."""
    try:
        if force:
            fetch_jars(cache, force=True, pin=CONNECTORS)
        directory = load_jars(cache, CONNECTORS).directory
    except (JarDamaged, JarsUnresolved, MavenMissing) as error:
        raise ConnectorsMissing(reason=error.message) from error
    return tuple(sorted(directory.glob("*.jar")))
