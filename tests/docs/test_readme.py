"""The commands of the README work: they are run in order, as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest
import yaml

from penstock.fleet.spec_file import parse_fleet

ROOT = Path(__file__).parents[2]


def commands(page: str) -> list[str]:
    """The lines of its shell blocks, comments taken off."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = (re.sub(r"\s+#.*", "", line).strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line]


@pytest.mark.parametrize("page", ["README.md", "docs/contributing.md"])
def test_every_make_target_named_in_the_docs_exists(page: str) -> None:
    made = [line for line in commands(page) if line.startswith("make ")]
    assert made
    for line in made:
        done = subprocess.run(
            [*line.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.kafka
def test_the_first_steps_work_as_written(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(
        yaml.safe_dump({"clusters": [{"combined": True, "brokers": 1, "zones": ["a"], "port": 0}]})
    )
    run = Shell(tmp_path)
    steps = [line for line in commands("README.md") if line.startswith("penstock ")]
    local = [line for line in steps if "east" not in line]
    elsewhere = [line for line in steps if "east" in line]
    nouns = ["up", "status", "cluster", "topic", "produce", "consume", "cluster", "fleet", "logs", "down"]
    assert [line.split()[1] for line in local] == nouns
    printed: dict[str, str] = {}
    try:
        for line in local[:-1]:
            printed[line.split()[1]] = run(line)
        assert printed["consume"] == "hello\n"
        # The page of the control plane starts with the same cluster, so delete it first.
        run("penstock cluster delete shop --yes")
        pages = [line for line in commands("docs/control.md") if line.startswith("penstock ")]
        assert len(pages) > 8
        for line in pages:
            run(line)
        settings = dict(
            line.split("=", 1)
            for line in (tmp_path / ".penstock" / "client.properties").read_text().splitlines()
        )
        python = literal_eval(run("penstock fleet connect --client python"))
        (tmp_path / "secret").write_text(python["sasl.password"])
        # The cluster that the README adopts is this one, which has no TLS.
        for line in elsewhere:
            here = line.replace("kafka-1:9092", settings["bootstrap.servers"]).replace(" --tls", "")
            run(here.replace("--user penstock", "--user _penstock.platform"))
    finally:
        run(local[-1])


def test_the_fleet_file_of_the_docs_is_one() -> None:
    text = (ROOT / "docs/fleet.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    spec = parse_fleet(yaml.safe_load(block))
    assert spec.home.shape == "1 controller + 3 brokers in zones a, b, c"


class Shell:
    """Runs a line as a person would, with this checkout's `penstock` on the PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        binaries = directory / "bin"
        binaries.mkdir()
        script = binaries / "penstock"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m penstock "$@"\n')
        script.chmod(0o755)
        self.environment = dict(os.environ) | {
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "PENSTOCK_FLEET": str(directory / "fleet.yaml"),
            "PENSTOCK_HOME": str(directory / ".penstock"),
        }

    def __call__(self, line: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout
