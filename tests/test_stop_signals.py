"""Signals and the end of standard input ask a service to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from penstock.stop_signals import stop_event, stop_flag


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_sets_the_event_of_the_loop(number: signal.Signals) -> None:
    stop = stop_event()

    os.kill(os.getpid(), number)

    await asyncio.wait_for(stop.wait(), 30)


def test_the_end_of_standard_input_is_a_request_to_stop() -> None:
    program = (
        "import asyncio; from penstock.stop_signals import stop_event\n"
        "async def main(): await stop_event(until_stdin_ends=True).wait()\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        assert process.poll() is None
        process.communicate(timeout=30)

    assert process.returncode == 0


def test_the_first_signal_sets_the_flag_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_flag() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) is before
