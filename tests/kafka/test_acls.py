"""Access control on a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.kafka import acls
from penstock.kafka.acls import Acl, AclFilter, Operation, Pattern, Permission, ResourceType
from penstock.kafka.outcomes import all_done
from penstock.model.errors.wire import KafkaRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client

pytestmark = pytest.mark.kafka


async def test_acls_are_made_found_by_filter_and_deleted(
    client: Client, unique: Callable[[str], str]
) -> None:
    principal, prefix = f"User:{unique('ada')}", unique("orders")
    read = Acl(principal, Operation.READ, ResourceType.TOPIC, prefix, Pattern.PREFIXED)
    deny = Acl(principal, Operation.WRITE, ResourceType.GROUP, prefix, permission=Permission.DENY)
    mine = AclFilter(principal=principal)

    made = await acls.create(client, [read, deny])

    async def found() -> bool:
        return set(await acls.describe(client, mine)) == {read, deny}

    assert made == {read: None, deny: None}
    assert await eventually(found)
    covering = AclFilter(
        principal, resource_type=ResourceType.TOPIC, resource_name=f"{prefix}-1", pattern=Pattern.MATCH
    )
    assert await acls.describe(client, covering) == [read]

    deleted = all_done(await acls.delete(client, [mine, AclFilter("User:nobody")]))

    assert {frozenset(what) for what in deleted.values()} == {frozenset({read, deny}), frozenset()}

    async def gone() -> bool:
        return not await acls.describe(client, mine)

    assert await eventually(gone)


async def test_an_acl_that_makes_no_sense_is_refused(client: Client) -> None:
    acl = Acl("User:ada", Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "another-name")

    outcome = (await acls.create(client, [acl]))[acl]

    assert isinstance(outcome, KafkaRefused)
