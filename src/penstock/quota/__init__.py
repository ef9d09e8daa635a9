"""Sharing a limit: nobody takes what is another's, and nobody within its quota waits.

A tenant's quota is enforced where its traffic passes, at several points. `buckets` is what one point
does with a limit. `sharing` splits the quota over the points by where it is used, and lets them be
lazy while there is plenty. `tuning` shrinks everybody's part on a broker that has more asked of it
than it can do. `reports` turns what points have told into use and silence.

All of it is decisions: time comes in, nothing else does. Splits and levels work on arrays, a row for
each tenant, so that the simulator runs the same lines for thousands as a coordinator does for one.
Nothing here knows Kafka or speaks to anybody.
"""
