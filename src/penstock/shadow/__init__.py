"""A shadow broker: a process that registers as a broker of a stock cluster and leads partitions there.

Real brokers replicate from it over Kafka's own protocol, so a log from elsewhere arrives byte for byte, with
its offsets, gaps and transaction markers. It stores no records: they come from a window in memory or,
below it, from where they came from. It is not a broker for clients: it accepts no records, and sends
consumers to real followers.

It promises that no response makes a follower discard records, unless a truncation is recorded; that
its high watermark counts real in-sync replicas only; and that a shadow that restarts with less than its
followers counts as unclean, so it leaves the in-sync replicas until it has caught up.

Modules:
  broker          the shadow broker: its registration, server and partitions together
  epoch_history   leader epochs of a log and where they start
  following       catching up with a real leader to become in-sync again; new leader epochs
  identity        ids of the shadow, on disk
  leadership      followers' progress, high watermark and in-sync replicas of a led partition
  login           server side of SCRAM
  partition       a led partition: its window of batches and its leadership
  producer_ids    keeps new producer ids above those of the partitions that it leads
  registration    registration, heartbeats and the tail of the metadata log
  requests        requests of followers and clients, answered
  responses       guarded responses to followers: the only ones that could destroy data
  server          the inter-broker listener
"""
