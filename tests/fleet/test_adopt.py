"""Adoption of a real cluster, seen with a super user's eyes and with a stranger's."""

from __future__ import annotations

import asyncio
import stat
from typing import TYPE_CHECKING

import pytest

from penstock.fleet.adopt import Target, abandon, adopt, list_adopted, load_adopted, load_target
from penstock.fleet.capabilities import Capability
from penstock.fleet.layout import Layout
from penstock.fleet.passwords import PLATFORM_USER
from penstock.fleet.spec import Listener
from penstock.kafka import users
from penstock.kafka.client import Client
from penstock.kafka.connection import Connection
from penstock.kafka.outcomes import all_done
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors.fleet import AdoptedTwice, AdoptedUnknown
from penstock.model.errors.wire import BrokerUnreachable, LoginRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ground.fleet import Fleet


@pytest.mark.kafka
def test_a_super_user_finds_all_but_tiering(fleet: Fleet, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    adopted = asyncio.run(adopt(layout, "east", super_target(fleet)))
    lacking = {row.capability for row in adopted.capabilities if not row.there}
    assert lacking == {Capability.TIERED_STORAGE}
    assert (adopted.kafka_id, adopted.brokers, adopted.zones) == (fleet.kafka_id, 3, ("a", "b", "c"))
    assert load_adopted(layout, "east") == adopted
    assert load_target(layout, "east") == super_target(fleet)
    assert super_target(fleet).password not in (layout.adopted / "east.json").read_text()
    secret = layout.secrets / "adopted-east.json"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@pytest.mark.kafka
def test_a_stranger_finds_next_to_nothing(fleet: Fleet, tmp_path: Path, unique: Callable[[str], str]) -> None:
    name = unique("stranger")
    asyncio.run(create_user(fleet, name, "a password"))
    adopted = asyncio.run(adopt(Layout(tmp_path), "east", Target(fleet.bootstrap, name, "a password")))
    there = {row.capability for row in adopted.capabilities if row.there}
    assert there == {Capability.ZONES, Capability.CONSUMER_GROUPS, Capability.SHARE_GROUPS}


@pytest.mark.kafka
def test_a_wrong_password_is_refused_and_nothing_is_remembered(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(LoginRefused):
        asyncio.run(adopt(Layout(tmp_path), "east", Target(fleet.bootstrap, PLATFORM_USER, "wrong")))
    assert list_adopted(Layout(tmp_path)) == []


def test_nobody_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnreachable):
        asyncio.run(adopt(Layout(tmp_path), "east", Target("127.0.0.1:1")))


@pytest.mark.kafka
def test_a_name_stands_for_one_cluster(fleet: Fleet, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    asyncio.run(adopt(layout, "east", super_target(fleet)))
    record = layout.adopted / "east.json"
    record.write_text(record.read_text().replace(fleet.kafka_id, "another"))
    with pytest.raises(AdoptedTwice, match="another"):
        asyncio.run(adopt(layout, "east", super_target(fleet)))
    abandon(layout, "east")
    with pytest.raises(AdoptedUnknown):
        load_adopted(layout, "east")
    assert list(layout.secrets.glob("adopted-*")) == []


def super_target(fleet: Fleet) -> Target:
    return Target(
        bootstrap=fleet.bootstrap,
        user=PLATFORM_USER,
        password=fleet.local.access.credentials.platform,
        mechanism=Mechanism.SCRAM_SHA_512,
        metrics=tuple(f"127.0.0.1:{node.spec.ports[Listener.METRICS]}" for node in fleet.brokers),
    )


async def create_user(fleet: Fleet, name: str, password: str) -> None:
    """One that every broker lets in: each hears of it by itself."""
    async with Client(fleet.bootstrap, fleet.security()) as client:
        all_done(await users.alter(client, upsert=[users.Credential(name, password)]))
    for node in fleet.brokers:

        async def let_in(port: int = node.spec.ports[Listener.INTERNAL]) -> bool:
            try:
                async with await Connection.open("127.0.0.1", port, Security(Login(name, password))):
                    return True
            except LoginRefused:
                return False

        await eventually(let_in)
