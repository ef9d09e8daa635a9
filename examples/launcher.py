"""Starts an example program: reads its settings, runs its processes, starts a local Kafka if none is given.

`up` writes the settings and supervises the processes; every process and every other command reads the
settings. No process outlives `up`, however `up` ends: each notices by a closed pipe, and one of them
stops the local Kafka.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from cyclopts import App, Parameter

from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fastapi import FastAPI

RESTART_SECONDS: Final = 0.5  # between the end of a process and its next start
STOP_SECONDS: Final = 20.0
START_SECONDS: Final = 60.0  # until the program listens on its port
SUPERVISOR_PIPE: Final = "EXAMPLE_SUPERVISOR_PIPE"  # descriptor that closes when the supervisor ends
KAFKA_WATCHER: Final = "kafka-watcher"  # the process that stops the local Kafka if `up` is killed

_abandoned = threading.Event()  # the supervisor of this process has ended

SettingsType = TypeVar("SettingsType")

# Flags that every example has.
Home = Annotated[Path, Parameter(help="Directory of the program's settings and state.")]
Bootstrap = Annotated[str | None, Parameter(help="Kafka to use; without it, a local one is started.")]
Option = Annotated[tuple[str, ...], Parameter(help="Kafka client property, key=value.", negative="")]
TopicsName = Annotated[str, Parameter(help="Prefix of the topic names.")]


def example_app(name: str, summary: str, home: Path) -> App:
    """The command of an example, with the process that stops its local Kafka."""
    app = App(name=name, help=summary)
    default_home = home

    @app.command(name=KAFKA_WATCHER, show=False)
    def watch_kafka(*, home: Home = default_home) -> int:
        """Stop the local Kafka if `up` is killed. Started by `up`."""
        LocalKafka(home).stop_when_abandoned()
        return Exit.FINE

    return app


def save_settings(path: Path, settings: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)  # it may hold a password
    path.write_text(json.dumps(asdict(settings), indent=2), encoding="utf-8")


def read_settings(path: Path, kind: Callable[..., SettingsType]) -> SettingsType:
    try:
        return kind(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise SettingsUnreadable(path=path, reason=error) from error


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    # Executors create no reference cycles and have large caches: rare collections save 5 % of their time.
    gc.set_threshold(50_000, 20, 100)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def serve(service: FastAPI, port: int) -> int:
    """Serves HTTP on this host until a signal arrives."""
    import uvicorn

    uvicorn.run(service, host="127.0.0.1", port=port, log_level="warning")
    return Exit.FINE


def run_program(
    module: str,
    home: Path,
    commands: Mapping[str, Sequence[str]],
    *,
    port: int,
    bootstrap: str | None,
    option: Iterable[str],
    begin: Callable[[dict[str, Any], Callable[[], None]], None],
) -> int:
    """Runs processes (name → arguments of `python -m module`) until a signal arrives.

    `begin(config, start)` gets the Kafka client's configuration. It prepares topics and settings, calls
    `start`, which returns once a process listens on `port`, and then does what the first user would."""
    stopping = stop_on_signals()
    if _is_listening(port):
        raise SettingInvalid(where="flags", key="--port", value=port, expected="a port that is free")
    kafka = None if bootstrap else LocalKafka(home)
    try:
        config = kafka.start() if kafka else {"bootstrap.servers": bootstrap, **_options(option)}
        arguments = dict(commands) if kafka is None else {**commands, KAFKA_WATCHER: [KAFKA_WATCHER]}
        python = [sys.executable, "-m", module]
        supervisor = Supervisor(
            {name: [*python, *each, "--home", str(home)] for name, each in arguments.items()}
        )
        try:
            begin(config, lambda: supervisor.start_and_wait(port, stopping))
            while not stopping.wait(0.2):
                for name in supervisor.restart_ended():
                    print(f"restarted {name}", flush=True)
        finally:
            supervisor.stop()
    finally:
        if kafka:
            kafka.stop()
    return Exit.FINE


def run_cli(app: App) -> int:
    """The whole `main` of a program: prints an error and its hint instead of a traceback."""
    exit_with_supervisor()
    try:
        result = app(result_action="return_value")
    except PenstockError as error:
        print(f"error: {error}\n  {error.advice}", file=sys.stderr)
        return error.exit_code
    return int(result or 0)


def exit_with_supervisor() -> None:
    """Ends this process as SIGTERM would once its supervisor has ended, even by kill -9.

    The supervisor holds the other end of a pipe and never writes to it. The kernel closes the pipe when
    the supervisor ends."""
    if (variable := os.environ.pop(SUPERVISOR_PIPE, None)) is None:
        return
    descriptor = int(variable)
    os.set_inheritable(descriptor, False)

    def wait() -> None:
        os.read(descriptor, 1)
        _abandoned.set()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="supervisor-pipe", daemon=True).start()


class Supervisor:
    """Restarts processes that end, until all are stopped. None outlives this process."""

    def __init__(self, commands: dict[str, list[str]]) -> None:
        self._commands = commands
        self._pipe, self._held_end = os.pipe()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._restart_at: dict[str, float] = {}

    def restart_ended(self) -> list[str]:
        """Starts the processes that are not running; returns their names."""
        started = []
        for name, command in self._commands.items():
            process = self._processes.get(name)
            if process is not None:
                if process.poll() is None or time.monotonic() < self._restart_at.setdefault(
                    name, time.monotonic() + RESTART_SECONDS
                ):
                    continue
                del self._restart_at[name]
            environment = {**os.environ, SUPERVISOR_PIPE: str(self._pipe)}
            self._processes[name] = subprocess.Popen(command, env=environment, pass_fds=(self._pipe,))
            started.append(name)
        return started

    def start_and_wait(self, port: int, stopping: threading.Event) -> None:
        """Starts all processes; returns when one of them listens on the port."""
        deadline = time.monotonic() + START_SECONDS
        while not stopping.is_set() and not _is_listening(port):
            if time.monotonic() > deadline:
                raise SystemExit(f"error: nothing listens on port {port} after {START_SECONDS:g} s")
            self.restart_ended()
            stopping.wait(0.1)

    def stop(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        os.close(self._held_end)
        os.close(self._pipe)


class LocalKafka:
    """A one-node Kafka, for a program started without `--bootstrap`. Its data is kept when it stops."""

    def __init__(self, home: Path) -> None:
        self._home = str(home / "kafka")

    def start(self) -> dict[str, Any]:
        """Returns the client configuration."""
        print(f"starting a local Kafka in {self._home}", flush=True)
        self._penstock("up", "--tiny", "--fleet-only", "--port", "0", "--detach")
        connection = self._penstock("fleet", "connect", "--client", "python", "--output", "json")
        config: dict[str, Any] = json.loads(connection)
        return config

    def stop(self) -> None:
        self._penstock("down")

    def stop_when_abandoned(self) -> None:
        """Waits for a signal; stops this Kafka if the supervisor ended without stopping it."""
        stop_on_signals().wait()
        # Not by the parent's process id: the pipe closes before the kernel changes it.
        if _abandoned.is_set():
            self.stop()

    def _penstock(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "penstock", *arguments, "--home", self._home]
        # In a new session: Ctrl-C reaches the supervisor only, which then stops Kafka.
        done = subprocess.run(command, check=False, capture_output=True, text=True, start_new_session=True)
        if done.returncode:
            sys.stderr.write(done.stderr)
            raise SystemExit(done.returncode)
        return done.stdout


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _options(options: Iterable[str]) -> dict[str, str]:
    return dict(each.split("=", 1) for each in options)
