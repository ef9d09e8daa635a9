"""Benchmarks: one module per area, run as `python -m bench.<area> [--quick] [--json]`.

What it is: each bench compares our code with a peer, interleaved in one run, and checks the ratios
against goals. A bench is one function that yields results.

What it is not: a test. A missed goal is a result, not a failure.

What it promises: several runs per result, never two benches at once, and bad results reported like good
ones.

The folders `kroxylicious` and `peers` hold programs that run a peer, each in its own environment.

Modules:
  attack_load           what an attacker sends
  attacks               a tenant beside an attacker of the gateway
  audit                 the rules over millions of events, and the speed of a scrub
  balance               planning at scale: seconds, memory, evenness, bytes moved
  balance_setup         skewed clusters for `balance`
  cells                 what cells save, and how evenly they fill
  cells_setup           real brokers for `cells`: cost of a request, and a move under load
  consume               the parallel consumer against a bare loop and Confluent's parallel consumer
  consume_jobs          our consumer and the bare loop as a warm process that takes jobs
  consume_setup         a broker, filled topics and the contenders of `consume`
  consume_work          processor-bound work done three ways
  control               how fast clusters are created, and what many tenants cost
  fleet                 how soon a fleet is ready, and what starting it costs
  fleets                starts and kills the local Kafka of a bench
  gateway               the gateway against HAProxy and Kroxylicious
  gateway_kroxylicious  starts Kroxylicious with its multi-tenant filter
  gateway_load          load over plain sockets, from prepared frames
  gateway_relays        starts the broker, HAProxy and the gateway
  harness               the command, lock, results, tables and plots that benches share
  isolation             a tenant beside greedy neighbours, with and without quotas
  isolation_load        the victim and its greedy neighbours
  link                  a cluster link against MirrorMaker 2
  link_setup            clusters, load and MirrorMaker 2 for `link`
  measure               interleaved rounds, and processor time of process trees
  olep                  payments on logs against PostgreSQL
  olep_load             appends requests and waits for their outcomes
  olep_postgres         the same transfers in PostgreSQL
  olep_processes        the executor process, and processor time per process
  pipeline              Spark jobs against loops in plain Python
  pipeline_load         topics full of events, and the plain loops
  quotas                ways of sharing quotas over a simulated week
  rolls                 a roll under load: what clients notice, and how long it takes
  scale                 the persistent-lag scaler against KEDA's kafka scaler
  scale_calls           calls the scaler from a separate process
  sizing                how fast fleets are computed, and what sizes cost in a simulated quarter
  tier                  tiered storage against Kafka's own test store
  tier_setup            brokers with each store, and topics that tier at once
  views                 views: applying, rebuilding and reading consistently
  views_load            a bank's log, and applying it to a store
  wire                  the codec against kio and kafka-python
  wire_plans            renaming in frames against decoding them
"""
