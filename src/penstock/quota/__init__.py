"""Sharing a limit: nobody takes what is another's, and nobody within its quota waits.

A tenant's quota is enforced where its traffic passes, at several points. `buckets` is what one point
does with a limit. `sharing` splits the quota over the points by where it is used, and lets them be
lazy while there is plenty. `tuning` shrinks everybody's part on a broker that has more asked of it
than it can do. `reports` turns what points have told into use and silence, `tenants` is what a
coordinator knows, `points` what a gateway makes of what it is told.

All of these are decisions: time comes in, nothing else does. Splits and levels work on arrays, a row for
each tenant, so that the simulator runs the same lines for thousands as a coordinator does for one.
Only `coordinator`, `told`, `topics` and `metrics` speak to anybody. What is promised: shares of a tenant
sum to at most its quota, but for what a gateway takes that traffic comes to anew; a coordinator that
dies is replaced without shares moving; without any, gateways fall back to an even split.
"""
