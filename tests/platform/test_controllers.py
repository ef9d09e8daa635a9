"""Controllers come, go and lose their disk under load, by the commands of the docs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.fleet import wait_for
from tests.platform.test_rolls import Clients, Watcher, check_clients, platform, tenant_config

if TYPE_CHECKING:
    from tests.harness.platform import Platform

__all__ = ["platform"]

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "controllers.md"


def commands(heading: str) -> list[list[str]]:
    """The commands below a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [
        line for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in block.splitlines()
    ]
    assert lines
    return [line.split()[1:] for line in lines]


def run(platform: Platform, heading: str) -> None:
    for words in commands(heading):
        ran = platform.penstock(*words)
        assert ran.code == 0, (words, ran.out, ran.err)


def roles(platform: Platform) -> dict[int, str]:
    rows: list[dict[str, Any]] = platform.penstock("fleet", "controllers", "list", "-o", "json").data
    return {row["id"]: row["role"] for row in rows}


def controllers(platform: Platform) -> dict[int, str]:
    return {node: "voter" if role == "active" else role for node, role in roles(platform).items()}


def active(platform: Platform) -> int:
    (one,) = [node for node, role in roles(platform).items() if role == "active"]
    return one


def brokers(platform: Platform) -> dict[str, Any]:
    return {name: each for name, each in platform.processes().items() if name.startswith("b")}


def test_one_three_and_one_controllers_with_a_lost_disk_between_and_clients_notice_nothing(
    platform: Platform,
) -> None:
    refused = platform.penstock("fleet", "controllers", "replace", "c1001", "--yes", "-o", "json")
    assert refused.error["code"] == "PEN-2060"
    with Clients(tenant_config(platform)) as clients, Watcher(platform) as watcher:
        run(platform, "Add controllers")
        assert controllers(platform) == {1001: "voter", 1002: "voter", 1003: "voter"}
        before = brokers(platform)

        failed = active(platform)
        platform.kill(f"c{failed}")
        wait_for(lambda: active(platform) != failed, what="another active controller")
        platform.wait_ready()

        lost = platform.fleet.node("c1002").layout
        platform.kill("c1002")
        shutil.rmtree(lost.data, ignore_errors=True)
        run(platform, "Replace a controller")
        assert controllers(platform) == {1001: "voter", 1002: "voter", 1003: "voter"}

        run(platform, "Remove controllers")
        assert controllers(platform) == {1001: "voter"}
        assert brokers(platform) == before
        platform.wait_ready()

    check_clients(clients)
    assert watcher.below == []
    assert not lost.root.exists()
    assert [node.name for node in platform.fleet.nodes if node.spec.is_controller] == ["c1001"]
