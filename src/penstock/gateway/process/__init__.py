"""A gateway as a process: sockets, configuration, workers, metrics.

Modules:
  acceptor             accepts clients: listeners, admission, PROXY headers, TLS
  ack_writer           writes ack evidence to its topic
  broker_source        follows the brokers of the cluster while the gateway runs
  config_source        where configurations come from, and the file that implements it
  control_plane_calls  platform calls of a gateway without the platform key
  discovery            reads the brokers of the cluster at its bootstrap address
  intent_writer        clients' intents to `_penstock.durability`
  listener_sockets     sockets bound to the gateway's ports
  management           the gateway's management address, and when it is ready
  metered              charges a tenant for the time that its tasks use
  metrics              the gateway's Prometheus metrics
  registration         claims the gateway's name and sends its heartbeats
  run                  runs a gateway from its file: assembles, supervises workers, serves metrics
  run_file             which gateways run with a configuration file
  scheduler            serves connections that wait for processor time
  server               listeners, sessions, and periodic housekeeping
  session              the asyncio side of a connection: two transports
  sni_hosts            host names that select a tenant and a broker
  tenant_source        follows `_penstock.state` for the gateway's tenants
  upstream             the connection to the broker: dial, log in, hand over
  worker_supervisor    starts, replaces and stops worker processes
"""

from penstock.wire.compiled import prefer_compiled as _prefer_compiled

_prefer_compiled(__name__, __path__)
