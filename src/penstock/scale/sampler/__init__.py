"""The sampler process: samples consumer groups, stores the samples and evaluates them.

What it is: the only part of the scaler that calls Kafka. One sampler for each cluster reads all
watched groups once an interval. Instances share their samples through the samples topic.

What it is not: it answers no calls of KEDA; it sends verdicts to the service's process.

What it promises: instances that read the same samples topic reach the same verdicts, and one cluster
or group that cannot be sampled does not delay the others.

Modules:
  channel        frames between the service's process and the sampler's
  cluster        sample all watched groups of one cluster
  kafka_source   read groups, offsets and transaction markers from Kafka
  loop           the sampling loop: sample, publish, read back, evaluate, report
  process        the sampler process itself
  records        the records of the samples topic
  samples_topic  write and read the samples topic, or an in-memory replacement
  source         what a sampler needs of a cluster, as a protocol
  supervisor     start, watch and restart the sampler process from the service
"""
