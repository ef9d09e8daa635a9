"""The gateway: every Kafka client gets a cluster of its own.

What it is: one connection's life (`states`, `login`, `admission`), what becomes of the names in its
bytes (`tenancy`, on the plans of `penstock.wire`), the few requests that are parsed and built anew
(`rebuild`, `placement`), what is answered or refused here (`apis`, `refusals`), what is counted on
the way (`metering`), and the server that holds thousands of such connections (`session`, `upstream`,
`server`).

What it is not: it keeps no state that it cannot rebuild from its configuration, decides over no
quota and writes to no topic; `penstock.control` and `penstock.quota` do.

What it promises: a tenant sees and touches only what lies below its own prefix; what is not
understood is refused, never passed on; no address of a broker reaches a client; memory is bounded
under slow readers; a revoked key's connections are closed.
"""

from penstock.wire.pump import prefer as _prefer

_prefer(__name__, __path__)
