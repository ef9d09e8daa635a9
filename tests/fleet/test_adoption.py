"""Adopting a real cluster, as a super user and as a user without rights."""

from __future__ import annotations

import asyncio
import stat
from typing import TYPE_CHECKING

import pytest

from penstock.fleet.adopted.adoption import Target, abandon, adopt, list_adopted, load_adopted, load_target
from penstock.fleet.adopted.capabilities import Capability
from penstock.fleet.credentials.passwords import PLATFORM_USER
from penstock.fleet.layout import Layout, make_directory
from penstock.fleet.spec import Listener
from penstock.kafka.admin import users
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors.fleet import AdoptedNameInvalid, AdoptedTwice, AdoptedUnknown
from penstock.model.errors.wire import BrokerUnreachable, LoginRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet


@pytest.mark.kafka
def test_a_super_user_lacks_a_login_to_controllers_without_scram(fleet: Fleet, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    adopted = asyncio.run(adopt(layout, "east", super_target(fleet)))
    lacking = {row.capability for row in adopted.capabilities if not row.available}
    assert lacking == {Capability.ISR_EXCLUSION, Capability.SHADOW_LEADER}
    assert (adopted.kafka_id, adopted.brokers, adopted.zones) == (fleet.kafka_id, 3, ("a", "b", "c"))
    assert load_adopted(layout, "east") == adopted
    assert load_target(layout, "east") == super_target(fleet)
    password = super_target(fleet).password
    assert password is not None
    assert password not in (layout.adopted / "east.json").read_text()
    secret = layout.secrets / "adopted-east.json"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@pytest.mark.kafka
def test_a_user_without_rights_has_few_capabilities(
    fleet: Fleet, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    name = unique("ada")
    asyncio.run(create_user(fleet, name, "a password"))
    adopted = asyncio.run(adopt(Layout(tmp_path), "east", Target(fleet.bootstrap, name, "a password")))
    available = {row.capability for row in adopted.capabilities if row.available}
    assert available == {Capability.ZONES, Capability.CONSUMER_GROUPS, Capability.SHARE_GROUPS}


@pytest.mark.kafka
def test_a_wrong_password_is_an_error_and_nothing_is_recorded(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(LoginRefused):
        asyncio.run(adopt(Layout(tmp_path), "east", Target(fleet.bootstrap, PLATFORM_USER, "wrong")))
    assert list_adopted(Layout(tmp_path)) == []


def test_an_unreachable_cluster_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnreachable):
        asyncio.run(adopt(Layout(tmp_path), "east", Target("127.0.0.1:1")))


@pytest.mark.kafka
@pytest.mark.parametrize("name", ["../escaped", "/etc/passwd", "..", "", "a/b", "x" * 64, "a\nb"])
def test_a_name_cannot_leave_its_directory(tmp_path: Path, name: str) -> None:
    layout = Layout(tmp_path / "home")
    make_directory(layout.adopted)
    (layout.home / "escaped.json").write_text("{}")  # `../escaped` from where records are
    make_directory(layout.secrets)

    with pytest.raises(AdoptedNameInvalid):
        asyncio.run(adopt(layout, name, Target("127.0.0.1:1")))
    with pytest.raises(AdoptedUnknown):
        load_adopted(layout, name)
    with pytest.raises(AdoptedNameInvalid):
        load_target(layout, name)
    with pytest.raises(AdoptedUnknown):
        abandon(layout, name)


@pytest.mark.kafka
def test_a_name_is_bound_to_one_cluster(fleet: Fleet, tmp_path: Path) -> None:
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
    """Create a user, and wait until every broker accepts its login."""
    async with Client(fleet.bootstrap, fleet.security()) as client:
        results_or_raise(await users.alter(client, upsert=[users.Credential(name, password)]))
    for node in fleet.brokers:

        async def can_log_in(port: int = node.spec.ports[Listener.INTERNAL]) -> bool:
            try:
                async with await Connection.open("127.0.0.1", port, Security(Login(name, password))):
                    return True
            except LoginRefused:
                return False

        await eventually(can_log_in)
