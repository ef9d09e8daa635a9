"""The Kafka underneath: jars, local processes in zones, their supervision, and adoption.

A fleet is one or more physical clusters. An embedded cluster is local KRaft processes, one node a
process, controllers apart from brokers; an adopted one is somebody else's, reached by its
bootstrap address. This package starts, watches, restarts and stops the first kind, and finds out
what the second kind allows. It knows nothing of tenants.

What it promises: a node's data directory never has two processes on it; a node that dies comes
back; a supervisor that dies leaves its nodes running and the next one adopts them; what `status`
says was observed, not remembered.
"""
