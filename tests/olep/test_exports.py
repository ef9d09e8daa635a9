"""`penstock.olep` exports what a first program needs, and imports nothing before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock.olep


@pytest.mark.parametrize("name", penstock.olep.__all__)
def test_every_exported_name_can_be_imported(name: str) -> None:
    assert getattr(penstock.olep, name) is not None


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = penstock.olep.nothing


def test_importing_the_events_imports_no_kafka_client() -> None:
    program = "import sys, penstock.olep.fold; sys.exit('confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
