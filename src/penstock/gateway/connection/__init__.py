"""One client's connection to one broker, without I/O: bytes and time in, bytes and effects out.

A Produce request passes `process/session.py`, `connection/connection.py`, `connection/stages.py` (or, if it
was seen before, `connection/fast_path.py`) and `penstock/wire/splice.py`, and so does its response.

Modules:
  auto_creation     creates topics that a Metadata request names, for tenants that want it
  connection        one client connection: both directions, its queue, pauses, login and end
  effects           what a connection asks of the process around it
  error_responses   error responses for any API
  fast_path         passes repeated Produce requests and plain fetches without parsing
  in_flight         a request that waits for its response
  large_requests    memory of the broker for large requests
  large_responses   memory for large responses
  local_requests    requests the gateway handles itself: login, ApiVersions, refusals, rebuilding
  local_work        runs such a request step by step, if it takes time
  login             SASL/PLAIN authentication with an API key
  muting            does not read a client whose refusals or partition changes exceed a rate
  proxy_header      the PROXY protocol of load balancers, as a parser
  request_sampling  logs a sample of requests and connections
  routes            the table of `tenancy.apis`, prepared for the data path
  scram_login       the login to a broker, as frames and responses
  services          what a gateway lends to its connections
  share_session     the share session of a connection
  stages            the stages that every frame passes, in order
  states            the states of a connection, and why its client is not read
  time_limits       closes connections that take too long
  throttle          charges a connection's use to its tenant's quota, and queues what exceeds it
"""

from penstock.wire.compiled import prefer_compiled as _prefer_compiled

_prefer_compiled(__name__, __path__)
