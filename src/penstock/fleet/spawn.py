"""`python -m penstock.fleet.spawn RECORD COMMAND…`: record this process's identity, then exec the command.

The child writes the record before it becomes the node. So a running node always has a record with its pid
and start time, even if the supervisor was killed in between. Both survive exec.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock.process_identity import this_process, write_identity


def main() -> None:
    record, *command = sys.argv[1:]
    write_identity(Path(record), this_process())
    os.execv(command[0], command)  # noqa: S606 - no shell on purpose


if __name__ == "__main__":
    main()
