"""Spark itself: its session, connectors, streaming queries, checkpoints and errors.

What it is: the only code that knows how Spark, its JVM and its Kafka source behave.

What it is not: what jobs compute, or what they write.

What it promises: connector jars are pinned and verified before each use; a failure of Spark, its JVM or
the disk becomes one Penstock error; no query outlives its caller.

Modules:
  checkpoint  reads a streaming query's checkpoint directory
  connectors  the pinned jars: Kafka source, Iceberg, SQLite driver
  failure     translates errors of Spark, Java and full disks
  java        the JVM that Spark runs in: its classes, its exit status, and silencing py4j
  kafka       options of the Kafka source and sink; topic offsets; committing progress
  query       runs a streaming query to its end, and stops it with its caller
  session     opens the Spark session and configures the catalog `lake`
"""
