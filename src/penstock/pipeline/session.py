"""One Spark session: the options that every job needs, and none that a job could get wrong.

A process has one Spark context; `open_session` gives each caller a session of its own on it, with
its own catalog `lake`. Times are in UTC. Nothing is fetched: connectors are local files, and other
machines get the package as an archive that is built here.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.fleet.jars import cache_directory
from penstock.fleet.java import find_java
from penstock.model.errors.pipeline import LakeUnusable, SparkFailed
from penstock.model.errors.settings import ExtraMissing
from penstock.pipeline.connectors import connector_jars
from penstock.pipeline.settings import CatalogKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.settings import Engine, Lake

CATALOG: Final = "lake"
ARROW_RECORDS_MAX: Final = 50_000  # of a block handed to a Python worker
LOOPBACK: Final = "127.0.0.1"
ROOM_BYTES_MIN: Final = 1 << 16
SCRATCH: Final = "spark.penstock.scratch"  # Spark's own directories may be anybody's, and several
SQLITE_BUSY_MS: Final = 60_000
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_PACKAGE: Final = Path(__file__).resolve().parent.parent
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")


def open_session(lake: Lake, engine: Engine, *, scratch: Path) -> SparkSession:
    """A session with the catalog `lake`. Raises ExtraMissing, ConnectorsMissing and 80xx."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ExtraMissing(what="the pipeline", module="pyspark", extra="spark") from error
    base = SparkSession.getActiveSession()
    if base is None or base._sc._jsc is None:
        base = _first_session(engine, scratch)
    session = base.newSession()
    for key, value in catalog_options(lake).items():
        session.conf.set(key, value)
    for key, value in engine.conf.items():
        if key.startswith("spark.sql."):
            session.conf.set(key, value)
    return session


def _first_session(engine: Engine, scratch: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    from penstock.pipeline.java import hush

    find_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if stays_here(engine.master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    _make_room(scratch)
    builder: Any = SparkSession.builder
    for key, value in session_options(engine, scratch).items():
        builder = builder.config(key, value)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as error:
        raise SparkFailed(what=f"a session on {engine.master}", reason=_line(error), log="above") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # Spark takes Ctrl-C for itself, unasked
    hush(session)
    if not is_local(engine.master):
        session.sparkContext.addPyFile(str(package_archive(scratch)))
    return session


def _make_room(scratch: Path) -> None:
    """Spark that finds no room for its own files ends without a word, so it is looked for before."""
    from penstock.pipeline.failure import naming

    with naming(f"Spark's own files in {scratch}"):
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=scratch) as file:
            file.write(bytes(ROOM_BYTES_MIN))


def session_options(engine: Engine, scratch: Path) -> dict[str, str]:
    """Spark's options, fixed when the context starts."""
    cores = os.cpu_count() or 1
    jars = ",".join(map(str, connector_jars(cache_directory())))
    options = {
        "spark.app.name": "penstock",
        "spark.master": engine.master,
        "spark.jars": jars,
        "spark.driver.memory": f"{engine.memory_mb}m",
        # Quick starts and little memory matter more here than the last per cent of throughput.
        _JAVA_OPTIONS: f"-XX:+UseSerialGC -Dlog4j2.configurationFile={_LOG4J}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch / "spark"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_RECORDS_MAX),
        "spark.sql.adaptive.enabled": "true",
        # Upserts have dropped old rows of a key already: to sort before the shuffle as well drops few more.
        "spark.sql.optimizer.windowGroupLimitThreshold": "-1",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stopTimeout": "20000",
        "spark.python.worker.faulthandler.enabled": "false",
    }
    if stays_here(engine.master):
        options |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if is_local(engine.master):
        # Workers import what the driver imported, wherever that lies.
        options["spark.executorEnv.PYTHONPATH"] = str(_PACKAGE.parent)
    # Ours is about logging and memory; what somebody adds for the JVM comes after it and wins.
    java = f"{options[_JAVA_OPTIONS]} {engine.conf.get(_JAVA_OPTIONS, '')}".strip()
    return options | dict(engine.conf) | {_JAVA_OPTIONS: java, SCRATCH: str(scratch)}


def catalog_options(lake: Lake) -> dict[str, str]:
    """The options of the catalog `lake`. Raises LakeUnusable."""
    prefix = f"spark.sql.catalog.{CATALOG}"
    options = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.warehouse": lake.warehouse,
        f"{prefix}.cache-enabled": "false",
    }
    if lake.catalog is CatalogKind.REST:
        options |= {f"{prefix}.type": "rest", f"{prefix}.uri": lake.uri or ""}
    else:
        try:
            Path(lake.warehouse).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LakeUnusable(where=lake.warehouse, reason=error.strerror) from error
        options |= {
            f"{prefix}.type": "jdbc",
            f"{prefix}.uri": f"jdbc:sqlite:{catalog_file(lake)}?busy_timeout={SQLITE_BUSY_MS}",
            f"{prefix}.jdbc.schema-version": "V1",
            f"{prefix}.clients": "1",
        }
    return options | {f"{prefix}.{key}": value for key, value in lake.properties.items()}


def catalog_file(lake: Lake) -> Path:
    return Path(lake.warehouse) / "catalog.sqlite"


def is_local(master: str) -> bool:
    return master.startswith("local")


def stays_here(master: str) -> bool:
    """Whether nobody on another machine must reach the driver."""
    return is_local(master) or f"//{LOOPBACK}:" in master


def package_archive(scratch: Path) -> Path:
    """This package as a zip file, for executors on machines that do not have it."""
    return _archive(_PACKAGE, scratch / "penstock.zip")


def share_code(session: SparkSession, module: str) -> None:
    """Gives executors on other machines the package that a module is in: somebody's own code.

    Those of a local master find it as this process did.
    """
    context = session.sparkContext
    top = module.partition(".")[0]
    if is_local(str(context.master)) or top in (_PACKAGE.name, "__main__"):
        return
    found = sys.modules[top]
    # A session that somebody else opened knows no directory of ours.
    scratch = Path(context.getConf().get(SCRATCH) or tempfile.mkdtemp(prefix="penstock-"))
    folders = [*getattr(found, "__path__", ())]
    shared = _archive(Path(folders[0]), scratch / f"{top}.zip") if folders else Path(str(found.__file__))
    context.addPyFile(str(shared))


def _archive(package: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*")):
            if file.is_file() and file.suffix in {".py", ".xml", ".sha256", ".yaml", ".properties", ".bin"}:
                archive.write(file, file.relative_to(package.parent))
    return path


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
