"""The control plane: clusters, tenants, keys and cells, kept in Kafka itself.

What it is: what every entity may become (`decisions`, `units`, pure), the registry that holds them
(`registry`, a fold of one compacted topic), the one writer that is active (`service`), what each
tenant needs inside Kafka and the operations that bring it there (`wanted`, `operations`, `steps`),
what gateways are told (`states`), tenants' way out of full cells (`relieving`), the
checker that compares what is declared with what Kafka has (`checker`), and the HTTP API on top (`api`).

What it is not: it is not on the way of any record. Gateways go by `_penstock.state` of their own
cluster, so tenants do not notice whether a control plane runs.

What it promises: an answer means that the change is committed. One control plane writes at a time,
and one that was paused cannot write any more. Every effect outside the registry follows a committed
intent, can be done twice, and is carried on by whoever takes over. No secret is stored, logged, or
told a second time.
"""
