"""Fleet SLO (Kora §4.4.2): health probes → weekly latency and availability of clusters and the fleet.

For each broker and minute: the P99 of end-to-end latency over successful probes, and the fraction of
probes that failed. The worst broker represents its cluster in that minute. The cluster's weekly value is
the P99 of these minutes; the fleet's values are the median, P90 and P99 over all clusters. Unavailability
is aggregated like latency, since a higher value is worse for both.

Percentiles are exact (nearest rank). Duplicate probe records count once. Means are of integers, so that they
do not depend on the order in which Spark adds them: `penstock.health.slo` gets the same to the last digit.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from penstock.health.slo import SHARE
from penstock.model.events import HealthProbe, Probe, ProbeRole
from penstock.model.key_names import HEALTH_TOPIC
from penstock.pipeline.job import Derived, Job, Sink, Source
from penstock.pipeline.jobs.metering import start_of_day
from penstock.pipeline.lake.columns import columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = columns_of(
    "cluster string, broker int, zone string, partition int, probe string, checker string, "
    "sequence bigint, time_ms timestamp_ms, latency_us bigint, error string, role string"
)
_SAME_PROBE: Final = ["checker", "cluster", "partition", "probe", "sequence"]


def probes(rows: DataFrame) -> DataFrame:
    """Probes of what clients get. The others show which part is at fault; older checkers name no role."""
    of_clients = F.coalesce(F.col("role"), F.lit(ProbeRole.PATH.value)) == ProbeRole.PATH.value
    return rows.filter(of_clients).withColumnRenamed("time_ms", "time").drop("schema", "role")


def percentile(fraction: float, column: str) -> Any:
    return F.expr(f"percentile_disc({fraction}) WITHIN GROUP (ORDER BY {column})")


def broker_minutes(rows: DataFrame) -> DataFrame:
    """(cluster, minute, broker, latency_p99_us, unavailable)."""
    unique = rows.dropDuplicates(_SAME_PROBE)
    succeeded = F.col("latency_us").isNotNull()
    end_to_end = F.when(F.col("probe") == Probe.CONSUME.value, F.col("latency_us"))
    marked = unique.select(
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
    """(week, cluster, minutes, latency_p99_us, unavailable_p99, availability)."""
    recent = rows if since is None else rows.filter(F.col("time") >= F.lit(since))
    worst = (
        broker_minutes(recent)
        .withColumn("parts", F.floor(F.col("unavailable") * F.lit(float(SHARE))))
        .groupBy("cluster", "minute")
        .agg(
            F.max("latency_p99_us").alias("latency_us"),
            F.max("unavailable").alias("unavailable"),
            F.expr("sum(parts) div count(*)").alias("mean_unavailable"),
        )
    )
    week = F.to_date(F.date_trunc("week", "minute")).alias("week")
    return worst.groupBy(week, "cluster").agg(
        F.count("*").alias("minutes"),
        percentile(0.99, "latency_us").alias("latency_p99_us"),
        percentile(0.99, "unavailable").alias("unavailable_p99"),
        (1 - F.expr("sum(mean_unavailable) div count(*)") / F.lit(float(SHARE))).alias("availability"),
    )


def fleet_weeks(rows: DataFrame, since: datetime | None = None) -> DataFrame:
    """(week, clusters, latency_{median,p90,p99}_us, unavailable_{median,p90,p99})."""
    levels = {"median": 0.5, "p90": 0.9, "p99": 0.99}
    columns = [percentile(level, "latency_p99_us").alias(f"latency_{n}_us") for n, level in levels.items()]
    columns += [percentile(level, "unavailable_p99").alias(f"unavailable_{n}") for n, level in levels.items()]
    return cluster_weeks(rows, since).groupBy("week").agg(F.count("*").alias("clusters"), *columns)


def start_of_week(moment: datetime) -> datetime:
    """Monday, midnight, UTC."""
    return start_of_day(moment) - timedelta(days=moment.weekday())


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
