"""Every name field of every API and version that is passed on, filled with another tenant's names."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from penstock.gateway.settings import Bounds
from penstock.gateway.tenancy.apis import UNMASKED, Treatment
from penstock.model.errors import PenstockError
from penstock.wire.field_rules import Kind
from penstock.wire.frames import Request, decode_request, encode_request
from tests.gateway.slots import NAMES, PASSED_ON, Chosen, body_of, names_in, served
from tests.gateway.test_attacks import Victim, open_as, snapshot, text_of, victim
from tests.gateway.wires import TENANT, quiet_gateway, serving_session
from tests.harness.gateway import new_access

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access, RunningGateway

__all__ = ["victim"]

OWN = TENANT.prefix
FOREIGN = b"lkc-9xk4vt_"
FOREIGN_ID = UUID(int=0xFEED_FACE_CAFE_BEEF_0123_4567_89AB_CDEF)
THEIRS = FOREIGN.decode() + "orders"
# Metadata looks up an unknown id as the tenant's user; claimed partitions give a member nothing.
ID_PASSES = {"Metadata", *UNMASKED}
CHOICES = {
    "another tenant's": Chosen(THEIRS, THEIRS, THEIRS, FOREIGN_ID, THEIRS),
    "everything": Chosen("*", "*", "*", FOREIGN_ID, ".*"),
    "nothing": Chosen("", "", "", FOREIGN_ID, ""),
    "null": Chosen(None, None, None, FOREIGN_ID, None),
}


@pytest.mark.parametrize("which", CHOICES)
async def test_every_name_that_reaches_the_broker_has_the_tenants_prefix(which: str) -> None:
    reached = 0
    for api, version in served():
        session, _, broker = serving_session(quiet_gateway(Bounds()))

        session.data_received(
            encode_request(Request(api, version, 1, "c", body_of(api, version, CHOICES[which])))
        )
        await asyncio.sleep(0)  # some are looked up first

        for frame in broker.frames():
            reached += 1
            sent = decode_request(frame)
            unowned = frame.replace(OWN + FOREIGN, b"").replace(OWN + b"(?:" + FOREIGN, b"")
            assert FOREIGN not in unowned, (api, version)
            if sent.api not in ID_PASSES:
                assert FOREIGN_ID.bytes not in frame, (api, version)
            for kind, value in names_in(sent.api, sent.version, sent.body):
                if kind in NAMES and value is not None:
                    assert value.encode().startswith(OWN), (api, version, kind, value)
                if kind is Kind.REPLICA_ID:
                    assert value < 0
    assert reached > 100


@pytest.mark.kafka
async def test_no_field_of_any_api_and_version_reaches_another_tenant(
    fleet: Fleet, victim: Victim, eve: Access
) -> None:
    """The same against a real broker: nothing is changed, and nothing revealed."""
    chosen = Chosen(
        victim.foreign_topic,
        victim.foreign_group,
        victim.foreign_group,
        victim.topic_id,
        victim.foreign_topic,
        f"User:{victim.access.user}",
    )
    before = await snapshot(fleet, victim)
    responses: dict[tuple[str, int], Any] = {}
    connection = await open_as(eve)

    for api, version in served(PASSED_ON | {Treatment.PLATFORM, Treatment.DENIED}):
        try:
            async with asyncio.timeout(20):
                responses[api, version] = await connection.call(
                    api, body_of(api, version, chosen), version=version
                )
        except PenstockError as refused:  # an unreadable request closes its connection
            responses[api, version] = str(refused)
            await connection.close()
            connection = await open_as(eve)
    await connection.close()

    assert await snapshot(fleet, victim) == before
    for attack, response in responses.items():
        text = response if isinstance(response, str) else text_of(response)
        assert "secret" not in text, attack
        assert victim.access.user not in text, attack
    closed = [attack for attack, response in responses.items() if isinstance(response, str)]
    assert len(closed) < len(responses) / 4, closed


@pytest.mark.kafka
@pytest.mark.parametrize("principal", ["own", "every", "null"])
async def test_platform_requests_of_one_tenant_touch_no_other(
    fleet: Fleet, victim: Victim, make_gateway: Callable[..., RunningGateway], principal: str
) -> None:
    """Here the broker would refuse nothing. The attacker is a new tenant, since it may delete its ACLs."""
    attacker = make_gateway(new_access()).accesses[0]
    who = {"own": f"User:{attacker.account}", "every": "User:*", "null": None}[principal]
    before = await snapshot(fleet, victim)
    text = ""

    async with await open_as(attacker) as connection:
        for name in (victim.foreign_topic, "*", "", None):
            chosen = Chosen(name, name, name, victim.topic_id, name, who)
            for api, version in served(frozenset((Treatment.PLATFORM,))):
                text += text_of(await connection.call(api, body_of(api, version, chosen), version=version))

    assert await snapshot(fleet, victim) == before
    assert victim.access.user not in text
    assert victim.access.account not in text


EVERY_ACL = {
    "ResourceTypeFilter": 1,
    "ResourceNameFilter": None,
    "PatternTypeFilter": 1,
    "PrincipalFilter": None,
    "HostFilter": None,
    "Operation": 1,
    "PermissionType": 1,
}
ALL: list[tuple[str, int, dict[str, Any]]] = [
    ("Metadata", 0, {"Topics": []}),
    ("Metadata", 1, {"Topics": None}),
    ("Metadata", 13, {"Topics": None}),
    ("DescribeTopicPartitions", 0, {"Topics": [], "ResponsePartitionLimit": 2000, "Cursor": None}),
    ("ListGroups", 5, {"StatesFilter": [], "TypesFilter": []}),
    ("DescribeLogDirs", 4, {"Topics": None}),
    ("ListConfigResources", 1, {"ResourceTypes": []}),
    ("DescribeAcls", 3, {**EVERY_ACL}),
    ("ListTransactions", 2, {"StateFilters": [], "ProducerIdFilters": [], "TransactionalIdPattern": None}),
]


@pytest.mark.kafka
@pytest.mark.parametrize(("api", "version", "body"), ALL, ids=[f"{api}-{version}" for api, version, _ in ALL])
async def test_listing_everything_shows_only_the_tenants_own(
    victim: Victim, bob: Access, api: str, version: int, body: dict[str, Any]
) -> None:
    shown = {}
    for access in (victim.access, bob):
        async with await open_as(access) as connection:
            shown[access.key] = text_of(await connection.call(api, body, version=version))

    assert "lkc-" not in shown[bob.key].replace(bob.tenant.id, "")
    assert victim.topic not in shown[bob.key]
    assert victim.group not in shown[bob.key]
    assert str(victim.topic_id) not in shown[bob.key]
    if "Topic" in api or api in ("Metadata", "DescribeLogDirs", "ListConfigResources"):
        assert victim.topic in shown[victim.access.key]
