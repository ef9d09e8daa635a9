"""What an application declares: a pure function, its tables, event types, logs and policies.

    def decide(state: State, event: Event) -> Decision: ...

`decide` reads rows from `state` and returns the rows to write and the events to emit. One thread calls it
once for each event of a partition, in order; repeats are suppressed before. It must be a pure function of
its two arguments: the time is `event.time`, ids are derived by the executor, and I/O belongs in a
subscriber. `penstock.olep.purity` detects violations.

Decisions change over the years, and state must still equal a replay of the log. So an application has a
version. Before a new one decides anything in a partition, its executor appends an `olep.version` event
there. Events before it are decided by the version before, in every replay too. The new declaration lists
those it replaces in `earlier`; a replay that needs one that is not listed is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from penstock.model.errors.olep import ApplicationInvalid, VersionMissing
from penstock.olep.event import RESERVED, Event, Value
from penstock.olep.table import Effect, Key, Row, Table

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")
WINDOW_REQUESTS: Final = 100_000  # request ids remembered for each partition


class State(Protocol):
    """What `decide` may read: the rows of its partition, with all earlier effects applied."""

    def get(self, table: Table[Row], key: Key) -> Row | None: ...


class Emit(Value, frozen=True):
    """An event to append to the log named `log`, under `key`."""

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


class RejectPolicy(StrEnum):
    """What happens at an event that cannot be applied."""

    SKIP = "skip"  # list the event and continue; it can be retried
    STOP = "stop"  # stop before it


@dataclass(frozen=True, slots=True)
class Application:
    name: str
    decide: Callable[[State, Event], Decision]
    tables: Sequence[Table[Any]]
    handles: Mapping[str, int]  # event type → newest schema version that `decide` understands
    ignores: Collection[str] = ()  # types that need no decision, such as the outcomes it emits
    logs: Collection[str] = ()  # names of the logs it emits to
    window: int = WINDOW_REQUESTS  # requests per partition whose repeats are recognised
    on_reject: Mapping[Reason, RejectPolicy] = field(default_factory=dict)  # SKIP for the others
    version: int = 1  # raised with every change of a decision that was taken before
    earlier: Sequence[Application] = ()  # the versions before this one that a replay needs

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            self._refuse(
                "its name must be 1 to 40 lower-case letters, digits and `-`, and start with a letter"
            )
        if taken := [t for t in (*self.handles, *self.ignores) if t.startswith(RESERVED)]:
            self._refuse(f"the type {taken[0]} is reserved; types that start with `{RESERVED}` are internal")
        if both := set(self.handles) & set(self.ignores):
            self._refuse(f"the type {min(both)} is both handled and ignored")
        names = [table.name for table in self.tables]
        if len(set(names)) != len(names) or any(name.startswith("olep_") for name in names):
            self._refuse("its tables need distinct names that do not start with `olep_`")
        if self.window < 1:
            self._refuse("its window must hold at least one request")
        versions = [*(each.version for each in self.earlier), self.version]
        if versions != sorted(set(versions)) or versions[0] < 1:
            self._refuse(f"versions must ascend from 1 or more, they are {versions}")
        for each in self.earlier:
            if (each.name, [*each.tables]) != (self.name, [*self.tables]):
                self._refuse(f"version {each.version} needs the same name and tables")

    def of_version(self, version: int) -> Application:
        """The declaration of a version. Raises VersionMissing."""
        for each in (self, *self.earlier):
            if each.version == version:
                return each
        raise VersionMissing(application=self.name, version=version, newest=self.version)

    def reject_policy(self, reason: Reason) -> RejectPolicy:
        return self.on_reject.get(reason, RejectPolicy.SKIP)

    def _refuse(self, reason: str) -> None:
        raise ApplicationInvalid(application=self.name, reason=reason)
