"""Fleet SLO (Kora §4.4.2): probes of the health checker → one small set of figures for the whole fleet.

For each broker and minute: the P99 of end-to-end latency over its successful probes, and the part
of its probes that failed. The worst broker stands for its cluster in that minute. The P99 of these
over a week is the cluster's figure; median, P90 and P99 of all clusters' figures are the fleet's.
Unavailability goes the same way as latency, since for both more is worse.

Percentiles are exact, by nearest rank: the least value that at least that part of all values does
not exceed. A probe that was written twice counts once.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from penstock.model.events import HealthProbe, Probe
from penstock.model.keys import HEALTH_TOPIC
from penstock.pipeline.columns import Column
from penstock.pipeline.job import Derived, Job, Sink, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = (
    Column("cluster", "string"),
    Column("broker", "int"),
    Column("zone", "string"),
    Column("partition", "int"),
    Column("probe", "string"),
    Column("checker", "string"),
    Column("sequence", "bigint"),
    Column("time_ms", "timestamp_ms"),
    Column("latency_us", "bigint"),
    Column("error", "string"),
)
_SAME_PROBE: Final = ["checker", "cluster", "partition", "probe", "sequence"]


def probes(rows: DataFrame) -> DataFrame:
    return rows.withColumnRenamed("time_ms", "time").drop("schema")


def percentile(part: float, of: str) -> Any:
    return F.expr(f"percentile_disc({part}) WITHIN GROUP (ORDER BY {of})")


def minutes(rows: DataFrame) -> DataFrame:
    """(cluster, minute, broker, latency_p99_us, unavailable) for each broker."""
    once = rows.dropDuplicates(_SAME_PROBE)
    succeeded = F.col("latency_us").isNotNull()
    end_to_end = F.when(F.col("probe") == Probe.CONSUME.value, F.col("latency_us"))
    marked = once.select(
        "cluster",
        F.date_trunc("minute", "time").alias("minute"),
        "broker",
        end_to_end.alias("latency_us"),
        F.when(succeeded, 0).otherwise(1).alias("failed"),
    )
    return marked.groupBy("cluster", "minute", "broker").agg(
        percentile(0.99, "latency_us").alias("latency_p99_us"), F.avg("failed").alias("unavailable")
    )


def cluster_weeks(rows: DataFrame, since: datetime | None = None) -> DataFrame:
    """(week, cluster, minutes, latency_p99_us, unavailable_p99, availability) for each cluster."""
    recent = rows if since is None else rows.filter(F.col("time") >= F.lit(since))
    worst = (
        minutes(recent)
        .groupBy("cluster", "minute")
        .agg(
            F.max("latency_p99_us").alias("latency_us"),
            F.max("unavailable").alias("unavailable"),
            F.avg("unavailable").alias("mean_unavailable"),
        )
    )
    week = F.to_date(F.date_trunc("week", "minute")).alias("week")
    return worst.groupBy(week, "cluster").agg(
        F.count("*").alias("minutes"),
        percentile(0.99, "latency_us").alias("latency_p99_us"),
        percentile(0.99, "unavailable").alias("unavailable_p99"),
        (1 - F.avg("mean_unavailable")).alias("availability"),
    )


def fleet_weeks(rows: DataFrame, since: datetime | None = None) -> DataFrame:
    """(week, clusters, latency_{median,p90,p99}_us, unavailable_{median,p90,p99}) for the fleet."""
    parts = {"median": 0.5, "p90": 0.9, "p99": 0.99}
    figures = [percentile(part, "latency_p99_us").alias(f"latency_{name}_us") for name, part in parts.items()]
    figures += [
        percentile(part, "unavailable_p99").alias(f"unavailable_{name}") for name, part in parts.items()
    ]
    return cluster_weeks(rows, since).groupBy("week").agg(F.count("*").alias("clusters"), *figures)


def start_of_week(moment: datetime) -> datetime:
    """Monday, midnight, UTC."""
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return day - timedelta(days=day.weekday())


SLO: Final = Job(
    name="slo",
    summary="health probes to weekly latency and availability of clusters and the fleet",
    source=Source(HEALTH_TOPIC, columns=COLUMNS, event=HealthProbe),
    sink=Sink("platform.probes", partition_by=("days(time)",)),
    transform=probes,
    derived=(
        Derived("platform.slo_clusters", cluster_weeks, "week", "time", start_of_week, ("week",)),
        Derived("platform.slo_fleet", fleet_weeks, "week", "time", start_of_week, ("week",)),
    ),
    every_seconds=3600,
)
