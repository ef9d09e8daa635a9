"""Restart nodes that run elsewhere: by a command of the operator, or by hand.

A command is a program and its arguments, run without a shell. `{host}`, `{node}` and `{zone}` are replaced
inside arguments. A node counts as restarted once it has registered with the controllers again, whatever the
command returned. By hand, the roll names the next node and waits for that.
"""

from __future__ import annotations

import asyncio
import shlex
import string
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.fleet.restarting import ProcessState
from penstock.model.errors.fleet import RestartCommandFailed, RestartCommandInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMAND_SECONDS_MAX: Final = 120.0
OUTPUT_BYTES_MAX: Final = 4_000  # of a command, that is kept
FIELDS: Final = ("host", "node", "zone")


@dataclass(frozen=True, slots=True)
class RemoteNode:
    id: int
    host: str
    zone: str = ""


def parse_command(text: str) -> tuple[str, ...]:
    """The argument list. Raises if it is empty, or names an unknown field."""
    try:
        words = tuple(shlex.split(text))
        fields = [name for word in words for _, name, _, _ in string.Formatter().parse(word)]
    except ValueError as error:
        raise RestartCommandInvalid(command=text, reason=str(error)) from error
    if not words:
        raise RestartCommandInvalid(command=text, reason="it is empty")
    unknown = [name for name in fields if name is not None and name not in FIELDS]
    if unknown:
        raise RestartCommandInvalid(command=text, reason=f"{{{unknown[0]}}} is none of {', '.join(FIELDS)}")
    if not any(name in ("host", "node") for name in fields):
        raise RestartCommandInvalid(command=text, reason="it names neither {host} nor {node}")
    return words


@dataclass
class CommandRestarter:
    """Runs the command once for each request, and again if that had no effect for a while."""

    command: tuple[str, ...]
    nodes: Mapping[int, RemoteNode]
    seconds_max: float = COMMAND_SECONDS_MAX
    outputs: dict[int, str] = field(default_factory=dict)  # of the last command of each node
    _ran: dict[tuple[int, str], float] = field(default_factory=dict)

    async def restart(self, node: int, request: str, document: str = "") -> None:
        del document
        now = time.monotonic()
        if now - self._ran.get((node, request), float("-inf")) < self.seconds_max:
            return
        self._ran[node, request] = now
        await self._run(node)

    async def hold(self, node: int, request: str) -> None:
        """A command restarts: there is none that stops a node for good."""
        raise RestartCommandFailed(
            node=node, outcome="cannot hold it stopped", output=request, command=" ".join(self.command)
        )

    async def start(self, node: int, request: str, document: str = "") -> None:
        await self.restart(node, request, document)

    async def state(self, node: int) -> ProcessState:
        """The controllers know its incarnation; here nothing is known."""
        return ProcessState(alive=True, last_error=self.outputs.get(node, ""))

    async def _run(self, node: int) -> None:
        target = self.nodes[node]
        words = [w.format(host=target.host, node=target.id, zone=target.zone) for w in self.command]
        shown = shlex.join(words)
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise RestartCommandFailed(
                node=node, outcome="did not start", output=error.strerror or error, command=shown
            ) from error
        try:
            async with asyncio.timeout(self.seconds_max):
                output, _ = await process.communicate()
        except TimeoutError as error:
            outcome = f"did not end within {self.seconds_max:.0f} s"
            raise RestartCommandFailed(node=node, outcome=outcome, output="none", command=shown) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = output.decode(errors="replace")[-OUTPUT_BYTES_MAX:].strip()
        self.outputs[node] = text
        if process.returncode:
            outcome = f"ended with exit code {process.returncode}"
            raise RestartCommandFailed(node=node, outcome=outcome, output=text or "none", command=shown)


class ByHand:
    """An operator restarts the node that the roll names."""

    async def restart(self, node: int, request: str, document: str = "") -> None:
        """Nothing to do: the operation's detail names the node."""

    async def hold(self, node: int, request: str) -> None:
        """Nothing to do."""

    async def start(self, node: int, request: str, document: str = "") -> None:
        """Nothing to do."""

    async def state(self, node: int) -> ProcessState:
        del node
        return ProcessState(alive=True)
