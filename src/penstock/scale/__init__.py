"""The persistent-lag scaler: replicas follow pressure that lasts, not noise.

What it is: a KEDA external scaler for any Kafka. It samples the lag of consumer groups at an
interval, evaluates each partition over a sliding window, and requests a replica count. Persistent
means *above the threshold without a break for the sustain time*. (KEDA's `excludePersistentLag`
uses the word for what is called *stalled* here.)

What it is not: a consumer, a Kubernetes client or a second HPA. It never sets replicas; it answers
KEDA's calls, and the HPA decides on limits and speed.

What it promises:

- The verdict is a pure function of the samples, the policy and a small memory stored with the
  samples. Two instances that read the same samples reach the same verdict.
- A partition that more consumers cannot help (stuck, or alone on its member) never causes a scale-up.
- While the brokers are unreachable, calls get an error, never zero.

It runs as two processes. The service answers KEDA's calls; the sampler, which the service starts,
samples, stores and evaluates. Neither waits for the other.

Modules:
  decision         the verdict as pure functions: windows, rules, sizing
  event_loop       yield to the event loop in long loops; garbage-collection thresholds
  explain          the verdict rule by rule, for `penstock scale explain`
  external_scaler  KEDA's external scaler protocol
  grpc_service     KEDA's service for gRPC servers and clients, from the protocol's descriptor
  metrics          Prometheus metrics of both processes
  proto            KEDA's protocol, generated from externalscaler.proto
  sampler          the sampler process: sample clusters, store samples, evaluate
  server           the gRPC server with TLS, health and reflection
  settings         the scaler's settings file
  simulate         play load traces through this scaler and KEDA's
  verdict_cache    the latest verdict of each ScaledObject, from which calls are answered
  watched_groups   watched ScaledObjects: their policy, window and verdict
"""
