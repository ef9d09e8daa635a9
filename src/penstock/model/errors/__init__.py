"""Every error the platform raises: one root class and a catalogue by code.

An error is a class with a stable code, the party at fault, whether a retry can help, one line of text and
a hint that names the way out. The CLI, the HTTP API and `docs/errors.md` print from this catalogue only.
Each area has a module here, and its codes are in the range that `RANGES` gives it.

Modules:
  audit     92xx: the durability audit
  backup    91xx: backup and restore
  balance   54xx: cells and balancing
  consume   60xx: the parallel consumer
  control   50xx: the control plane
  events    115x: records on internal topics
  fleet     20xx: the Kafka processes of a local fleet
  gateway   40xx: the gateway
  health    56xx: probes, error budgets, mitigation of sick brokers
  link      93xx: cluster links
  olep      70xx: logs and executors of online event processing
  pipeline  80xx: Spark jobs
  plans     31xx: rewriting frames by plans
  scale     65xx: the lag scaler
  settings  10xx: settings, files and flags
  shadow    94xx: shadow brokers
  tier      90xx: tiered storage
  views     71xx: views of logs
  wire      30xx: Kafka's protocol and the client that speaks it
"""

from __future__ import annotations

import string
from enum import IntEnum, StrEnum
from importlib import import_module
from pkgutil import iter_modules
from typing import ClassVar, Final

# Title and codes of each area, keyed by its module in this package. An area without a module has its range
# reserved. A code is never reused for another error.
RANGES: Final[dict[str, tuple[str, range]]] = {
    "settings": ("Settings and usage", range(1000, 1100)),
    "events": ("Events on internal topics", range(1150, 1200)),
    "fleet": ("Fleet", range(2000, 3000)),
    "wire": ("Wire protocol and Kafka client", range(3000, 3100)),
    "plans": ("Rewriting plans", range(3100, 3200)),
    "gateway": ("Gateway", range(4000, 5000)),
    "control": ("Control plane", range(5000, 5400)),
    "balance": ("Cells and balancing", range(5400, 5500)),
    "quota": ("Quotas", range(5500, 5600)),
    "health": ("Health checks", range(5600, 5700)),
    "consume": ("Parallel consumer", range(6000, 6500)),
    "scale": ("Lag scaler", range(6500, 7000)),
    "olep": ("Online event processing", range(7000, 7100)),
    "views": ("Views of logs", range(7100, 7200)),
    "pipeline": ("Pipeline", range(8000, 9000)),
    "tier": ("Tiered storage", range(9000, 9100)),
    "backup": ("Backup and restore", range(9100, 9200)),
    "audit": ("Durability audit", range(9200, 9300)),
    "link": ("Cluster links", range(9300, 9400)),
    "shadow": ("Shadow brokers", range(9400, 9500)),
}


class Fault(StrEnum):
    """The party at fault: the caller, a system Penstock depends on, or Penstock itself."""

    CALLER = "caller"
    UPSTREAM = "upstream"
    OURS = "ours"


class Exit(IntEnum):
    """The exit codes of the `penstock` command."""

    FINE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    UNHEALTHY = 5


class PenstockError(Exception):
    """Root of all errors. A subclass with a `code` is an entry of the catalogue.

    The keyword arguments fill the templates `text` and `hint`. A missing argument is a bug and raises
    `KeyError` when the error is created rather than when it is shown.
    """

    code: ClassVar[str] = ""
    fault: ClassVar[Fault] = Fault.OURS
    retriable: ClassVar[bool] = False
    exit_code: ClassVar[Exit] = Exit.FAILED
    text: ClassVar[str] = ""
    hint: ClassVar[str] = ""

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        self.message = self.text.format(**facts)
        self.advice = self.hint.format(**facts)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _rebuild, (type(self), self.facts)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.__dict__.get("code"):
            return
        if cls.code in _catalogue:
            raise TypeError(f"{cls.__name__} and {_catalogue[cls.code].__name__} share {cls.code}")
        _catalogue[cls.code] = cls

    @classmethod
    def fields(cls) -> frozenset[str]:
        """The names of the facts that the templates need."""
        parsed = string.Formatter().parse(cls.text + cls.hint)
        return frozenset(name for _, name, _, _ in parsed if name)


_catalogue: dict[str, type[PenstockError]] = {}


class CallerError(PenstockError):
    """The request cannot be carried out as given."""

    fault = Fault.CALLER


class UsageError(CallerError):
    exit_code = Exit.USAGE


class NotFoundError(CallerError):
    exit_code = Exit.NOT_FOUND


class DeniedError(CallerError):
    exit_code = Exit.DENIED


class UpstreamError(PenstockError):
    """A system that Penstock depends on failed."""

    fault = Fault.UPSTREAM


class UnavailableError(UpstreamError):
    """It may work again later."""

    retriable = True
    exit_code = Exit.UNHEALTHY


def _rebuild(cls: type[PenstockError], facts: dict[str, object]) -> PenstockError:
    return cls(**facts)


def area_of(error: type[PenstockError]) -> str:
    """The module of this package that defines an error."""
    return error.__module__.rpartition(".")[2]


def catalogue() -> dict[str, type[PenstockError]]:
    """Every error, by code."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(sorted(_catalogue.items()))
