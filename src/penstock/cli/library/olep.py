"""`penstock olep`: inspects the logs of event-processing applications."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.flags import import_object, key_values
from penstock.cli.library.olep_view import app as view_app
from penstock.cli.output import Format, report, show, table_of
from penstock.model.errors import Exit
from penstock.model.errors.settings import SettingInvalid
from penstock.olep.application import Application
from penstock.olep.log import Log, end_position, open_log, position_at_time
from penstock.olep.position import Position
from penstock.olep.rejected_events import rejected as listed_events
from penstock.olep.rejected_events import retry as append_retry
from penstock.olep.replay import replay as replay_log
from penstock.olep.replay import trace as trace_request
from penstock.olep.store import Stores
from penstock.olep.store.sqlite import SqliteStores

app = App(name="olep", help="Event-processing applications: replay, trace, rejected events, views.")
app.command(view_app)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Kafka:
    """The flags of Kafka and of the output."""

    bootstrap: Annotated[str, Parameter(help="Kafka's address, host:port.")] = "127.0.0.1:9092"
    option: Annotated[
        tuple[str, ...], Parameter(name=["--option", "-X"], help="Client property, key=value.", negative="")
    ] = ()
    output: Annotated[Format, Parameter(name=["--output", "-o"], help="Output format.")] = Format.TABLE

    def config(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, **key_values(self.option, "--option")}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class State:
    """The flags of the executors' state."""

    state: Annotated[Path | None, Parameter(help="Directory of the SQLite files.")] = None
    postgres: Annotated[str | None, Parameter(help="Connection string of the database.")] = field(
        default=None
    )

    def stores(self) -> Stores:
        if self.postgres is not None:
            from penstock.olep.store.postgres import PostgresStores

            return PostgresStores(self.postgres)
        if self.state is None:
            raise SettingInvalid(
                where="flags", key="--state", value=None, expected="expected a directory, or --postgres"
            )
        return SqliteStores(self.state)


ApplicationName = Annotated[str, Parameter(help="The application, module:name.")]
Topic = Annotated[str, Parameter(help="The topic of its log.")]
LogName = Annotated[
    str | None, Parameter(help="What the application calls the log.", show_default="the topic")
]


@app.command
def replay(
    *,
    application: ApplicationName,
    topic: Topic,
    log: LogName = None,
    until: Annotated[
        str | None, Parameter(help="A position token, or a time such as 2026-01-31T12:00:00Z.")
    ] = None,
    table: Annotated[str | None, Parameter(help="Print the rows of this table.")] = None,
    kafka: Kafka = Kafka(),
) -> int:
    """Replay a log up to a position, without sending anything.

    Prints a digest of the state for each partition, or the rows of a table.

    Example:  penstock olep replay --application bank:BANK --topic accounts --until 2026-01-31T12:00:00Z
    """
    chosen = find_application(application)
    opened = open_log(kafka.config(), topic, name=log)
    replayed = replay_log(chosen, opened, until=_until(opened, until))
    report(f"{replayed.records} events up to {replayed.position.token()}")
    if table is None:
        rows = [
            {"partition": partition, "position": replayed.stores[partition].position(), "digest": value}
            for partition, value in replayed.digests().items()
        ]
        show(
            rows,
            kafka.output,
            table_of(rows, {"PARTITION": "partition", "POSITION": "position", "DIGEST": "digest"}),
        )
        return Exit.FINE
    shown = next((each for each in chosen.tables if each.name == table), None)
    if shown is None:
        names = ", ".join(each.name for each in chosen.tables)
        raise SettingInvalid(where="flags", key="--table", value=table, expected=f"expected one of {names}")
    columns = [column.name for column in shown.columns]
    rows = [
        {"partition": partition, **dict(zip(columns, row, strict=True))}
        for partition, store in replayed.stores.items()
        for row in sorted(store.scan(shown), key=shown.key_of)
    ]
    show(rows, kafka.output, table_of(rows, {"PARTITION": "partition", **{c.upper(): c for c in columns}}))
    return Exit.FINE


@app.command
def trace(
    request: Annotated[str, Parameter(help="Id of the request.")],
    *,
    topic: Annotated[tuple[str, ...], Parameter(help="Topic to search; repeatable.", negative="")],
    kafka: Kafka = Kafka(),
) -> int:
    """Print every event that a request caused, in all logs, causes before effects.

    Example:  penstock olep trace r-17 --topic payments.accounts --topic payments.notices
    """
    config = kafka.config()
    events = trace_request([open_log(config, each) for each in topic], request)
    rows = [
        {
            "event": f"{'  ' * each.depth}{each.event.type}",
            "log": each.log,
            "key": each.event.key,
            "place": f"{each.event.partition}/{each.event.offset}",
            "copies": each.copies,
            "payload": json.dumps(each.event.payload, ensure_ascii=False),
            "id": each.event.id,
        }
        for each in events
    ]
    columns = {
        "EVENT": "event",
        "LOG": "log",
        "KEY": "key",
        "PLACE": "place",
        "COPIES": "copies",
        "PAYLOAD": "payload",
    }
    show(rows, kafka.output, table_of(rows, columns, empty=f"no events of request {request}"))
    return Exit.FINE


@app.command
def position(*, topic: Topic, kafka: Kafka = Kafka()) -> int:
    """Print the position token of a log's end.

    Example:  penstock olep position --topic payments.accounts
    """
    tail = end_position(open_log(kafka.config(), topic))
    if kafka.output is Format.TABLE:
        print(tail.token())
    else:
        show({"token": tail.token(), "offsets": tail.offsets}, kafka.output, "")
    return Exit.FINE


@app.command
def rejected(
    *,
    application: ApplicationName,
    topic: Topic,
    state: State = State(),
    kafka: Kafka = Kafka(),
) -> int:
    """List the events that executors could not apply.

    Example:  penstock olep rejected --application bank:BANK --topic accounts --state .payments/state
    """
    events = listed_events(find_application(application), open_log(kafka.config(), topic), state.stores())
    rows = [
        {
            "partition": each.partition,
            "offset": each.event.at,
            "reason": each.event.reason,
            "detail": each.event.detail,
            "key": each.event.key,
        }
        for each in events
    ]
    columns = {
        "PARTITION": "partition",
        "OFFSET": "offset",
        "REASON": "reason",
        "KEY": "key",
        "DETAIL": "detail",
    }
    show(rows, kafka.output, table_of(rows, columns, empty="no rejected events"))
    return Exit.FINE


@app.command
def retry(
    partition: Annotated[int, Parameter(help="Partition of the event.")],
    offset: Annotated[int, Parameter(help="Offset of the event.")],
    *,
    application: ApplicationName,
    topic: Topic,
    state: State = State(),
    kafka: Kafka = Kafka(),
) -> int:
    """Retry a rejected event, once its cause is fixed.

    Example:  penstock olep retry 2 1042 --application bank:BANK --topic accounts --state .payments/state
    """
    log = open_log(kafka.config(), topic)
    events = listed_events(find_application(application), log, state.stores())
    token = append_retry(log, events, partition, offset, time=time.time_ns() // 1_000_000).token()
    report(f"requested; the executor retries it at {token}")
    return Exit.FINE


def find_application(name: str) -> Application:
    return import_object(name, Application, "--application")


def _until(log: Log, text: str | None) -> Position | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return Position.parse(text)
    return position_at_time(log, int(moment.timestamp() * 1000))
