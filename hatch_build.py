"""Puts what set-up makes into the wheel: Kafka's message definitions and the brokers' plugin.

So its users need no Java for the libraries, and no Java compiler for a fleet. The files are not committed. A
wheel without them would be of no use, so building one without them fails, unless PENSTOCK_JARS names a folder
of Kafka's jars to make them from. An editable install needs no file: set-up comes after it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DATA_FILE = Path("src/penstock/wire/definitions.bin")
PLUGIN_FILE = Path("src/penstock/tier/penstock-tier.jar")


class DefinitionsHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        jars = os.environ.get("PENSTOCK_JARS")
        for file, make in ((DATA_FILE, _definitions), (PLUGIN_FILE, _plugin)):
            path = Path(self.root) / file
            if not path.exists() and jars:
                sys.path.insert(0, str(Path(self.root) / "src"))
                make(Path(jars), path)
            if not path.exists():
                raise FileNotFoundError(
                    f"{file} is missing: run `make setup`, or set PENSTOCK_JARS to a folder of Kafka's jars"
                )
            build_data["artifacts"].append(str(file))


def _definitions(jars: Path, path: Path) -> None:
    from penstock.wire.definitions import write

    write(jars, path)


def _plugin(jars: Path, path: Path) -> None:
    from penstock.tier.plugin_jar import TIER, compile_jar, compiler

    javac = compiler(path)
    if javac is not None:
        path.write_bytes(compile_jar(TIER, javac, sorted(jars.glob("*.jar"))))
