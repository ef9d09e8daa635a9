"""The data pipeline: whatever reads a day of events is a job on Spark.

What it is: jobs that read topics as a tenant or as the platform, and keep tables in Iceberg. A job
is a small module: where its records come from and how they are read, a pure transformation of
frames, the table they go to, and tables derived from that one. One runner owns all the rest:
sessions, connector jars, logins, checkpoints, commits, progress and lag.

What it is not: a way to process events with low latency (that is `penstock.olep` and
`penstock.consume`), a query engine of our own, or a scheduler for other people's programs.

What it promises, with driver, executors and brokers crashing at any point:
- every record of a topic is in its table once, or in the table of rejected records with the reason;
- each commit of a table carries the range of offsets it holds, so a lost checkpoint loses nothing;
- a derived table equals what its transformation makes of the whole source table;
- records that retention took before they were read are named, never passed over in silence.
"""
