"""What a projection is: a pure function from an event to rows, and what it speaks of.

    def project(state: State, event: Event) -> Iterable[Effect]: ...

`state` holds the rows this projection has made from the same partition. Rows of different
partitions do not meet: a table's row stands for its partition, and a reader adds them up. That is
what makes a view at a position a function of the log, whatever order partitions arrive in. For the
same reason everything that must be seen together is made from **one** event: a payment's two sides
from the event that says it was paid, not each side from its own.

Types that are not handled are passed over. What cannot be applied is skipped by rule and listed;
a corrected projection of a higher `version` is rebuilt, and applies it in its place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.views import ProjectionInvalid
from penstock.olep.application import Reason, Rule, State
from penstock.olep.event import RESERVED, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.olep.table import Effect, Table

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
WINDOW_EVENTS: Final = 10_000  # ids of events from outside remembered for each partition


@dataclass(frozen=True, slots=True)
class Projection:
    name: str
    project: Callable[[State, Event], Iterable[Effect]]
    tables: Sequence[Table[Any]]
    handles: Mapping[str, int]  # event type → newest schema version that `project` understands
    version: int = 1  # raised with every change of `project`
    text: Mapping[str, Sequence[str]] = field(default_factory=dict)  # table → columns to search in
    rules: Mapping[Reason, Rule] = field(default_factory=dict)  # the rest are skipped
    window: int = WINDOW_EVENTS

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            self._refuse("its name must be lower-case letters, digits and `_`, at most 40")
        if not self.handles or any(kind.startswith(RESERVED) for kind in self.handles):
            self._refuse("it must handle some types, none of them the layer's own")
        names = [table.name for table in self.tables]
        if not names or len(set(names)) != len(names) or any(name.startswith("olep_") for name in names):
            self._refuse("its tables need names of their own, not beginning with `olep_`")
        for name, columns in self.text.items():
            table = next((each for each in self.tables if each.name == name), None)
            texts = {column.name for column in table.columns if column.type is str} if table else set()
            if not columns or not set(columns) <= texts:
                self._refuse(f"`{name}` has no text columns {', '.join(columns) or '(none named)'}")
        if self.version < 1 or self.window < 1:
            self._refuse("its version and its window are at least 1")

    def rule(self, reason: Reason) -> Rule:
        return self.rules.get(reason, Rule.SKIP)

    def _refuse(self, reason: str) -> None:
        raise ProjectionInvalid(projection=self.name, reason=reason)
