"""Splits a tenant's quota over the gateways that enforce it (Kora §5.2.2).

Called once an interval, with what each gateway used and whether it throttled. Rows are tenants, columns
gateways; `members` marks the gateways of a tenant. Promised for each tenant:
- Shares sum to at most the quota, even if silent gateways keep what they had.
- No share falls below a floor, from which it can always recover: one interval after a gateway starts to
  throttle, it has everything that the others do not use.
- Throttling gateways get equal shares. The others keep what they use and, if there is room, their recent
  peak. Small changes are not made.

Lazy throttling: while a tenant uses less than `lazy_below` of its quota in total, each gateway may
exceed its share by all that is unused (`lazy_limits`). So a tenant whose traffic rises at every gateway
at once may, for one interval, use its quota plus the formerly unused part at each gateway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.floating]
    Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SharingPolicy:
    floor: float = 0.05  # smallest share of a gateway, relative to the even split
    headroom: float = 0.25  # beyond its use, for a gateway that does not throttle while another does
    throttled_part_min: float = 0.75  # of the unused quota, what throttling gateways get at least
    peak_decay: float = 0.9  # of a gateway's peak use, kept from one interval to the next
    change_min: float = 0.05  # smaller changes, relative to the even split, are not made
    lazy_below: float | None = 0.9  # of the quota; None: never lazy


DEFAULT_POLICY: Final = SharingPolicy()
ROUNDING: Final = 1e-10  # relative rounding error of floating-point sums


@dataclass(frozen=True, slots=True)
class IntervalUsage:
    """One interval, by tenant and gateway."""

    used: Floats  # per second
    peak: Floats  # recent peak use (`peaks`), which bursty traffic may need again
    throttled: Flags
    members: Flags
    silent: Flags  # no report arrived


def even_split(quota: Floats, members: Flags) -> Floats:
    """The static split, which is also the fallback."""
    count = np.maximum(members.sum(axis=1, keepdims=True), 1)
    return np.where(members, quota[:, None] / count, 0.0)


def peaks(earlier: Floats, used: Floats, policy: SharingPolicy = DEFAULT_POLICY) -> Floats:
    """Recent peak use, which decays from interval to interval."""
    return np.asarray(np.maximum(used, policy.peak_decay * earlier))


def share_out(
    quota: Floats, usage: IntervalUsage, previous: Floats, policy: SharingPolicy = DEFAULT_POLICY
) -> Floats:
    """Shares for the next interval."""
    even = even_split(quota, usage.members)
    floor = even * policy.floor
    active = usage.members & ~usage.silent
    reserved = _reserved(quota, floor, usage, previous)
    free = quota - reserved.sum(axis=1)
    used = np.where(active, np.maximum(usage.used, floor), 0.0)
    throttled = active & usage.throttled
    needed = _needed(free, used, np.where(active, np.maximum(usage.peak, used), 0.0))
    shares = np.where(active, _spread(quota, free, needed, active), reserved)
    contended = throttled.any(axis=1) | (used.sum(axis=1) > free)
    if contended.any():
        room = np.where(throttled.any(axis=1), 1 + policy.headroom, 1.0)[:, None]
        demand = np.where(throttled, np.inf, np.maximum(np.maximum(usage.used * room, needed), floor))
        demand = np.where(active, demand, 0.0)[contended]
        fair = max_min_fair(free[contended], demand, active[contended])
        fair = _favor_throttled(free[contended], used[contended], demand, fair, policy)
        shares[contended] = np.where(active[contended], fair, reserved[contended])
    changed = throttled.any(axis=1) | ~_small_changes(shares, previous, quota, even, usage.members, policy)
    return np.where(changed[:, None], shares, previous)


def lazy_limits(
    quota: Floats, shares: Floats, usage: IntervalUsage, policy: SharingPolicy = DEFAULT_POLICY
) -> Floats:
    """Where gateways throttle: at their share, plus all of the unused quota while there is plenty."""
    if policy.lazy_below is None:
        return shares
    # A silent gateway may be using its whole share.
    used = np.where(usage.members, np.where(usage.silent, shares, usage.used), 0.0)
    total = used.sum(axis=1)
    unused = np.where(total <= policy.lazy_below * quota, quota - total, 0.0)
    lazy = np.minimum(shares + unused[:, None], quota[:, None])
    return np.where(usage.members, np.maximum(shares, lazy), shares)


def max_min_fair(free: Floats, demand: Floats, active: Flags) -> Floats:
    """Max-min fairness: every gateway gets its demand up to a common level, and all of `free` is used."""
    given = np.zeros(demand.shape)
    open_ = active.copy()
    left = free.astype(float).copy()
    for _ in range(demand.shape[1]):
        count = open_.sum(axis=1)
        level = np.divide(left, count, out=np.zeros_like(left), where=count > 0)
        satisfied = open_ & (demand <= level[:, None])
        given = np.where(open_, np.minimum(demand, level[:, None]), given)
        if not satisfied.any():
            break
        left = left - np.where(satisfied, demand, 0.0).sum(axis=1)
        open_ &= ~satisfied
    return given


def _favor_throttled(
    free: Floats, used: Floats, demand: Floats, fair: Floats, policy: SharingPolicy
) -> Floats:
    """More for throttling gateways, where a quota is nearly used up and `fair` leaves the rest to the others.

    The others keep what they use and a part of the rest; throttling gateways share the remainder equally.
    """
    throttled = np.isinf(demand)
    count = throttled.sum(axis=1)
    rest = np.maximum(free - used.sum(axis=1), 0.0)
    room = np.where(throttled, 0.0, demand - used)
    total, most = room.sum(axis=1), rest * (1 - policy.throttled_part_min)
    room = room * np.divide(most, total, out=np.ones_like(total), where=total > most)[:, None]
    kept = np.where(throttled, 0.0, used + room)
    level = np.divide(free - kept.sum(axis=1), count, out=np.zeros_like(rest), where=count > 0)
    favored = np.where(throttled, level[:, None], kept)
    # Where both are equal, the order of a sum must not decide which one is taken.
    less = np.where(throttled, fair - favored, 0.0) > ROUNDING * free[:, None]
    more = (count > 0) & ~less.any(axis=1)
    return np.where(more[:, None], favored, fair)


def _reserved(quota: Floats, floor: Floats, usage: IntervalUsage, previous: Floats) -> Floats:
    """What silent gateways may still be using: they may not have received a newer share."""
    silent = usage.members & usage.silent
    if not silent.any():
        return np.zeros(previous.shape)
    kept = np.where(silent, np.maximum(previous, floor), 0.0)
    most = quota - np.where(usage.members & ~usage.silent, floor, 0.0).sum(axis=1)
    total = kept.sum(axis=1)
    over = total > most
    kept[over] *= (most[over] / total[over])[:, None]
    return kept


def _needed(free: Floats, used: Floats, peak: Floats) -> Floats:
    """What gateways may need: their recent peaks, as far as all of them fit."""
    total, growth = used.sum(axis=1), (peak - used).sum(axis=1)
    room = np.maximum(free - total, 0.0)
    part = np.divide(room, growth, out=np.ones_like(room), where=growth > room)
    return np.asarray(used + (peak - used) * part[:, None])


def _spread(quota: Floats, free: Floats, used: Floats, active: Flags) -> Floats:
    """The needed amounts, plus the rest: a part in proportion to use, a part evenly.

    The part that follows use equals the part of the quota that is used: a tenant that uses little is
    ready for traffic at any gateway, one that uses most needs the rest where its traffic fluctuates.
    """
    total = used.sum(axis=1)
    rest = np.maximum(free - total, 0.0)
    proportional = np.divide(rest, quota, out=np.zeros_like(rest), where=quota > 0)[:, None] * used
    count = np.maximum(active.sum(axis=1), 1)
    evenly = rest * np.maximum(1 - np.divide(total, quota, out=np.zeros_like(rest), where=quota > 0), 0.0)
    return np.asarray(used + proportional + (evenly / count)[:, None] * active)


def _small_changes(
    shares: Floats, previous: Floats, quota: Floats, even: Floats, members: Flags, policy: SharingPolicy
) -> Flags:
    """The tenants whose previous shares are still sound, and for which every change would be small."""
    small = (np.abs(shares - previous) <= policy.change_min * even).all(axis=1)
    # Depending on the order of summation, a sum may exceed the quota by a rounding error.
    fits = previous.sum(axis=1) <= quota * (1 + ROUNDING)
    return np.asarray(small & fits & ((previous >= even * policy.floor) | ~members).all(axis=1))
