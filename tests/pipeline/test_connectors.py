"""What `penstock pipeline fetch --to` writes for spark-submit."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from penstock.pipeline.spark.connectors import DRIVER, copy_for_submit
from tests.harness.command import clean_environment

if TYPE_CHECKING:
    from pathlib import Path

RUN = """
import runpy, sys
sys.argv = [sys.argv[1], "--version"]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    import penstock
    print(penstock.__file__)
"""


def test_the_driver_uses_the_installed_package_although_the_archive_comes_first(tmp_path: Path) -> None:
    """As under spark-submit: the package's data files cannot be read from the archive."""
    copy_for_submit((), tmp_path)

    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / DRIVER)],
        env=clean_environment({"PYTHONPATH": str(tmp_path / "penstock.zip")}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert "penstock.zip" not in ran.stdout.splitlines()[-1]
