"""The durability audit: detect data loss while the data can still be saved (Kora §4.6.3).

What it is: collectors write every change of a log's metadata to `_penstock.durability`. A small set of rules,
each a pure fold, judges these events, live and in a daily Spark job.

What it is not: a count of messages, or the history of operators' actions (`_penstock.audit`).

What it promises: both engines give the same findings, whatever the order and repetition of events. A deletion
that retention, DeleteRecords, a restore or a link explains is never reported. Where evidence is missing,
nothing is reported, and the report states the coverage.

Modules:
  alerts            signed webhooks in Alertmanager's format
  day               the report on one day, no I/O
  day_reader        reads the events of a day for its report
  evidence          facts from ack evidence and tier metadata
  explaining        why each change of a partition was legal, no I/O
  finding_reader    follows findings, and records what operators do about them
  group_offsets     compares committed offsets with the logs
  healing           what to do about a corrupt leader, no I/O
  intents           records what the platform is about to delete or weaken
  lifecycle         findings are open, acknowledged or resolved, no I/O
  live              the live engine: states and findings, no I/O
  metadata_history  facts from the metadata log
  metrics           Prometheus metrics
  process           runs auditors until a signal
  reading           the history of a partition for operators
  report_page       the daily report as an HTML page
  rules             the catalogue of rules, and the fold that checks them
  scrub             reads every copy of a log, and compares
  service           the auditor of one cluster: collects, folds, publishes
  settings          the audit's YAML settings file
  store_evidence    what is wrong with the objects of tiers and backups
  stores            lists the object stores of a cluster
  sweep             reads each replica's own positions
  topic_ids         topic ids in Kafka's text form
  topics            the topics of the audit
"""
