"""A small asyncio Kafka client for the platform's own calls.

What it is: connections, routing and retries, plus short typed functions for the admin APIs that the
platform needs.

What it is not: the data path of applications. Those use confluent-kafka.

What it promises: a call ends with its response or with a typed error within its time limit. A
cancelled call leaves the connection usable. A request that may already have taken effect is sent
again only if repeating it is harmless.

Modules:
  admin             Kafka's admin APIs: topics, groups, offsets, ACLs, configs, reassignments
  append            append records to a partition without a transaction
  broker_errors     turn Kafka error codes into errors of the catalogue
  broker_metrics    the metrics of a node as values, and the moments of a window
  client            a client for a whole cluster: bootstrap, routing, retries
  cluster_settings  how a settings file names a cluster: addresses, TLS, login
  compacted_topic   follow a compacted partition from its start
  connection        one connection: TLS, login, version negotiation, pipelining
  document_topic    JSON documents by key in a compacted topic, which one process writes
  isr_exclusion     take a live broker out of every ISR
  login             log in with SASL PLAIN, SCRAM or OAUTHBEARER
  membership        share partitions among processes through a consumer group
  metadata_image    the cluster as its controllers have it: an image of the metadata log
  metrics_agents    which metrics agent belongs to which broker
  metrics_scrape    scrape the metrics of a node
  oauth             tokens for OAUTHBEARER, from an authorization server
  ownership         elect one owner among several processes
  partition_log     read committed records, and append in transactions
  quorum            describe the KRaft quorum and read its metadata log
  retry             decide whether and when to send a request again
  routing           which node a request goes to
  scram             the client side of SCRAM
  security          TLS and login settings of a connection
  tls_errors        name the reason of a failed TLS handshake
"""
