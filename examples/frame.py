"""What the example programs are started by: a setting in a file, a Kafka, a crew of processes, a main.

`up` writes the setting and looks after the crew; every process of it, and every other command, reads
the setting. Nothing outlives `up`, however it ends: the processes notice by a pipe, and one of them
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
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from cyclopts import Parameter

from penstock.model.errors import PenstockError
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from cyclopts import App

RESTART_SECONDS: Final = 0.5  # between the end of a process and its next start
STOP_SECONDS: Final = 20.0
LIFELINE: Final = "EXAMPLE_LIFELINE"  # the descriptor by which a process notices that its crew is gone
ANSWER_SECONDS: Final = 60.0  # until a page is there

_abandoned = threading.Event()  # the crew that this process belongs to is gone

Kind = TypeVar("Kind")

# Flags that `up` has in every example.
Bootstrap = Annotated[str | None, Parameter(help="Any Kafka; without it, a local one is started.")]
Option = Annotated[tuple[str, ...], Parameter(help="Client property, key=value.", negative="")]
TopicsName = Annotated[str, Parameter(help="What its topics begin with.")]


def save_setting(path: Path, setting: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)  # it may hold a password
    path.write_text(json.dumps(asdict(setting), indent=2), encoding="utf-8")


def read_setting(path: Path, kind: Callable[..., Kind]) -> Kind:
    try:
        return kind(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise SettingsUnreadable(path=path, reason=error) from error


def stop_on_signals() -> threading.Event:
    # Executors make no cycles and have large caches: looking for garbage seldom saves 5 % of their time.
    gc.set_threshold(50_000, 20, 100)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def bring_up(
    module: str,
    home: Path,
    members: Mapping[str, Sequence[str]],
    *,
    port: int,
    bootstrap: str | None,
    option: Iterable[str],
    begin: Callable[[dict[str, Any], Callable[[], None]], None],
) -> None:
    """Runs the members (name → words of a command of `module`) until a signal comes.

    Without `bootstrap`, on a local Kafka. `begin(config, start)` prepares what they need, calls
    `start`, which returns when one of them answers at `port`, and does what the first of users would."""
    stopping = stop_on_signals()
    if _answers(port):
        raise SettingInvalid(where="flags", key="--port", value=port, expected="something else answers there")
    kafka = None if bootstrap else LocalKafka(home)
    try:
        config = kafka.start() if kafka else {"bootstrap.servers": bootstrap, **_options(option)}
        words = dict(members) if kafka is None else {**members, "keeper": ["keeper"]}
        this = [sys.executable, "-m", module]
        crew = Crew({name: [*this, *each, "--home", str(home)] for name, each in words.items()})
        try:
            begin(config, lambda: crew.await_page(port, stopping))
            while not stopping.wait(0.2):
                for name in crew.look_after():
                    print(f"started {name} again", flush=True)
        finally:
            crew.stop()
    finally:
        if kafka:
            kafka.stop()


def main_of(app: App) -> int:
    """The whole of a program's `main`: an error says the way out, and no traceback."""
    hold_lifeline()
    try:
        result = app(result_action="return_value")
    except PenstockError as error:
        print(f"error: {error}\n  {error.advice}", file=sys.stderr)
        return error.exit_code
    return int(result or 0)


def hold_lifeline() -> None:
    """Ends this process as SIGTERM would once the crew that started it is gone, even if by kill -9.

    The crew holds the other end of a pipe and never writes to it; the kernel closes it with the crew."""
    if (found := os.environ.pop(LIFELINE, None)) is None:
        return
    descriptor = int(found)
    os.set_inheritable(descriptor, False)

    def wait() -> None:
        os.read(descriptor, 1)
        _abandoned.set()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


class Crew:
    """Processes that are started again when they end, until all are stopped. None outlives us."""

    def __init__(self, commands: dict[str, list[str]]) -> None:
        self._commands = commands
        self._lifeline, self._held = os.pipe()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._due: dict[str, float] = {}

    def look_after(self) -> list[str]:
        """Starts what should run and does not; returns the names of those."""
        started = []
        for name, command in self._commands.items():
            process = self._processes.get(name)
            if process is not None:
                if process.poll() is None or time.monotonic() < self._due.setdefault(name, _soon()):
                    continue
                del self._due[name]
            environment = {**os.environ, LIFELINE: str(self._lifeline)}
            self._processes[name] = subprocess.Popen(command, env=environment, pass_fds=(self._lifeline,))
            started.append(name)
        return started

    def await_page(self, port: int, stopping: threading.Event) -> None:
        """Starts all, and returns when one of them listens at the port."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while not stopping.is_set() and not _answers(port):
            if time.monotonic() > deadline:
                raise SystemExit(f"error: nothing answers at port {port} after {ANSWER_SECONDS:g} s")
            self.look_after()
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
        os.close(self._held)
        os.close(self._lifeline)


class LocalKafka:
    """A Kafka of one node, for a program that is given none. Its data outlives it."""

    def __init__(self, home: Path) -> None:
        self._home = str(home / "kafka")

    def start(self) -> dict[str, Any]:
        print(f"starting a local Kafka in {self._home}", flush=True)
        self._penstock("up", "--tiny", "--fleet-only", "--port", "0", "--detach")
        shown = self._penstock("fleet", "connect", "--client", "python", "--output", "json")
        config: dict[str, Any] = json.loads(shown)
        return config

    def stop(self) -> None:
        self._penstock("down")

    def keep(self) -> None:
        """Waits in a process of the crew, and stops this Kafka if the crew is gone and could not."""
        stop_on_signals().wait()
        # Not by its parent's number: the pipe closes before the kernel gives the process another one.
        if _abandoned.is_set():
            self.stop()

    def _penstock(self, *words: str) -> str:
        command = [sys.executable, "-m", "penstock", *words, "--home", self._home]
        # In a session of its own: Ctrl-C is for us, and we stop it.
        done = subprocess.run(command, check=False, capture_output=True, text=True, start_new_session=True)
        if done.returncode:
            sys.stderr.write(done.stderr)
            raise SystemExit(done.returncode)
        return done.stdout


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _options(given: Iterable[str]) -> dict[str, str]:
    return dict(each.split("=", 1) for each in given)


def _soon() -> float:
    return time.monotonic() + RESTART_SECONDS
