"""A dedicated cluster on an adopted, empty Kafka: taken, used by a client, given back as it came."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from penstock.control import decisions
from penstock.control.adopted import ADOPTED, AdoptedProvisioner, fused
from penstock.control.decisions import ClusterAsk
from penstock.control.local import LocalProvisioner, stop_dedicated
from penstock.control.provisioning import Provisioners
from penstock.control.rights import Granter
from penstock.control.wanted import Rights
from penstock.fleet.adopt import Adopted, Target, adopt, load_adopted
from penstock.fleet.capabilities import Capability, Seen, capability_table
from penstock.fleet.layout import Layout, write_atomically
from penstock.fleet.passwords import PLATFORM_USER, PlatformKey
from penstock.gateway.states_topic import GATEWAY_USER
from penstock.kafka import topics, users
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.entities import OperationState, PhysicalCluster, Tenancy
from penstock.model.errors import PenstockError
from penstock.model.errors.control import ProvisionerMissing, RequestInvalid, StateConflict
from penstock.model.errors.fleet import AdoptedNotEmpty, AdoptedTwice, AdoptedUnknown, CapabilityMissing
from penstock.model.errors.wire import LoginRefused
from tests.control.conftest import QUICK_SESSIONS, open_office
from tests.control.ground import Paper
from tests.control.test_gateways import SECRET, new_key
from tests.ground.fleet import TINY, Fleet
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def target(fleet: Fleet) -> Target:
    return Target(fleet.bootstrap, PLATFORM_USER, fleet.local.access.credentials.platform)


async def made(client: Client, topic: str) -> None:
    answer = (await topics.create(client, [topics.NewTopic(topic, 1, 1)]))[topic]
    assert not isinstance(answer, PenstockError), answer
    await eventually(lambda: client.leaders([topic], strict=False))  # its broker has heard of it


async def own(client: Client) -> set[str]:
    """Topics that are not Kafka's."""
    return {name for name in await topics.describe(client) if not name.startswith("__")}


@pytest.mark.kafka
async def test_an_empty_adopted_cluster_is_taken_used_and_given_back(
    control_fleet: Fleet, make_fleet: Callable[..., Fleet], tmp_path: Path, unique: Callable[[str], str]
) -> None:
    elsewhere = await asyncio.to_thread(make_fleet, **TINY, config=QUICK_SESSIONS)
    layout = Layout(tmp_path)
    await adopt(layout, "east", target(elsewhere))
    provisioner = Provisioners(layout)
    key = new_key(unique)
    try:
        async with open_office(control_fleet, provisioner=provisioner) as office:
            await office.active()
            await office.plane.admit("east")

            alone = await office.create(unique("alone"), tenancy=Tenancy.DEDICATED, adopted="east")

            physical = office.plane.registry.need(PhysicalCluster, alone.cluster)
            assert (physical.provider, physical.kafka_id) == (ADOPTED, elsewhere.kafka_id)
            await office.key(alone.id, key, SECRET)
            login = Security(Login(key, SECRET, Mechanism.PLAIN))
            async with Client(physical.bootstrap, login) as tenant:
                await eventually(lambda: _served(tenant))
                await made(tenant, "orders")
                assert set(await topics.describe(tenant)) == {"orders"}
            async with Client(elsewhere.bootstrap, elsewhere.security()) as client:
                held = await own(client)
                assert "_penstock.state" in held
                assert {n for n in held if not n.startswith("_penstock.")} == {f"{alone.id}_orders"}
            await office.as_declared()

            with pytest.raises(AdoptedNotEmpty):
                await office.plane.admit("east")
            assert (await office.delete(alone.id)).state is OperationState.DONE
            async with Client(elsewhere.bootstrap, elsewhere.security()) as client:
                await eventually(lambda: _emptied(client))
            assert not (tmp_path / "dedicated" / physical.id).exists()
            await office.plane.admit("east")
    finally:
        await provisioner.close()
        await stop_dedicated(layout)  # its gateway, if something went wrong before the deletion


async def _served(tenant: Client) -> bool:
    """Its gateway has started, and has heard of the key."""
    try:
        await tenant.call("Metadata", {"Topics": []}, again=False)
    except (PenstockError, LoginRefused):
        return False
    return True


async def _emptied(client: Client) -> bool:
    return not await own(client) and GATEWAY_USER not in await users.describe(client)


