"""How many seconds of a worker the tests of each area may take, on two cores.

`make test` takes at most 15 minutes: 2 for the checks, 2.5 for the pure tests on two workers, and 10 for the
tests with real processes on four workers. The areas below share these seconds. An area that needs more takes
them from another, here, where a reviewer sees it. `tests/plugins/budget.py` reports what exceeds it.
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


TOTAL: Final = Budget(pure=5 * 60, kafka=20 * 60, spark=5 * 60)

# Fixtures of the whole session (a fleet for each worker, a Spark session) belong to no area.
SESSION: Final = "session"

AREAS: Final[dict[str, Budget]] = {
    SESSION: Budget(pure=5, kafka=60, spark=20),
    # the repository itself
    "tidy": Budget(pure=15),
    "atomic_files": Budget(pure=1),
    "gc_tuning": Budget(pure=1),
    "metrics_server": Budget(pure=4),
    "process_identity": Budget(pure=3),
    "stop_signals": Budget(pure=2),
    "bench": Budget(pure=6),
    "tools": Budget(pure=4),
    "plugins": Budget(pure=12),
    "harness": Budget(pure=8, kafka=20),
    "docs": Budget(pure=2, kafka=45),
    "examples": Budget(pure=4, kafka=80),
    "paper": Budget(pure=1),
    # the foundation
    "model": Budget(pure=8),
    "wire": Budget(pure=39, kafka=10),
    "kafka": Budget(pure=5, kafka=50),
    "fleet": Budget(pure=16, kafka=100),
    "cli": Budget(pure=15, kafka=45),
    "platform": Budget(pure=3, kafka=30),
    "console": Budget(),
    # the platform
    "gateway": Budget(pure=14, kafka=180),
    "control": Budget(pure=20, kafka=140),
    "quota": Budget(pure=14, kafka=40),
    "balance": Budget(pure=8, kafka=40),
    "health": Budget(),
    "tier": Budget(),
    "audit": Budget(spark=20),
    "backup": Budget(),
    "link": Budget(),
    "sim": Budget(pure=15),
    "pipeline": Budget(pure=15, spark=260),
    # what applications use
    "consume": Budget(pure=18, kafka=70),
    "scale": Budget(pure=14, kafka=60),
    "olep": Budget(pure=28, kafka=230),
}

# A shared machine may be this much slower than the budget assumes. Each area gets some seconds on top:
# one stall weighs heavily on an area of few seconds.
TOLERANCE: Final = 3.0
GRACE_SECONDS: Final = 10.0
