"""Runs the Kafka clusters underneath the platform, and adopts existing ones.

What it is: a fleet is one or more physical clusters. An embedded cluster is a set of local KRaft
processes, with controllers separate from brokers by default. An adopted cluster runs elsewhere and is
reached by its bootstrap address. This package starts, watches, restarts and stops embedded clusters,
and probes what adopted clusters allow.

What it is not: it knows nothing about tenants.

What it promises: a data directory never has two processes. A node that dies is restarted. A supervisor
that dies leaves its nodes running, and the next one takes them over. `status` shows what was observed,
not what was recorded.

Modules:
  adopted           clusters that run elsewhere: what they allow
  class_archive     the JVM class-data archive that shortens node starts
  cluster_record    the ids and ports of a local cluster, fixed at its first start
  credentials       keys, passwords and certificates
  generation        what a node runs with, as a value that can be compared
  jars              download and verify Kafka's jars
  java              find a Java runtime and build its command lines
  kafka_properties  a node's server.properties
  launcher          the Java class that starts the metrics exporter and Kafka in one JVM
  layout            the files and directories below PENSTOCK_HOME
  local_fleet       the embedded clusters below one home
  node              one local node: format, start, stop
  node_generations  what nodes run with, beside what the fleet file describes
  node_watch        the state machine that decides when a node is restarted
  readiness         probe a node, and wait until nodes are ready
  resize            add nodes to a running cluster, and take nodes away
  restarting        restart, hold and start single nodes by orders
  rolls             decisions of a roll
  runtime           obtain Java, the jars and the class-data archive
  spawn             the program that records its process identity and becomes a node
  spec              a fleet as values: clusters, nodes, listeners, ports
  spec_file         parse a fleet file
  status            the observed state of the fleet
  supervisor        keep the nodes of a fleet running
  tier_properties   a node's properties for tiered storage
  versions          versions of Kafka beside the pinned one, and which features a cluster may have
"""
