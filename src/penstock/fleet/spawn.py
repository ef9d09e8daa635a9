"""`python -m penstock.fleet.spawn RECORD COMMAND…`: write down who we are, then become the command.

The record is written by the child itself, before it turns into the node: so from the first moment
that the node exists, whoever looks finds its pid and start time, even if the supervisor that
started it was killed in between. The pid and the start time survive exec.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock.fleet.identity import identify, write_identity


def main() -> None:
    record, *command = sys.argv[1:]
    identity = identify(os.getpid())
    assert identity is not None
    write_identity(Path(record), identity)
    os.execv(command[0], command)  # noqa: S606 - there is no shell, which is the point


if __name__ == "__main__":
    main()
