"""What a projection declares: a pure function from an event to rows, its tables and event types.

    def project(state: State, event: Event) -> Iterable[Effect]: ...

`state` has the rows that this projection made from the same partition. A row belongs to its partition, and
a reader adds up the rows of several. So a view at a position is a function of the log, whatever order
partitions arrive in. For the same reason, rows that must be seen together are made from **one** event: both
sides of a payment from the event that records it, not each side from a separate event.

Types that are not handled are skipped. An event that cannot be applied is skipped by policy and listed.
Correct the projection, raise its `version` and rebuild the view to apply it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.views import ProjectionInvalid
from penstock.olep.application import Reason, RejectPolicy, State
from penstock.olep.event import RESERVED, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.olep.table import Effect, Table

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
WINDOW_EVENTS: Final = 10_000  # request ids remembered for each partition


@dataclass(frozen=True, slots=True)
class Projection:
    name: str
    project: Callable[[State, Event], Iterable[Effect]]
    tables: Sequence[Table[Any]]
    handles: Mapping[str, int]  # event type → newest schema version that `project` understands
    version: int = 1  # raise it with every change of `project`
    text: Mapping[str, Sequence[str]] = field(default_factory=dict)  # table → columns for full-text search
    on_reject: Mapping[Reason, RejectPolicy] = field(default_factory=dict)  # SKIP for the others
    window: int = WINDOW_EVENTS

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            self._refuse(
                "its name must be 1 to 40 lower-case letters, digits and `_`, and start with a letter"
            )
        if not self.handles or any(kind.startswith(RESERVED) for kind in self.handles):
            self._refuse(f"it must handle at least one type, and none that starts with `{RESERVED}`")
        names = [table.name for table in self.tables]
        if not names or len(set(names)) != len(names) or any(name.startswith("olep_") for name in names):
            self._refuse("it needs tables with distinct names that do not start with `olep_`")
        for name, columns in self.text.items():
            table = next((each for each in self.tables if each.name == name), None)
            texts = {column.name for column in table.columns if column.type is str} if table else set()
            if not columns or not set(columns) <= texts:
                self._refuse(f"`{name}` has no text columns {', '.join(columns) or '(none named)'}")
        if self.version < 1 or self.window < 1:
            self._refuse("its version and its window must be at least 1")

    def reject_policy(self, reason: Reason) -> RejectPolicy:
        return self.on_reject.get(reason, RejectPolicy.SKIP)

    def _refuse(self, reason: str) -> None:
        raise ProjectionInvalid(projection=self.name, reason=reason)
