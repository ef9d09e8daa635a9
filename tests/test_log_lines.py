"""Log lines of services: every line is JSON, whatever library writes it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

PROGRAM = """
import logging, sys, warnings
import structlog
from penstock.log_lines import LogFormat, announce, configure_logs
configure_logs(LogFormat(sys.argv[1]))
structlog.get_logger("penstock.gateway").info("connection closed", tenant="lkc-00000a")
structlog.get_logger("penstock.gateway").debug("not shown")
logging.getLogger("some.library").warning("retried %d times", 3)
warnings.warn("old call", DeprecationWarning, stacklevel=1)
announce("draining")
raise ValueError("a defect")
"""


def lines(form: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, form], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    return ran.stderr.splitlines()


def test_every_line_is_a_json_object_also_of_libraries_and_uncaught_exceptions() -> None:
    events: list[dict[str, Any]] = [json.loads(line) for line in lines("json")]

    closed, retried, _, draining, uncaught = events
    assert (closed["event"], closed["level"], closed["tenant"]) == ("connection closed", "info", "lkc-00000a")
    assert (retried["event"], retried["level"]) == ("retried 3 times", "warning")
    assert draining["event"] == "draining"
    assert (uncaught["level"], "ValueError: a defect" in uncaught["exception"]) == ("critical", True)
    assert all(event["timestamp"].endswith("Z") for event in events)


def test_text_is_for_people() -> None:
    shown = "\n".join(lines("console"))

    assert "connection closed" in shown
    assert "tenant=lkc-00000a" in shown
    assert not shown.startswith("{")
