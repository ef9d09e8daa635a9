"""Backups: every topic in a second object store, and deleted data restored at its original offsets.

An archiver stores raw batches every few seconds, and a catalogue records topics, configs, ACLs, group
offsets and the registry, by topic id. A restore lets a shadow broker lead a new topic from the backup, so
offsets, gaps, transaction markers and producer ids are as they were. Nothing runs inside a gateway, and
nothing is re-produced. In place, a live topic gets back what it lost, while producers keep writing.

It promises that a stored segment is whole and never overwritten, that what could not be archived is recorded
as a gap, and that a restored topic opens only after every replica has the digest of the backup.

Modules:
  abandoning      gives up a restore
  archive         reads segments, gaps and logs of a backup
  archiver        stores raw batches from followers
  catalogue       what the cluster had at a time
  cataloguer      collects it from a live cluster
  chain           one log from segments that may overlap
  drill           restores a topic to a scratch topic, and compares
  expirer         reads what an expiry needs, and deletes
  expiry          which objects no restore needs any more
  holds           what sweeps and expiries must keep
  in_place        restores what a live topic has lost
  layout          keys of a backup store
  live_log        a log from its backup and its replicas
  overview        topics and state of a backup, for people
  planning        gathers what a plan needs
  proof           compares replicas with the backup
  raw_fetch       raw batches by topic id
  replay          leads restored partitions through a shadow
  restore_plan    what a restore does, and why it may not
  restore_steps   the steps of a restore
  restore_store   state in `_penstock.restores`
  restored_topic  configs, ACLs and group offsets of a restored topic
  restorer        carries out a restore
  service         runs the archiver and the catalogue
  settings        the settings file of a backup
  sources         from which replica a partition is archived
  verification    checks a backup
"""
