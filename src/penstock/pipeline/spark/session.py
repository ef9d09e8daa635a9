"""Opens Spark sessions with the options every job needs.

A process has one Spark context; `open_session` gives each caller a separate session on it, with its own
catalog `lake`. Times are in UTC, wherever the driver runs. Connectors are local files, and other hosts get
this package as an archive built here.
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
from penstock.pipeline.settings import CatalogKind
from penstock.pipeline.spark.connectors import connector_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.settings import Engine, Lake

CATALOG: Final = "lake"
ARROW_RECORDS_MAX: Final = 50_000  # per block passed to a Python worker
LOOPBACK: Final = "127.0.0.1"
SCRATCH_BYTES_MIN: Final = 1 << 16
# `spark.local.dir` may be overridden, and may list several directories.
SCRATCH: Final = "spark.penstock.scratch"
# Set by spark-submit, which has started the JVM and chosen master, jars, memory and interpreter.
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
# Days and weeks of derived tables are those of UTC, so this is not configurable.
UTC_SESSION: Final = ("spark.sql.session.timeZone", "UTC")
SQLITE_BUSY_MS: Final = 60_000
SQL_OPTIONS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_RECORDS_MAX),
    "spark.sql.adaptive.enabled": "true",
    # Upserts have already dropped superseded rows; another sort before the shuffle would drop few more.
    "spark.sql.optimizer.windowGroupLimitThreshold": "-1",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stopTimeout": "20000",
}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_PACKAGE: Final = Path(__file__).resolve().parent.parent.parent
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
    session.conf.set(*UTC_SESSION)
    return session


def _first_session(engine: Engine, scratch: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    from penstock.pipeline.spark.failure import first_line
    from penstock.pipeline.spark.java import silence_py4j

    if SUBMITTED in os.environ:
        return _submitted_session(engine, scratch)
    find_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if runs_on_this_host(engine.master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    _check_scratch(scratch)
    builder: Any = SparkSession.builder
    for key, value in session_options(engine, scratch).items():
        builder = builder.config(key, value)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as error:
        what = f"a session on {engine.master}"
        raise SparkFailed(what=what, reason=first_line(error), log="above") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # Spark installs its own handler
    silence_py4j(session)
    if not is_local(engine.master):
        session.sparkContext.addPyFile(str(package_archive(scratch)))
    return session


def _submitted_session(engine: Engine, scratch: Path) -> SparkSession:
    """The session of a driver that spark-submit started; `--py-files` has shipped this package."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    for key, value in (SQL_OPTIONS | dict(engine.conf) | {SCRATCH: str(scratch)}).items():
        builder = builder.config(key, value)
    _check_scratch(scratch)
    session: SparkSession = builder.getOrCreate()
    return session


def _check_scratch(scratch: Path) -> None:
    """Raises DiskFull up front: without space for its files, Spark exits without an error."""
    from penstock.pipeline.spark.failure import translate_errors

    with translate_errors(f"Spark's scratch directory {scratch}"):
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=scratch) as file:
            file.write(bytes(SCRATCH_BYTES_MIN))


def session_options(engine: Engine, scratch: Path) -> dict[str, str]:
    """Spark's options, fixed when the context starts."""
    jars = ",".join(map(str, connector_jars(cache_directory())))
    options = {
        "spark.app.name": "penstock",
        "spark.master": engine.master,
        "spark.jars": jars,
        "spark.driver.memory": f"{engine.memory_mb}m",
        # Fast starts and low memory matter more here than peak throughput.
        _JAVA_OPTIONS: f"-XX:+UseSerialGC -Dlog4j2.configurationFile={_LOG4J}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch / "spark"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.python.worker.faulthandler.enabled": "false",
    } | SQL_OPTIONS
    if runs_on_this_host(engine.master):
        options |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if is_local(engine.master):
        # Workers import the same package as the driver.
        options["spark.executorEnv.PYTHONPATH"] = str(_PACKAGE.parent)
        # A cluster has more cores than its driver: there, Spark's own default and its merging of small ones.
        options["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
    # The user's JVM options come last, so they override ours.
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


def runs_on_this_host(master: str) -> bool:
    """Whether all executors run on this host, so that the driver may bind to loopback."""
    return is_local(master) or f"//{LOOPBACK}:" in master


def package_archive(scratch: Path) -> Path:
    """This package as a zip file, for executors on other hosts."""
    return _archive(_PACKAGE, scratch / "penstock.zip")


def ship_package(session: SparkSession, module: str) -> None:
    """Ships the package of an application's module to executors on other hosts.

    Executors of a local master import it as this process does."""
    context = session.sparkContext
    top = module.partition(".")[0]
    if is_local(str(context.master)) or top in (_PACKAGE.name, "__main__"):
        return
    package = sys.modules[top]
    # A session opened by the application has no scratch directory of ours.
    scratch = Path(context.getConf().get(SCRATCH) or tempfile.mkdtemp(prefix="penstock-"))
    folders = [*getattr(package, "__path__", ())]
    file = _archive(Path(folders[0]), scratch / f"{top}.zip") if folders else Path(str(package.__file__))
    context.addPyFile(str(file))


def _archive(package: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*")):
            if file.is_file() and file.suffix in {".py", ".xml", ".sha256", ".yaml", ".properties", ".bin"}:
                archive.write(file, file.relative_to(package.parent))
    return path
