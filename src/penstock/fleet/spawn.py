"""`python -m penstock.fleet.spawn RECORD [--facts FILE] COMMAND…`: record this process, then exec COMMAND.

The child writes the record before it becomes the node. So a running node always has a record with its pid
and start time, even if the supervisor was killed in between. Both survive exec. The facts, a JSON object,
become part of the record: what the node runs with, and why it was started.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from penstock.process_identity import this_process, write_identity


def main() -> None:
    record, *command = sys.argv[1:]
    facts: dict[str, object] = {}
    if command[0] == "--facts":
        facts = json.loads(Path(command[1]).read_text())
        command = command[2:]
    write_identity(Path(record), this_process(), **facts)
    os.execv(command[0], command)  # noqa: S606 - no shell on purpose


if __name__ == "__main__":
    main()
