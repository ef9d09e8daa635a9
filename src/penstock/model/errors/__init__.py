"""One error root, and the catalogue of everything that can go wrong.

Each error is a class with a stable code, whose fault it is, whether trying again can help, one
line of text and a hint that names the way out. The CLI, the HTTP API and `docs/errors.md` print
from here and from nowhere else. Every area has a module in this package, and its codes lie in
the range that `RANGES` gives it.
"""

from __future__ import annotations

import string
from enum import IntEnum, StrEnum
from importlib import import_module
from pkgutil import iter_modules
from typing import ClassVar, Final

# By module of this package: the area in words, and the codes it may give. A code once given is
# never given to something else.
RANGES: Final[dict[str, tuple[str, range]]] = {
    "settings": ("Settings and usage", range(1000, 1100)),
    "names": ("Names", range(1100, 1150)),
    "events": ("Events on internal topics", range(1150, 1200)),
    "fleet": ("Fleet", range(2000, 3000)),
    "wire": ("Wire protocol", range(3000, 3100)),
    "plans": ("Rewriting plans", range(3100, 3200)),
    "kafka": ("Kafka client", range(3000, 4000)),
    "gateway": ("Gateway", range(4000, 5000)),
    "control": ("Control plane", range(5000, 5400)),
    "balance": ("Cells and balancing", range(5400, 5500)),
    "quota": ("Quotas", range(5500, 6000)),
    "consume": ("Parallel consumer", range(6000, 6500)),
    "scale": ("Lag scaler", range(6500, 7000)),
    "olep": ("Online event processing", range(7000, 7100)),
    "views": ("Views of logs", range(7100, 7200)),
    "pipeline": ("Pipeline", range(8000, 9000)),
}


class Fault(StrEnum):
    """Whose doing it is: the caller's, that of something we depend on, or our own."""

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
    """The root. A subclass that has a `code` is an entry of the catalogue.

    `text` and `hint` are templates filled from the keyword arguments; a missing one is a bug
    and raises at once, where the error is made, not where it is shown.
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
        """The facts that the templates ask for."""
        parsed = string.Formatter().parse(cls.text + cls.hint)
        return frozenset(name for _, name, _, _ in parsed if name)


_catalogue: dict[str, type[PenstockError]] = {}


def _rebuild(cls: type[PenstockError], facts: dict[str, object]) -> PenstockError:
    return cls(**facts)


def area_of(error: type[PenstockError]) -> str:
    """The module of the catalogue that an error stands in."""
    return error.__module__.rpartition(".")[2]


def catalogue() -> dict[str, type[PenstockError]]:
    """Every error there is, by code."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(sorted(_catalogue.items()))
