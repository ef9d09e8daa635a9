"""How many seconds of a worker the tests of each area may take, on two cores.

`make test` should take 25 minutes; on a fresh clone and two cores it takes about 23: two for set-up and
checks, four for the pure tests on two workers, and 17 for the tests with real processes on three workers,
which keep both cores busy. The areas below share these seconds. An area that needs more takes them from
another, here, where a reviewer sees it. `tests/plugins/budget.py` reports what exceeds it.
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


TOTAL: Final = Budget(pure=7 * 60, kafka=40 * 60, spark=7 * 60)

# Fixtures of the whole session (the shared fleet, a Spark session) belong to no area.
SESSION: Final = "session"

AREAS: Final[dict[str, Budget]] = {
    SESSION: Budget(pure=4, kafka=65, spark=20),
    # the repository itself
    "tidy": Budget(pure=16),
    "atomic_files": Budget(pure=1),
    "cancellation": Budget(pure=1),
    "certificate_reload": Budget(pure=2),
    "cluster_services": Budget(pure=1),
    "gc_tuning": Budget(pure=1),
    "http_calls": Budget(pure=1),
    "log_lines": Budget(pure=2),
    "metric_families": Budget(pure=2),
    "metrics_server": Budget(pure=4),
    "process_identity": Budget(pure=3),
    "stop_signals": Budget(pure=2),
    "timed_wait": Budget(pure=1),
    "bench": Budget(pure=4),
    "tools": Budget(pure=3),
    "plugins": Budget(pure=4),
    "harness": Budget(pure=4, kafka=40),
    "docs": Budget(pure=2, kafka=45),
    "examples": Budget(pure=4, kafka=80),
    "paper": Budget(pure=1),
    "anywhere": Budget(),  # only `make soak`
    # the foundation
    "model": Budget(pure=8),
    "wire": Budget(pure=24, kafka=10),
    "kafka": Budget(pure=7, kafka=110),
    "fleet": Budget(pure=20, kafka=160),
    "cli": Budget(pure=38, kafka=90),
    "platform": Budget(pure=3, kafka=110),
    "console": Budget(),
    # the platform
    "gateway": Budget(pure=30, kafka=300),
    "control": Budget(pure=28, kafka=330),
    "quota": Budget(pure=6, kafka=30),
    "balance": Budget(pure=14, kafka=130),
    "health": Budget(pure=6, kafka=40),
    "tier": Budget(pure=8, kafka=75),
    "audit": Budget(pure=8, kafka=30, spark=20),
    "backup": Budget(pure=6, kafka=60),
    "link": Budget(pure=6, kafka=50),
    "shadow": Budget(pure=12, kafka=35),
    "sim": Budget(pure=11),
    "pipeline": Budget(pure=8, spark=380),
    # what applications use
    "consume": Budget(pure=32, kafka=140),
    "scale": Budget(pure=28, kafka=75),
    "olep": Budget(pure=28, kafka=345),
}

# A shared machine may be this much slower than the budget assumes. Each area gets some seconds on top:
# one stall weighs heavily on an area of few seconds.
TOLERANCE: Final = 1.5
GRACE_SECONDS: Final = 10.0
