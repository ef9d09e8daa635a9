"""Sharing a limit: a tenant within its quota is never throttled, and no tenant takes another's share.

Gateways enforce a tenant's quota where its traffic passes. A coordinator splits the quota into a share
for each gateway, by where it is used, and lets gateways throttle lazily while much of it is unused.
Auto-tuning shrinks every tenant's limits on an overloaded broker (Kora §5.2).

It does not enforce anything: gateways do, with the arithmetic of this package. It promises that a
tenant's shares sum to at most its quota, except for the even split that a gateway takes when traffic
newly arrives; that shares stay where they are when a coordinator is replaced; and that gateways fall
back to an even split when no coordinator is left.

Shares and levels are computed on arrays with one row for each tenant, so that the simulator runs the
same code for thousands of tenants as a coordinator does for one.

Modules:
  auto_tuning     the level that keeps a broker below its limit (Kora §5.2.1)
  calibration     how much of the request time that a gateway measures is the broker's own work
  coordinator     the process that decides the shares of the tenants it owns
  enforcement     the limit that one gateway enforces, given the last published shares
  kafka_quota     Kafka's own client quotas as a backstop behind the gateways
  metrics         a coordinator's Prometheus metrics
  pressure        when a broker is under pressure
  process         runs a coordinator for each cluster until a signal stops it
  settings        the settings file of a coordinator that runs anywhere
  share_follower  follows `_penstock.quota`: the latest shares of each tenant
  sharing         splits quotas over gateways; lazy throttling (Kora §5.2.2)
  summary         use, demand and grants of a tenant over all gateways
  tenant_usage    the tenants of one coordinator: reports in, shares out
  token_bucket    a token bucket with Kafka's throttle arithmetic
  topics          the topics of quotas, usage reports and pressure events
  usage_reports   from cumulative usage reports to one tenant's next shares
"""
