"""`penstock olep`: look into the logs of event-processing applications."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.olep_view import app as view_app
from penstock.cli.output import Format, show, table_of, tell
from penstock.model.errors import Exit
from penstock.model.errors.settings import SettingInvalid
from penstock.olep.application import Application
from penstock.olep.log import Log, ends, open_log
from penstock.olep.position import Position
from penstock.olep.rejected import rejected as listed_events
from penstock.olep.rejected import retry as append_retry
from penstock.olep.replay import replay as replay_log
from penstock.olep.replay import trace as trace_request
from penstock.olep.replay import until_time
from penstock.olep.store import Stores
from penstock.olep.store.sqlite import SqliteStores

app = App(name="olep", help="Event-processing applications: replay, trace, rejected events, views.")
app.command(view_app)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Kafka:
    """Which Kafka, and how data is printed."""

    bootstrap: Annotated[str, Parameter(help="Kafka's address, host:port.")] = "127.0.0.1:9092"
    option: Annotated[
        tuple[str, ...], Parameter(name=["--option", "-X"], help="Client property, key=value.", negative="")
    ] = ()
    output: Annotated[Format, Parameter(name=["--output", "-o"], help="How data is printed.")] = Format.TABLE

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"bootstrap.servers": self.bootstrap}
        for each in self.option:
            key, found, value = each.partition("=")
            if not found:
                raise SettingInvalid(where="flags", key="--option", value=each, expected="expected key=value")
            config[key] = value
        return config


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class State:
    """Where executors keep their state."""

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
    until: Annotated[str | None, Parameter(help="A token, or a time such as 2026-01-31T12:00:00Z.")] = None,
    table: Annotated[str | None, Parameter(help="Print the rows of this table.")] = None,
    kafka: Kafka = Kafka(),
) -> int:
    """Fold a log into the state it had at a position, without sending anything.

    Prints a digest for each partition, or the rows of a table.

    Example:  penstock olep replay --application bank:BANK --topic accounts --until 2026-01-31T12:00:00Z
    """
    made = find_application(application)
    opened = open_log(kafka.config(), topic, name=log)
    replayed = replay_log(made, opened, until=_until(opened, until))
    tell(f"{replayed.records} events up to {replayed.position.token()}")
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
    chosen = next((each for each in made.tables if each.name == table), None)
    if chosen is None:
        names = ", ".join(each.name for each in made.tables)
        raise SettingInvalid(where="flags", key="--table", value=table, expected=f"expected one of {names}")
    columns = [column.name for column in chosen.columns]
    rows = [
        {"partition": partition, **dict(zip(columns, row, strict=True))}
        for partition, store in replayed.stores.items()
        for row in sorted(store.scan(chosen), key=chosen.key_of)
    ]
    show(rows, kafka.output, table_of(rows, {"PARTITION": "partition", **{c.upper(): c for c in columns}}))
    return Exit.FINE


@app.command
def trace(
    request: Annotated[str, Parameter(help="The id of a request.")],
    *,
    topic: Annotated[tuple[str, ...], Parameter(help="The topics to look in.", negative="")],
    kafka: Kafka = Kafka(),
) -> int:
    """Print every event that a request caused, causes before effects, over all logs.

    Example:  penstock olep trace r-17 --topic payments.accounts --topic payments.notices
    """
    config = kafka.config()
    found = trace_request([open_log(config, each) for each in topic], request)
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
        for each in found
    ]
    columns = {
        "EVENT": "event",
        "LOG": "log",
        "KEY": "key",
        "PLACE": "place",
        "COPIES": "copies",
        "PAYLOAD": "payload",
    }
    show(rows, kafka.output, table_of(rows, columns))
    return Exit.FINE


@app.command
def position(*, topic: Topic, kafka: Kafka = Kafka()) -> int:
    """Print the token of a log's tail: what is covered by it has been written by now.

    Example:  penstock olep position --topic payments.accounts
    """
    tail = ends(open_log(kafka.config(), topic))
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
    found = listed_events(find_application(application), open_log(kafka.config(), topic), state.stores())
    rows = [
        {
            "partition": each.partition,
            "offset": each.event.at,
            "reason": each.event.reason,
            "detail": each.event.detail,
            "key": each.event.key,
        }
        for each in found
    ]
    columns = {
        "PARTITION": "partition",
        "OFFSET": "offset",
        "REASON": "reason",
        "KEY": "key",
        "DETAIL": "detail",
    }
    show(rows, kafka.output, table_of(rows, columns))
    return Exit.FINE


@app.command
def retry(
    partition: Annotated[int, Parameter(help="Its partition.")],
    offset: Annotated[int, Parameter(help="Its offset.")],
    *,
    application: ApplicationName,
    topic: Topic,
    state: State = State(),
    kafka: Kafka = Kafka(),
) -> int:
    """Have a rejected event decided again, once its cause is mended.

    Example:  penstock olep retry 2 1042 --application bank:BANK --topic accounts --state .payments/state
    """
    log = open_log(kafka.config(), topic)
    found = listed_events(find_application(application), log, state.stores())
    token = append_retry(log, found, partition, offset, time=time.time_ns() // 1_000_000).token()
    tell(f"asked for; it is decided by the executor at {token}")
    return Exit.FINE


def find_application(name: str) -> Application:
    """`module:name`, looked for in the working directory too."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingInvalid(
            where="flags", key="--application", value=name, expected=f"expected module:name ({error})"
        ) from error
    finally:
        sys.path.pop(0)
    if not isinstance(found, Application):
        raise SettingInvalid(
            where="flags", key="--application", value=name, expected="which is no Application"
        )
    return found


def _until(log: Log, text: str | None) -> Position | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return Position.parse(text)
    return until_time(log, int(moment.timestamp() * 1000))
