"""Where tenants live: cells of brokers, who goes into which, and how one is moved.

Decisions: `load` (how full a cell is), `cells` (making them of brokers, where a new tenant goes, who
leaves a full one), `relief` (when, and how fast), `moving` (which partitions go where, in
which order). `move` carries a move out on a real cluster.

It does not look into topics' data, does not know quotas, and never decides by their sum: cells are
oversubscribed on purpose, and what counts is measured load. It promises that a tenant's partitions
lie on its cell's brokers with replicas in as many zones as there can be, that a move that was
interrupted anywhere is finished by asking for it again, and that nothing of a move (throttles)
stays behind once it is done.
"""
