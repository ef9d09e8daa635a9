"""What an application is: a pure function, and the tables, types and logs it speaks of.

    def decide(state: State, event: Event) -> Decision: ...

`decide` reads rows from `state`, and returns the rows to write and the events to emit. It is
called once for each event of a partition, in order, by one thread. It must be a function of its
two arguments: time is `event.time`, ids are derived by the runner, and I/O is the business of a
subscriber. `penstock.olep.purity` catches what breaks this.

Whether an event was seen before is settled before `decide` is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from penstock.model.errors.olep import ApplicationInvalid
from penstock.olep.event import RESERVED, Event
from penstock.olep.table import Effect, Key, Row, Table

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")
WINDOW_REQUESTS: Final = 100_000  # request ids remembered for each partition


class State(Protocol):
    """What `decide` may read: the rows of its own partition, with all earlier effects applied."""

    def get(self, table: Table[Row], key: Key) -> Row | None: ...


class Emit(NamedTuple):
    """An event to be appended to the logical log `key` of the log named `log`."""

    log: str
    key: str
    type: str
    payload: Mapping[str, Any]
    version: int = 1


Decision = tuple[Sequence[Effect], Sequence[Emit]]
NOTHING: Final[Decision] = ((), ())


class Reason(StrEnum):
    """Why an event was not applied."""

    UNREADABLE = "unreadable"
    UNKNOWN_TYPE = "unknown-type"
    NEWER_VERSION = "newer-version"
    RAISED = "decide-raised"
    INVALID = "decision-invalid"


class Rule(StrEnum):
    SKIP = "skip"  # list the event, go on; it can be retried
    STOP = "stop"  # stop before it, applying nothing


@dataclass(frozen=True, slots=True)
class Application:
    name: str
    decide: Callable[[State, Event], Decision]
    tables: Sequence[Table[Any]]
    handles: Mapping[str, int]  # event type → newest schema version that `decide` understands
    ignores: Collection[str] = ()  # types that need no decision: the echo of its own facts
    logs: Collection[str] = ()  # names of the logs it emits to
    window: int = WINDOW_REQUESTS
    rules: Mapping[Reason, Rule] = field(default_factory=dict)  # the rest are skipped

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            self._refuse("its name must be lower-case letters, digits and `-`, at most 40")
        if taken := [t for t in (*self.handles, *self.ignores) if t.startswith(RESERVED)]:
            self._refuse(f"the type {taken[0]} is the layer's own")
        if both := set(self.handles) & set(self.ignores):
            self._refuse(f"the type {min(both)} is both handled and ignored")
        names = [table.name for table in self.tables]
        if len(set(names)) != len(names) or any(name.startswith("olep_") for name in names):
            self._refuse("its tables need names of their own, not beginning with `olep_`")
        if self.window < 1:
            self._refuse("its window must hold at least one request")

    def rule(self, reason: Reason) -> Rule:
        return self.rules.get(reason, Rule.SKIP)

    def _refuse(self, reason: str) -> None:
        raise ApplicationInvalid(application=self.name, reason=reason)
