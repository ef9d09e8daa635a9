"""Restart commands: what is refused, what is run, and what becomes of its output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from penstock.fleet.adopted.restart_commands import ByHand, CommandRestarter, RemoteNode, parse_command
from penstock.model.errors.fleet import RestartCommandFailed, RestartCommandInvalid

if TYPE_CHECKING:
    from pathlib import Path

NODES = {1: RemoteNode(1, "kafka-1", "a"), 2: RemoteNode(2, "kafka-2; rm -rf x", "b")}


def program(code: str) -> tuple[str, ...]:
    """Runs Python code with the host and the node as arguments."""
    return (sys.executable, "-c", code, "{host}", "{node}")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "empty"),
        ("restart kafka", "neither"),
        ("ssh {host} 'restart", "quotation"),
        ("ssh {host} {password}", "password"),
        ("ssh {host", "expected"),
    ],
)
def test_a_command_that_cannot_work_is_refused(command: str, reason: str) -> None:
    with pytest.raises(RestartCommandInvalid, match=reason):
        parse_command(command)


def test_a_command_is_a_list_of_arguments() -> None:
    words = parse_command("systemctl -H {host} restart 'my kafka'")
    assert words == ("systemctl", "-H", "{host}", "restart", "my kafka")


async def test_a_host_is_one_argument_whatever_it_contains(tmp_path: Path) -> None:
    kept = tmp_path / "argument"
    code = f"import sys; open({str(kept)!r}, 'w').write('|'.join(sys.argv[1:])); print('restarted')"
    restarter = CommandRestarter(program(code), NODES)

    await restarter.restart(2, "roll-1")

    assert kept.read_text() == "kafka-2; rm -rf x|2"
    assert restarter.outputs[2] == "restarted"


async def test_a_command_runs_once_for_a_request(tmp_path: Path) -> None:
    kept = tmp_path / "runs"
    code = f"open({str(kept)!r}, 'a').write('x')"
    restarter = CommandRestarter(program(code), NODES)

    await restarter.restart(1, "roll-1")
    await restarter.restart(1, "roll-1")
    await restarter.restart(1, "roll-2")

    assert kept.read_text() == "xx"


async def test_a_failure_shows_the_output() -> None:
    restarter = CommandRestarter(program("print('no such unit'); raise SystemExit(4)"), NODES)
    with pytest.raises(RestartCommandFailed, match="exit code 4: no such unit"):
        await restarter.restart(1, "roll-1")


async def test_a_command_that_hangs_is_ended() -> None:
    restarter = CommandRestarter(program("import time; time.sleep(600)"), NODES, seconds_max=0.3)
    with pytest.raises(RestartCommandFailed, match="did not end"):
        await restarter.restart(1, "roll-1")


async def test_a_program_that_does_not_exist_is_a_failure() -> None:
    with pytest.raises(RestartCommandFailed, match="did not start"):
        await CommandRestarter(("/nowhere/restart", "{host}"), NODES).restart(1, "roll-1")


async def test_by_hand_nothing_is_run() -> None:
    by_hand = ByHand()
    await by_hand.restart(1, "roll-1")
    assert (await by_hand.state(1)).alive
