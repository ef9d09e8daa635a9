"""Metering: cumulative counters of the gateways → use by tenant and dimension, by the hour and the day.

Reports carry counters that rise from zero within an incarnation of a gateway. What is kept is the
highest value of each counter in each hour; use of an hour is the rise since the hour before that
has one. So, to the unit:
- a repeated report changes nothing, and one that came late corrects the hour it belongs to and the
  one after it, never the sum;
- a lost report is made good by the next one; use between two reports counts to the later one's hour;
- a new incarnation begins at zero; what a killed gateway had not reported is lost in the tenant's favour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from penstock.model.keys import USAGE_TOPIC
from penstock.pipeline.job import Derived, Job, Sink, Source
from penstock.pipeline.reading.usage import SERIES, UsageReader

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

COUNTER: Final = (*SERIES, "dimension")
BATCH_REPORTS_MAX: Final = 5_000_000


def highest(rows: DataFrame) -> DataFrame:
    """One row for each counter and hour of the batch."""
    return rows.groupBy(*COUNTER, "hour").agg(F.max("counter").alias("counter"))


def hourly_use(counters: DataFrame, since: datetime | None = None) -> DataFrame:
    """(tenant, cluster, dimension, hour, used); zero is not written."""
    highest_of_hour = highest(counters)
    before = F.lag("counter", 1, 0).over(Window.partitionBy(*COUNTER).orderBy("hour"))
    rises = highest_of_hour.select(*COUNTER, "hour", (F.col("counter") - before).alias("rise"))
    if since is not None:
        rises = rises.filter(F.col("hour") >= F.lit(since))
    used = rises.groupBy("tenant", "cluster", "dimension", "hour").agg(F.sum("rise").alias("used"))
    return used.filter(F.col("used") != 0)


def daily_use(counters: DataFrame, since: datetime | None = None) -> DataFrame:
    """(tenant, cluster, dimension, day, used)."""
    hours = hourly_use(counters, since)
    day = F.to_date("hour").alias("day")
    return hours.groupBy("tenant", "cluster", "dimension", day).agg(F.sum("used").alias("used"))


def start_of_day(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


METERING: Final = Job(
    name="metering",
    summary="gateways' counters to use by tenant and dimension, hourly and daily",
    source=Source(USAGE_TOPIC, reader=UsageReader(), batch_offsets_max=BATCH_REPORTS_MAX),
    sink=Sink("platform.usage_counters", partition_by=("days(hour)",)),
    transform=highest,
    derived=(
        Derived("platform.usage_hourly", hourly_use, "hour", "hour", start_of_day, ("days(hour)",)),
        Derived("platform.usage_daily", daily_use, "day", "hour", start_of_day, ("day",)),
    ),
    every_seconds=3600,
)
