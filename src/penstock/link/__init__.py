"""Cluster links: byte-identical mirrors of topics on another cluster, with the same offsets.

A link fetches raw batches from any Kafka, and a shadow broker leads their mirrors on the destination, so
real brokers replicate them with offsets, gaps, transaction markers and timestamps. Group offsets follow as
they are. After a promotion or a failover, real brokers lead, clients may write, and consumers continue at
their offsets. It does not re-produce records, and it does not translate offsets.

It promises that a mirror accepts no write until it is promoted, that nothing of the source is ever skipped,
and that every change of state is committed before its effect, so a process that takes over continues it.

Modules:
  commands          what the command line does with the state of links
  group_sync        which group offsets to commit
  held_starts       whether a source deletes only what its retention allows
  limits            limits by rate and by the destination's disks
  lineage           leader epochs of source and mirror
  metadata_service  copies group offsets, configs, ACLs and quotas
  metadata_sync     which configs, ACLs and quotas follow
  metrics           metrics of a process that runs a link
  mirror            mirrors partitions through a shadow
  mirror_partition  a mirrored partition, and where it is attached
  mirror_topics     mirror topics, their configs and the ACL that closes them
  mirrored_batches  checks of what a source sent
  placement         replicas of a mirror
  promotion         the steps of a promotion
  readiness         what a promotion would find, without one
  reversal          reverses an active link: saves what only the old source has, and truncates it
  runner            runs one link
  settings          the settings file of a link
  source            raw batches from the source
  states            states and transitions, as a table
  store             state in `_penstock.links`
  tails             what only the old source of a link has
  verify            compares both sides
"""
