"""The command tree, and the exit code of a run."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from importlib import import_module
from itertools import pairwise
from typing import Final

import structlog
from cyclopts import App, CycloptsError

from penstock import __version__
from penstock.cli.output import Format, show_error
from penstock.cli.settings import read_settings
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.settings import UsageInvalid

# Command → module and object that implement it.
COMMANDS: Final = {
    "up": "local:up",
    "down": "local:down",
    "status": "local:status",
    "logs": "local:logs",
    "reset": "local:reset",
    "fleet": "operator.fleet:app",
    "tier": "operator.tier:app",
    "cluster": "tenant.cluster:app",
    "account": "tenant.tenants:account",
    "key": "tenant.tenants:key",
    "acl": "tenant.tenants:acl",
    "topic": "tenant.topic:app",
    "group": "tenant.group:app",
    "produce": "tenant.records:produce",
    "consume": "tenant.records:consume",
    "token": "token:app",
    "audit": "operator.audit:app",
    "profile": "profile:app",
    "login": "profile:login",
    "apply": "tenant.manifests:apply",
    "operation": "tenant.tenants:operation",
    "physical": "operator.physical:app",
    "cell": "tenant.tenants:cell",
    "broker": "operator.broker:app",
    "balance": "operator.balance:app",
    "health": "operator.health:app",
    "quota": "tenant.quota:app",
    "usage": "tenant.quota:usage",
    "control": "control:app",
    "gateway": "operator.gateway:app",
    "olep": "library.olep:app",
    "config": "config:app",
    "doctor": "doctor:doctor",
    "debug": "debug:app",
    "version": "doctor:version",
    "link": "operator.link:app",
    "backup": "operator.backup:app",
    "scale": "library.scale:app",
    "sim": "library.sim:app",
    "pipeline": "library.pipeline:app",
    "completion": "doctor:completion",
}


# A shell's exit codes for a program that Ctrl-C ended, or whose reader closed the pipe.
INTERRUPTED, UNREAD = 130, 141


def command_tree(only: str | None = None) -> App:
    """The whole tree, or one command of it, which costs only that command's imports; "" has no command."""
    app = App(
        name="penstock",
        help=(
            "Stock Apache Kafka as a cloud-native, multi-tenant event-streaming platform."
            "\n\nStart here: penstock up"
        ),
        version=__version__,
        version_flags=["--version"],
        suppress_keyboard_interrupt=False,  # `run` returns its exit code
    )
    for name, where in COMMANDS.items():
        if only in (None, name):
            module, attribute = where.split(":")
            app.command(getattr(import_module(f"penstock.cli.{module}"), attribute), name=name)
    return app


def run(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    _quiet_logging()
    try:
        result = _execute(words)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # for the flush when the interpreter exits
        return UNREAD
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        known = _catalogued(error)
        if known is None:
            raise
        show_error(known, _requested_form(words))
        return known.exit_code
    return int(result) if isinstance(result, int) else Exit.FINE


def _execute(words: list[str]) -> object:
    console = None
    if not words or {"--help", "-h", "--version"} & set(words):
        from rich.console import Console

        console = Console()  # cyclopts keeps one for each command, with the width of its first use
    else:
        read_settings(os.environ)  # a misspelt setting is an error for every command
    command = words[0] if words and words[0] in COMMANDS else None
    needed = "" if words == ["--version"] else command
    try:
        return command_tree(needed)(
            words, console=console, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        reason = " ".join(str(error).split()).rstrip("., ")
        way_out = f"See: penstock {command} --help" if command else "See: penstock --help"
        raise UsageInvalid(reason=reason, way_out=way_out) from error


def _catalogued(group: BaseException) -> PenstockError | None:
    """The error, or the first of a group; None if any of them is not from the catalogue."""
    if isinstance(group, PenstockError):
        return group
    if not isinstance(group, ExceptionGroup):
        return None
    errors = [_catalogued(inner) for inner in group.exceptions]
    return None if None in errors else errors[0]


def _requested_form(words: list[str]) -> Format:
    """The output form, even if the command line or the settings are wrong otherwise."""
    joined = [part for word in words for part in word.split("=", 1)]
    for flag, value in pairwise(joined):
        if flag in ("-o", "--output") and value in list(Format):
            return Format(value)
    with contextlib.suppress(PenstockError):
        return Format(read_settings(os.environ).get("output", Format.TABLE))
    return Format.TABLE


def _quiet_logging() -> None:
    """Commands print through `report` and `show`; log lines appear from warnings up."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        # Looked up at every line: a test may replace standard error between two commands.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
