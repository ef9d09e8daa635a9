"""The jars Spark needs besides its wheel: Kafka source, Iceberg, and the local catalog's SQLite driver.

Maven resolves them once from a pinned POM; they are verified before every use and passed to Spark as
local files. The POM lists each jar separately, because Spark's parent POMs name repositories that may be
unreachable.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from penstock.fleet.jars import Pin, fetch_jars, load_jars
from penstock.model.errors.fleet import JarDamaged, JarsUnresolved, MavenMissing
from penstock.model.errors.pipeline import ConnectorsMissing

SPARK_VERSION: Final = "4.1.3"
_HERE: Final = Path(__file__).parent
# Runs the command's words. `--py-files` puts the archive, which is for executors, before the installed
# package: a driver that imported from it could not read the package's data files.
DRIVER: Final = "driver.py"
DRIVER_TEXT: Final = """import sys

sys.path = [path for path in sys.path if not path.endswith("penstock.zip")]

from penstock.cli import main

main()
"""
CONNECTORS: Final = Pin("spark-connectors", SPARK_VERSION, _HERE / "pom.xml", _HERE / "jars.sha256")


def copy_for_submit(jars: tuple[Path, ...], to: Path) -> tuple[Path, ...]:
    """Copies the jars, this package as an archive, and a driver script. Returns the copied jars."""
    from penstock.pipeline.spark.session import package_archive

    to.mkdir(parents=True, exist_ok=True)
    package_archive(to)
    (to / DRIVER).write_text(DRIVER_TEXT, encoding="utf-8")
    return tuple(Path(shutil.copy(jar, to)) for jar in jars)


def connector_jars(cache: Path, *, force: bool = False) -> tuple[Path, ...]:
    """The jars, fetched if missing. Raises ConnectorsMissing."""
    try:
        if force:
            fetch_jars(cache, force=True, pin=CONNECTORS)
        directory = load_jars(cache, CONNECTORS).directory
    except (JarDamaged, JarsUnresolved, MavenMissing) as error:
        raise ConnectorsMissing(reason=error.message) from error
    return tuple(sorted(directory.glob("*.jar")))
