"""Tiered storage: old segments of a topic in an object store, read back by the brokers themselves.

What it is: a plugin for Kafka's tiered storage (`plugin/`, Java), which brokers load, and what builds and
configures it. A segment is three objects in format 1 (`docs/tier-format.md`); the manifest is written last.

What it is not: it moves no records itself. Brokers copy, read and expire segments; backups of what is not
tiered are `penstock.backup`.

What it promises: a segment that is damaged is never uploaded, every byte is verified before a broker uses it,
and nothing a broker does deletes or overwrites an object.

Modules:
  format      keys, manifests and tombstones of format 1
  metadata    which segments are live, folded from `__remote_log_metadata`
  plugin_jar  compile the plugin, reproducibly, and place it where brokers load it
  s3_jars     the jars of the S3 store
  status      how far each tiered partition is in the store, and what each broker counted
  store       an object store: files or S3, with conditional writes
  sweep       which objects may be deleted
  sweeper     reads what the decision needs, and deletes
"""