@pytest.mark.kafka
async def test_a_cluster_that_holds_something_is_refused_and_stays_as_it_is(
    control_fleet: Fleet, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    name = unique("orders")
    layout = Layout(tmp_path)
    await adopt(layout, "west", target(control_fleet))
    async with Client(control_fleet.bootstrap, control_fleet.security()) as client:
        await made(client, name)
        before = await own(client)
        provisioner = AdoptedProvisioner(layout, gateways=False)

        with pytest.raises(AdoptedNotEmpty) as refused:
            await provisioner.admit("west")
        with pytest.raises(AdoptedNotEmpty):
            await provisioner.provision(physical(adopted="west"), 1)

        assert refused.value.facts["count"] >= 1
        assert await own(client) == before
        assert not (tmp_path / "dedicated").exists()
        record = layout.adopted / "west.json"
        write_atomically(record, record.read_text().replace(control_fleet.kafka_id, "another"))
        with pytest.raises(AdoptedTwice):
            await provisioner.admit("west")


@pytest.mark.kafka
async def test_what_a_cluster_does_not_allow_is_said_by_name(control_fleet: Fleet, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    adopted = await adopt(layout, "west", target(control_fleet))
    (acls,) = [row for row in adopted.capabilities if row.capability is Capability.ACLS]
    assert acls.there
    record = layout.adopted / "west.json"
    text = record.read_text()
    at = text.index('"there": true', text.index('"acls"'))
    write_atomically(record, text[:at] + text[at:].replace("true", "false", 1))
    assert load_adopted(layout, "west") != adopted

    with pytest.raises(CapabilityMissing) as refused:
        await AdoptedProvisioner(layout, gateways=False).admit("west")

    assert refused.value.facts["capability"] == Capability.ACLS


def test_a_cluster_that_allows_no_client_quotas_goes_without_the_fuse_and_says_so() -> None:
    seen = Seen(frozenset(), {}, {}, quotas_refused="denied")
    known = Adopted("west", "k", "127.0.0.1:1", None, 1, (), 0, capability_table(seen))

    with capture_logs() as logged:
        assert not fused(known)

    assert "client-quotas" in logged[0]["error"]
    assert "denied" in logged[0]["error"]


async def test_without_the_fuse_users_are_given_and_taken_and_no_quota_is_asked_for() -> None:
    asked: list[str] = []

    class Noting:
        async def call(self, api: str, *_: object, **__: object) -> dict[str, list[object]]:
            asked.append(api)
            deleted = {"ErrorCode": 0, "ErrorMessage": None, "MatchingAcls": []}
            return {"Results": [], "FilterResults": [deleted], "Entries": []}

    user = "lkc-000000_sa-000000"
    for granted in (True, False):
        granter = Granter(cast("Client", Noting()), PlatformKey(b"k" * 32), fused=granted)
        await granter.give(Rights({user: 0}, rates={user: {"producer_byte_rate": 1.0}}))
        await granter.take([user])
        assert ("AlterClientQuotas" in asked) is granted
        assert "AlterUserScramCredentials" in asked
        asked.clear()


async def test_what_was_not_adopted_cannot_be_given(tmp_path: Path) -> None:
    provisioners = Provisioners(Layout(tmp_path), gateways=False)

    with pytest.raises(AdoptedUnknown):
        await provisioners.admit("nowhere")
    with pytest.raises(ProvisionerMissing):
        await LocalProvisioner(Layout(tmp_path)).admit("nowhere")
    assert await provisioners.reach(physical(adopted="nowhere")) is None
    await provisioners.release(physical(adopted="nowhere"))
    assert "brokers more join" in provisioners.growth(physical(provider=ADOPTED), 3)


def physical(**more: Any) -> PhysicalCluster:
    return PhysicalCluster(**{"id": "pkc-000009", "version": 1, "name": "alone", "provider": ""} | more)


def test_an_adopted_cluster_has_one_tenant_and_a_dedicated_one() -> None:
    paper = Paper.with_cells()
    wanted = ClusterAsk("alone", tenancy=Tenancy.DEDICATED, adopted="east")
    decided = paper.accept(decisions.create_cluster(paper.registry, paper.ask(), wanted))

    assert decided.subject is not None
    with pytest.raises(StateConflict, match="east is taken"):
        decisions.create_cluster(paper.registry, paper.ask(), replace(wanted, name="second"))
    with pytest.raises(RequestInvalid, match="only a dedicated"):
        decisions.create_cluster(paper.registry, paper.ask(), ClusterAsk("shared", adopted="east"))
