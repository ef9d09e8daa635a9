"""The data pipeline: Spark jobs that turn topics into Iceberg tables.

What it is: a job declares a source topic, a pure transformation of data frames, a sink table and tables
derived from it. A single runner does the rest: sessions, connector jars, logins, checkpoints, commits,
progress and lag. Jobs read as a tenant or as the platform.

What it is not: low-latency processing (see `penstock.olep` and `penstock.consume`), a query engine, or a
scheduler for arbitrary programs.

What it promises, even if the driver, executors or brokers crash at any point:
- every record of a topic is in its table exactly once, or in the table of rejected records with the
  reason;
- every commit of a table stores the offset range it holds, so losing a checkpoint loses no data;
- a derived table equals its transformation applied to the whole source table;
- records that retention removed before they were read are reported, never skipped silently.

Modules:
  backfill      re-reads an exact range of offsets into a job's table
  composition   builds a runner from a home and a settings file
  job           what a job declares: source, transformation, sink, derived tables, interval
  jobs          the platform's own jobs: metering, fleet SLO, audit, durability
  lake          Iceberg tables: writing batches exactly once, derived tables, maintenance
  lock          allows one run of a job at a time
  metrics       Prometheus metrics of jobs, from their status files
  olep_fold     folds one partition of an OLEP log with its state in Spark's state store
  olep_rebuild  rebuilds the stores of an OLEP application from its whole log
  reading       decodes records into rows in Spark's Python workers
  runner        runs a job: streaming query, batches, status and lag
  schedule      decides which job is due, with back-off after failures
  settings      the pipeline's YAML settings file
  spark         Spark itself: sessions, connectors, queries, checkpoints, errors
  status        a job's status file and directory layout
  table_view    reads a job's table as of a log position
"""
