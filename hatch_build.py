"""Puts Kafka's message definitions into the wheel, so that its users need neither Java nor jars.

The data file is made at set-up and not committed. A wheel without it would be of no use, so
building one without the file fails, unless PENSTOCK_JARS names a folder of Kafka's jars to make it
from. An editable install needs no file: set-up comes after it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DATA_FILE = Path("src/penstock/wire/definitions.bin")


class DefinitionsHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        path = Path(self.root) / DATA_FILE
        jars = os.environ.get("PENSTOCK_JARS")
        if not path.exists() and jars:
            sys.path.insert(0, str(Path(self.root) / "src"))
            from penstock.wire.definitions import write

            write(Path(jars), path)
        if not path.exists():
            raise FileNotFoundError(
                f"{DATA_FILE} is missing: run `make setup`, or set PENSTOCK_JARS to a folder of Kafka's jars"
            )
        build_data["artifacts"].append(str(DATA_FILE))
