"""A dedicated cluster on an adopted Kafka, beside what others have there: provisioned, used, released."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.atomic_files import write_atomically
from penstock.control import decisions
from penstock.control.decisions import ClusterRequest
from penstock.control.desired_state import KafkaAccess
from penstock.control.kafka_access import AccessWriter
from penstock.control.physical.adopted import ADOPTED, AdoptedProvisioner
from penstock.control.physical.local import LocalProvisioner, stop_dedicated
from penstock.control.physical.provider import Provisioners
from penstock.fleet.adopted.adoption import Target, adopt, load_adopted
from penstock.fleet.adopted.capabilities import Capability
from penstock.fleet.credentials.passwords import PLATFORM_USER, PlatformKey
from penstock.fleet.layout import Layout
from penstock.gateway.process.tenant_source import GATEWAY_USER
from penstock.kafka.admin import topics, users
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.entities import OperationState, PhysicalCluster, Tenancy
from penstock.model.errors import PenstockError
from penstock.model.errors.control import EntityMissing, ProvisionerMissing, StateConflict
from penstock.model.errors.fleet import AdoptedInUse, AdoptedTwice, AdoptedUnknown, CapabilityMissing
from penstock.model.errors.wire import LoginRefused
from tests.control.conftest import QUICK_SESSIONS, PlaneHarness, run_control_plane
from tests.control.in_memory_control import InMemoryControl
from tests.control.test_gateway_files import SECRET, new_key
from tests.harness.fleet import TINY, Fleet
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def target(fleet: Fleet) -> Target:
    return Target(fleet.bootstrap, PLATFORM_USER, fleet.local.access.credentials.platform)


async def create_topic(client: Client, topic: str) -> None:
    result = (await topics.create(client, [topics.NewTopic(topic, 1, 1)]))[topic]
    assert not isinstance(result, PenstockError), result
    await eventually(lambda: client.leaders([topic], strict=False))  # its broker knows it


async def user_topics(client: Client) -> set[str]:
    """All topics except Kafka's internal ones."""
    return {name for name in await topics.describe(client) if not name.startswith("__")}


@pytest.mark.kafka
async def test_an_adopted_cluster_is_provisioned_beside_what_others_have_and_released(
    control_fleet: Fleet, make_fleet: Callable[..., Fleet], tmp_path: Path, unique: Callable[[str], str]
) -> None:
    elsewhere = await asyncio.to_thread(make_fleet, **TINY, config=QUICK_SESSIONS)
    async with Client(elsewhere.bootstrap, elsewhere.security()) as client:
        await create_topic(client, "others")
    layout = Layout(tmp_path)
    await adopt(layout, "east", target(elsewhere))
    provisioner = Provisioners(layout)
    key = new_key(unique)
    try:
        async with run_control_plane(control_fleet, provisioner=provisioner) as harness:
            await harness.active()
            await harness.plane.admit("east")

            alone = await harness.create(unique("alone"), tenancy=Tenancy.DEDICATED, adopted="east")

            physical = harness.plane.registry.need(PhysicalCluster, alone.cluster)
            assert (physical.provider, physical.kafka_id) == (ADOPTED, elsewhere.kafka_id)
            await harness.key(alone.id, key, SECRET)
            login = Security(Login(key, SECRET, Mechanism.PLAIN))
            async with Client(physical.bootstrap, login) as tenant:
                await eventually(lambda: _served(tenant))
                await create_topic(tenant, "orders")
                assert set(await topics.describe(tenant)) == {"orders"}
            async with Client(elsewhere.bootstrap, elsewhere.security()) as client:
                held = await user_topics(client)
                assert "_penstock.state" in held
                tenants = {name for name in held if not name.startswith("_penstock.")}
                assert tenants == {f"{alone.id}_orders", "others"}
            await harness.as_declared()

            with pytest.raises(AdoptedInUse):
                await harness.plane.admit("east")
            assert (await harness.delete(alone.id)).state is OperationState.DONE
            async with Client(elsewhere.bootstrap, elsewhere.security()) as client:
                await eventually(lambda: _emptied(client))
            assert not (tmp_path / "dedicated" / physical.id).exists()
            await harness.plane.admit("east")
    finally:
        await provisioner.close()
        await stop_dedicated(layout)  # its gateway, if something went wrong before the deletion


async def _served(tenant: Client) -> bool:
    """Whether its gateway has started and knows the key."""
    try:
        await tenant.call("Metadata", {"Topics": []}, retry=False)
    except (PenstockError, LoginRefused):
        return False
    return True


