"""How long the tests of each area may take, in seconds, on two cores.

`make test` takes at most 28 minutes: 2 for the checks, 5 for pure tests, 17 for those with a real
Kafka, 4 for those with Spark. The areas below share these out; one that needs
more takes it from another, here, where everybody sees it. `tests/plugins/budget.py` enforces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds by kind of test: set-up, call and tear-down together."""

    pure: float = 0
    kafka: float = 0  # also those with a browser: both wait for real processes
    spark: float = 0


TOTAL: Final = Budget(pure=5 * 60, kafka=17 * 60, spark=4 * 60)

# What fixtures of the whole session take (a fleet, a Spark session) is nobody's in particular.
SESSION: Final = "session"

AREAS: Final[dict[str, Budget]] = {
    SESSION: Budget(pure=5, kafka=30, spark=20),
    # the repository itself
    "tidy": Budget(pure=4),
    "garbage": Budget(pure=1),
    "bench": Budget(pure=6),
    "tools": Budget(pure=2),
    "plugins": Budget(pure=6),
    "ground": Budget(pure=8, kafka=25),
    "docs": Budget(pure=2, kafka=30),
    "examples": Budget(pure=4, kafka=60),
    "paper": Budget(pure=1),
    # the foundation
    "model": Budget(pure=8),
    "wire": Budget(pure=39, kafka=20),
    "kafka": Budget(pure=5, kafka=40),
    "fleet": Budget(pure=20, kafka=80),
    "cli": Budget(pure=24, kafka=30),
    "console": Budget(),
    # the platform
    "gateway": Budget(pure=14, kafka=205),
    "control": Budget(pure=20, kafka=140),
    "quota": Budget(pure=14, kafka=50),
    "balance": Budget(pure=8, kafka=45),
    "health": Budget(),
    "tier": Budget(),
    "audit": Budget(spark=20),
    "backup": Budget(),
    "link": Budget(),
    "sim": Budget(pure=15),
    "pipeline": Budget(pure=15, spark=200),
    # what applications use
    "consume": Budget(pure=18, kafka=75),
    "scale": Budget(pure=14, kafka=40),
    "olep": Budget(pure=28, kafka=140),
}

# A shared machine is off by this much before anybody is to blame: times the budget, and for each
# area some seconds on top, since one stall weighs heavily on an area of few seconds.
TOLERANCE: Final = 3.0
GRACE_SECONDS: Final = 10.0
