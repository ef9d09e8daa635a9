"""Online event processing: applications whose state is a function of partitioned logs.

    from penstock.olep import Application, Emit, Executor, Put, SqliteStores, Table, open_log

What it is: a log on any Kafka (`Log`), executors that fold each partition into local state and emit
further events (`Executor`), clients that wait for the outcome of a request (`Outcomes`), replay and
trace, and views of logs with consistent reads (`penstock.olep.view`). An application is one pure
function, `decide(state, event) -> (rows, events)`.

What it is not: distributed transactions, a workflow engine, or a stream-processing language. Partitions
agree with one another only after a while, and it does not hide that.

What it promises, even if executors, clients and brokers crash at any point:
- every event of a log is applied exactly once to the state of its partition, in log order;
- every event that a decision emits reaches its log and is applied there exactly once;
- a repeated request is carried out once, if the repeat comes within the application's window;
- state equals a replay of the log; an event that cannot be applied is listed, never lost.

Modules:
  application      what an application declares: `decide`, tables, event types, policies
  codec            events as bytes: JSON, or a codec you write
  deduplication    recognises events that were applied before
  encoding         the JSON form of events
  event            events and their ids
  executor         runs an application on its share of a log's partitions
  fold             turns a range of records into one batch of rows and events
  log              a Kafka topic as a log: append, read, positions
  metrics          Prometheus metrics of an executor
  outbox           outgoing events of a batch as one value
  outbox_sender    sends outgoing events, in order and without gaps
  outcome          waits for the outcome of a request
  partition_task   one partition of an executor: decide, commit, send
  partitioner      Kafka's default partitioner
  pipeline         runs executors over several logs together
  position         positions in a log, and the tokens that carry them
  purity           detects a `decide` that is not a pure function
  rejected_events  lists and retries rejected events
  replay           rebuilds state from the log; traces a request
  rows             the rows of a partition, cached, with pending changes
  sql              pieces of SQL, built from a table's declaration
  state_snapshot   copies of a partition's state, for take-over on another machine
  store            where the state of a partition is stored
  table            state as tables of typed rows
  testing          scenarios for applications: given events, when a request, then events and state
  view             views of logs, and reads of known consistency
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from penstock.wire.compiled import prefer_compiled as _prefer_compiled

if TYPE_CHECKING:
    from penstock.olep.application import NOTHING, Application, Decision, Emit, Reason, RejectPolicy, State
    from penstock.olep.codec import Upcasting
    from penstock.olep.event import Event, request
    from penstock.olep.executor import Executor, Tuning
    from penstock.olep.log import Appender, Log, create_log, end_position, open_log
    from penstock.olep.outcome import Outcomes
    from penstock.olep.pipeline import Pipeline
    from penstock.olep.position import Position
    from penstock.olep.state_snapshot import DirectoryStorage, StateSnapshots
    from penstock.olep.store.sqlite import SqliteStores
    from penstock.olep.table import Put, Remove, Table
    from penstock.olep.testing import Scenario

__all__ = [
    "NOTHING", "Appender", "Application", "Decision", "DirectoryStorage", "Emit", "Event", "Executor",
    "Log", "Outcomes", "Pipeline", "Position", "Put", "Reason", "RejectPolicy", "Remove", "Scenario",
    "SqliteStores", "State", "StateSnapshots", "Table", "Tuning", "Upcasting", "create_log",
    "end_position", "open_log", "request",
]  # fmt: skip

_prefer_compiled(__name__, __path__)

# Imported when first used: a reader of one module needs neither the Kafka client nor the stores.
_MODULES: Final = {
    "application": ("Application", "Decision", "Emit", "NOTHING", "Reason", "RejectPolicy", "State"),
    "codec": ("Upcasting",),
    "event": ("Event", "request"),
    "executor": ("Executor", "Tuning"),
    "log": ("Appender", "Log", "create_log", "end_position", "open_log"),
    "outcome": ("Outcomes",),
    "pipeline": ("Pipeline",),
    "position": ("Position",),
    "state_snapshot": ("DirectoryStorage", "StateSnapshots"),
    "store.sqlite": ("SqliteStores",),
    "table": ("Put", "Remove", "Table"),
    "testing": ("Scenario",),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