async def _emptied(client: Client) -> bool:
    return await user_topics(client) == {"others"} and GATEWAY_USER not in await users.describe(client)


@pytest.mark.kafka
async def test_a_cluster_of_another_platform_is_rejected_and_stays_unchanged(
    control_fleet: Fleet, tmp_path: Path, harness: PlaneHarness
) -> None:
    layout = Layout(tmp_path)
    await adopt(layout, "west", target(control_fleet))
    async with Client(control_fleet.bootstrap, control_fleet.security()) as client:
        before = await user_topics(client)
        provisioner = AdoptedProvisioner(layout, gateways=False)

        with pytest.raises(AdoptedInUse, match=r"_penstock\."):
            await provisioner.admit("west")
        with pytest.raises(AdoptedInUse):
            await provisioner.provision(physical(adopted="west"), 1)

        assert await user_topics(client) == before
        assert not (tmp_path / "dedicated").exists()
        record = layout.adopted / "west.json"
        write_atomically(record, record.read_text().replace(control_fleet.kafka_id, "another"))
        with pytest.raises(AdoptedTwice):
            await provisioner.admit("west")


@pytest.mark.kafka
async def test_a_missing_capability_is_reported_by_name(control_fleet: Fleet, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    adopted = await adopt(layout, "west", target(control_fleet))
    (acls,) = [row for row in adopted.capabilities if row.capability is Capability.ACLS]
    assert acls.available
    record = layout.adopted / "west.json"
    text = record.read_text()
    at = text.index('"available": true', text.index('"acls"'))
    write_atomically(record, text[:at] + text[at:].replace("true", "false", 1))
    assert load_adopted(layout, "west") != adopted

    with pytest.raises(CapabilityMissing) as refused:
        await AdoptedProvisioner(layout, gateways=False).admit("west")

    assert refused.value.facts["capability"] == Capability.ACLS


async def test_without_the_backstop_users_are_granted_and_revoked_without_client_quotas() -> None:
    calls: list[str] = []

    class RecordingClient:
        async def call(self, api: str, *_: object, **__: object) -> dict[str, list[object]]:
            calls.append(api)
            deleted: dict[str, object] = {"ErrorCode": 0, "ErrorMessage": None, "MatchingAcls": []}
            return {"Results": [], "FilterResults": [deleted], "Entries": []}

    user = "lkc-000000_sa-000000"
    for granted in (True, False):
        access_writer = AccessWriter(
            cast("Client", RecordingClient()), PlatformKey(b"k" * 32), sets_client_quotas=granted
        )
        await access_writer.grant(KafkaAccess({user: 0}, client_quotas={user: {"producer_byte_rate": 1.0}}))
        await access_writer.revoke([user])
        assert ("AlterClientQuotas" in calls) is granted
        assert "AlterUserScramCredentials" in calls
        calls.clear()


async def test_an_unknown_adopted_cluster_cannot_be_provisioned(tmp_path: Path) -> None:
    provisioners = Provisioners(Layout(tmp_path), gateways=False)

    with pytest.raises(AdoptedUnknown):
        await provisioners.admit("nowhere")
    with pytest.raises(ProvisionerMissing):
        await LocalProvisioner(Layout(tmp_path)).admit("nowhere")
    assert await provisioners.resume(physical(adopted="nowhere")) is None
    await provisioners.release(physical(adopted="nowhere"))
    assert "add 3 brokers to" in provisioners.growth(physical(provider=ADOPTED), 3)


def physical(**more: Any) -> PhysicalCluster:
    values: dict[str, Any] = {"name": "alone", "provider": ""} | more
    return PhysicalCluster(id="pkc-000009", version=1, **values)


def test_an_adopted_cluster_has_one_dedicated_tenant() -> None:
    memory = InMemoryControl.with_cells()
    request = ClusterRequest("alone", tenancy=Tenancy.DEDICATED, adopted="east")
    decided = memory.accept(decisions.create_cluster(memory.registry, memory.context(), request))

    assert decided.subject is not None
    with pytest.raises(StateConflict, match="east is in use"):
        decisions.create_cluster(memory.registry, memory.context(), replace(request, name="second"))
    with pytest.raises(EntityMissing, match="shared adopted cluster"):
        decisions.create_cluster(memory.registry, memory.context(), ClusterRequest("shared", adopted="east"))
