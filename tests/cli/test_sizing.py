"""`penstock fleet advise`, `cost`, `profiles` and `set` from the outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.control.size.sizing import SizingFiles
from penstock.model.entities import PhysicalCluster
from penstock.model.errors import Exit
from tests.control.test_sizing import CLUSTER, busy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.control.in_memory_plane import InMemoryPlane
    from tests.harness.command import CommandResult

PROFILE = """\
name: memory-4
processors: 4
memory: 32 GiB
network: {base: 1 kB/s}
volumes: [{size: 2 TiB, throughput: {base: 250 MB/s}}]
zones: [a, b, c]
"""


def test_size_and_cost_are_shown(
    plane: InMemoryPlane, here: Callable[..., CommandResult], tmp_path: Path
) -> None:
    assert here("fleet", "advise").code != Exit.FINE  # without a history
    busy(plane, 0.5)
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "memory-4.yaml").write_text(PROFILE)
    (tmp_path / "prices.yaml").write_text(here("fleet", "cost", "--example").out)
    plane.sizing.files = SizingFiles(tmp_path)

    assert here("fleet", "set", "home", "--hardware", "memory-4", "--size", "auto").code == Exit.FINE
    advised = here("fleet", "advise", "--explain")
    cost = here("fleet", "cost", "--by", "driver")
    checked = here("fleet", "profiles", "check", "memory-4", "home")

    assert plane.registry.need(PhysicalCluster, CLUSTER).size_mode == "auto"
    assert "It would change with" in advised.out
    assert "cross_zone_replication" in cost.out
    assert here("fleet", "cost", "--by", "tenant", "-o", "json").data[0]["currency"] == "USD"
    assert "total between zones" in here("fleet", "cost", "--by", "zone").out
    assert "memory-4" in here("fleet", "profiles", "list").out
    assert "32 GiB" not in here("fleet", "profiles", "show", "memory-4").err
    assert checked.code == Exit.FAILED
    assert "PEN-5468" in checked.err
    assert "network" in checked.err
    assert here("fleet", "set", "home").code == Exit.USAGE
