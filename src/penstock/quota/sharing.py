"""How a tenant's quota is split over the points that enforce it (Kora §5.2.2).

Once an interval, from what each point used and whether it throttled. Rows are tenants, columns
points; `members` says which points a tenant has. Promised, for each tenant:

- Shares sum to at most the quota, also if points that were not heard of keep what they had.
- No share falls below a floor, from which it can always grow back: one interval after a point is
  throttled it has all that the others do not use.
- Points that throttle are served alike; points that do not, keep what they use and some more: what
  they used at most of late, if there is room for it.
- Small changes are not made.

While a tenant uses less than `lazy_below` of its quota in all, points need not throttle at a share:
each may take beyond it whatever of the quota nobody used (`limits`). The price is that a tenant
whose traffic rises everywhere at once may, for one interval, take its quota and what it did not use
before once more at each point.
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
class Rules:
    floor: float = 0.05  # least share of a point, as a part of the even split
    headroom: float = 0.25  # beyond its use, for a point that does not throttle while another does
    fed: float = 0.75  # of what nobody uses, at least so much goes to points that throttle
    memory: float = 0.9  # of a point's highest use, kept from one interval to the next
    steady: float = 0.05  # changes below this part of the even split are not made
    lazy_below: float | None = 0.9  # of the quota; None: never lazy


RULES: Final = Rules()
ROUNDING: Final = 1e-10  # what sums of floating-point numbers may differ by, as a part of them


@dataclass(frozen=True, slots=True)
class Use:
    """What one interval was like, by tenant and point."""

    used: Floats  # a second
    peak: Floats  # the highest use of late (`peaks`): what a point that wavers may need again
    throttled: Flags
    members: Flags
    silent: Flags  # nothing was heard of this point


def even_split(quota: Floats, members: Flags) -> Floats:
    """The static split, and the one to fall back to."""
    count = np.maximum(members.sum(axis=1, keepdims=True), 1)
    return np.where(members, quota[:, None] / count, 0.0)


def peaks(earlier: Floats, used: Floats, rules: Rules = RULES) -> Floats:
    """The highest use of late, which is forgotten bit by bit."""
    return np.asarray(np.maximum(used, rules.memory * earlier))


def share_out(quota: Floats, use: Use, previous: Floats, rules: Rules = RULES) -> Floats:
    """Shares for the next interval."""
    even = even_split(quota, use.members)
    floor = even * rules.floor
    active = use.members & ~use.silent
    reserved = _reserved(quota, floor, use, previous)
    free = quota - reserved.sum(axis=1)
    used = np.where(active, np.maximum(use.used, floor), 0.0)
    hungry = active & use.throttled
    needed = _needed(free, used, np.where(active, np.maximum(use.peak, used), 0.0))
    shares = np.where(active, _spread(quota, free, needed, active), reserved)
    pressed = hungry.any(axis=1) | (used.sum(axis=1) > free)
    if pressed.any():
        room = np.where(hungry.any(axis=1), 1 + rules.headroom, 1.0)[:, None]
        wanted = np.where(hungry, np.inf, np.maximum(np.maximum(use.used * room, needed), floor))
        wanted = np.where(active, wanted, 0.0)[pressed]
        filled = fill(free[pressed], wanted, active[pressed])
        filled = _fed(free[pressed], used[pressed], wanted, filled, rules)
        shares[pressed] = np.where(active[pressed], filled, reserved[pressed])
    return _steadied(shares, previous, quota, even, hungry, use.members, rules)


def limits(quota: Floats, shares: Floats, use: Use, rules: Rules = RULES) -> Floats:
    """At what points throttle: their share; while there is plenty, with all that nobody uses on top."""
    if rules.lazy_below is None:
        return shares
    # Who is silent may be using all that it has.
    used = np.where(use.members, np.where(use.silent, shares, use.used), 0.0)
    total = used.sum(axis=1)
    spare = np.where(total <= rules.lazy_below * quota, quota - total, 0.0)
    lazy = np.minimum(shares + spare[:, None], quota[:, None])
    return np.where(use.members, np.maximum(shares, lazy), shares)


def fill(free: Floats, wanted: Floats, active: Flags) -> Floats:
    """Everybody gets what it wants up to a level that is the same for all, and all of `free` goes.

    Those who want less than the level leave the rest to the others (max-min fairness).
    """
    given = np.zeros(wanted.shape)
    open_ = active.copy()
    left = free.astype(float).copy()
    for _ in range(wanted.shape[1]):
        count = open_.sum(axis=1)
        level = np.divide(left, count, out=np.zeros_like(left), where=count > 0)
        modest = open_ & (wanted <= level[:, None])
        given = np.where(open_, np.minimum(wanted, level[:, None]), given)
        if not modest.any():
            break
        left = left - np.where(modest, wanted, 0.0).sum(axis=1)
        open_ &= ~modest
    return given


def _fed(free: Floats, used: Floats, wanted: Floats, filled: Floats, rules: Rules) -> Floats:
    """More for points that throttle, where `filled` leaves the others room that they do not use.

    Of a quota that is nearly used up, the room that the others would like is all there is. They keep
    what they use, and of the rest a part; those who throttle share alike what is left.
    """
    hungry = np.isinf(wanted)
    count = hungry.sum(axis=1)
    rest = np.maximum(free - used.sum(axis=1), 0.0)
    room = np.where(hungry, 0.0, wanted - used)
    total, most = room.sum(axis=1), rest * (1 - rules.fed)
    room = room * np.divide(most, total, out=np.ones_like(total), where=total > most)[:, None]
    kept = np.where(hungry, 0.0, used + room)
    level = np.divide(free - kept.sum(axis=1), count, out=np.zeros_like(rest), where=count > 0)
    fed = np.where(hungry, level[:, None], kept)
    # Where both come to the same, which of them it is must not hang on the order of a sum.
    less = np.where(hungry, filled - fed, 0.0) > ROUNDING * free[:, None]
    more = (count > 0) & ~less.any(axis=1)
    return np.where(more[:, None], fed, filled)


def _reserved(quota: Floats, floor: Floats, use: Use, previous: Floats) -> Floats:
    """What silent points may still be using: they did not hear of anything newer than they have."""
    silent = use.members & use.silent
    if not silent.any():
        return np.zeros(previous.shape)
    kept = np.where(silent, np.maximum(previous, floor), 0.0)
    most = quota - np.where(use.members & ~use.silent, floor, 0.0).sum(axis=1)
    total = kept.sum(axis=1)
    over = total > most
    kept[over] *= (most[over] / total[over])[:, None]
    return kept


def _needed(free: Floats, used: Floats, peak: Floats) -> Floats:
    """What points may need: their highest use of late, as far as all of it fits."""
    total, wish = used.sum(axis=1), (peak - used).sum(axis=1)
    room = np.maximum(free - total, 0.0)
    part = np.divide(room, wish, out=np.ones_like(room), where=wish > room)
    return np.asarray(used + (peak - used) * part[:, None])


def _spread(quota: Floats, free: Floats, used: Floats, active: Flags) -> Floats:
    """What is needed, and of the rest a part where it is used and a part everywhere.

    A tenant that uses little of its quota has enough of the rest to be ready for traffic that comes
    up anywhere; one that uses most of it needs the rest where its traffic wavers. So the part that
    follows use is as large as the part of the quota that is used.
    """
    total = used.sum(axis=1)
    rest = np.maximum(free - total, 0.0)
    followed = np.divide(rest, quota, out=np.zeros_like(rest), where=quota > 0)[:, None] * used
    count = np.maximum(active.sum(axis=1), 1)
    evenly = rest * np.maximum(1 - np.divide(total, quota, out=np.zeros_like(rest), where=quota > 0), 0.0)
    return np.asarray(used + followed + (evenly / count)[:, None] * active)


def _steadied(
    shares: Floats, previous: Floats, quota: Floats, even: Floats, hungry: Flags, members: Flags, rules: Rules
) -> Floats:
    """The shares there are, for tenants of whom every change would be small and nobody throttles."""
    small = (np.abs(shares - previous) <= rules.steady * even).all(axis=1)
    # A sum may lie a rounding above the quota or not, depending on the order of its points.
    fits = previous.sum(axis=1) <= quota * (1 + ROUNDING)
    sound = fits & ((previous >= even * rules.floor) | ~members).all(axis=1)
    keep = small & sound & ~hungry.any(axis=1)
    return np.where(keep[:, None], previous, shares)
