"""Metering: cumulative gateway counters → usage per tenant and dimension, by hour and day.

Reports carry counters that start at zero for each gateway incarnation and only rise. The job keeps the
highest value of each counter per hour; the usage of an hour is the rise since the previous hour that has
a value. So:
- repeating a report changes nothing; a late report corrects its own hour and the next, never the total;
- the next report makes up for a lost one; usage between two reports counts towards the later one's hour;
- a new incarnation starts at zero, and a killed gateway loses only what it had not yet reported.

A refresh reads the last days and, of all earlier ones, only the highest value of each counter
(`platform.usage_rollup`), so its cost does not grow with history.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from penstock.model.key_names import USAGE_TOPIC
from penstock.pipeline.job import Derived, Job, Rollup, Sink, Source
from penstock.pipeline.reading.usage import SERIES, UsageReader

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

COUNTER: Final = (*SERIES, "dimension")
BATCH_REPORTS_MAX: Final = 5_000_000
LATE_DAYS: Final = 2  # later reports make a refresh read the whole table
# An incarnation that has a successor and has been silent this long has ended: its counters leave the rollup.
ENDED_DAYS: Final = 35


def highest(rows: DataFrame) -> DataFrame:
    """One row per counter and hour of the batch."""
    return rows.groupBy(*COUNTER, "hour").agg(F.max("counter").alias("counter"))


def hourly_use(counters: DataFrame, since: datetime | None = None) -> DataFrame:
    """(tenant, cluster, dimension, hour, used), without zero rows."""
    hours = Window.partitionBy(*COUNTER).orderBy("hour")
    previous = F.lag("counter", 1, 0).over(hours)
    rises = highest(counters).select(*COUNTER, "hour", (F.col("counter") - previous).alias("rise"))
    if since is not None:
        rises = rises.filter(F.col("hour") >= F.lit(since))
    used = rises.groupBy("tenant", "cluster", "dimension", "hour").agg(F.sum("rise").alias("used"))
    return used.filter(F.col("used") != 0)


def daily_use(counters: DataFrame, since: datetime | None = None) -> DataFrame:
    """(tenant, cluster, dimension, day, used)."""
    hours = hourly_use(counters, since)
    day = F.to_date("hour").alias("day")
    return hours.groupBy("tenant", "cluster", "dimension", day).agg(F.sum("used").alias("used"))


def latest(counters: DataFrame, before: datetime) -> DataFrame:
    """The last hour and value of each counter, without incarnations that have ended."""
    last = counters.groupBy(*COUNTER).agg(
        F.max("hour").alias("hour"), F.max_by("counter", F.struct("hour", "counter")).alias("counter")
    )
    gateway, incarnation = ("cluster", "gateway"), ("cluster", "gateway", "incarnation")
    seen = F.max("hour").over(Window.partitionBy(*incarnation))
    succeeded = F.max("hour").over(Window.partitionBy(*gateway)) > seen
    ended = succeeded & (seen < F.lit(before - timedelta(days=ENDED_DAYS)))
    return last.withColumn("ended", ended).filter(~F.col("ended")).drop("ended")


def start_of_day(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


METERING: Final = Job(
    name="metering",
    summary="gateway counters to usage per tenant and dimension, hourly and daily",
    source=Source(USAGE_TOPIC, reader=UsageReader(), batch_offsets_max=BATCH_REPORTS_MAX),
    sink=Sink("platform.usage_counters", partition_by=("days(hour)",)),
    transform=highest,
    derived=(
        Derived("platform.usage_hourly", hourly_use, "hour", "hour", start_of_day, ("days(hour)",)),
        Derived("platform.usage_daily", daily_use, "day", "hour", start_of_day, ("day",)),
    ),
    rollup=Rollup("platform.usage_rollup", latest, "hour", LATE_DAYS),
    every_seconds=3600,
)
