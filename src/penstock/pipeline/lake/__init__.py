"""Iceberg tables: batches written exactly once, derived tables, maintenance.

What it is: every write to the lake. Each commit stores which job, query and batch made it and which
offsets it holds, in the snapshot's summary. That record is the ledger by which repeated batches are
recognised.

What it is not: the streaming query (`penstock.pipeline.runner`) or the decoding of records
(`penstock.pipeline.reading`).

What it promises: a batch is in its table once, however often it is delivered; each change is one commit,
so a crash leaves the table as it was before or after.

Modules:
  batch             writes one micro-batch to its table and its rejected records
  columns           declared columns, and the reserved `kafka_` columns
  commit            commits a change only if the table is still as it was
  derived           refreshes tables derived from a job's table
  ledger            what a commit records, and where a run starts
  maintenance       compacts files, expires snapshots, removes orphan files
  tables            creates, checks, reads and appends to tables, and lists their snapshots
  upsert            merges rows into a table by key, and replaces rejected records
"""
