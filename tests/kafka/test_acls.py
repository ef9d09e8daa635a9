"""ACLs on a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.kafka.admin import acls
from penstock.kafka.admin.acls import Acl, AclFilter, Operation, Pattern, Permission, ResourceType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.model.errors.wire import KafkaRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client

pytestmark = pytest.mark.kafka


async def test_acls_are_created_filtered_and_deleted(client: Client, unique: Callable[[str], str]) -> None:
    principal, prefix = f"User:{unique('ada')}", unique("orders")
    read = Acl(principal, Operation.READ, ResourceType.TOPIC, prefix, Pattern.PREFIXED)
    deny = Acl(principal, Operation.WRITE, ResourceType.GROUP, prefix, permission=Permission.DENY)
    by_principal = AclFilter(principal=principal)

    created = await acls.create(client, [read, deny])

    async def described() -> bool:
        return set(await acls.describe(client, by_principal)) == {read, deny}

    assert created == {read: None, deny: None}
    assert await eventually(described)
    covering = AclFilter(
        principal, resource_type=ResourceType.TOPIC, resource_name=f"{prefix}-1", pattern=Pattern.MATCH
    )
    assert await acls.describe(client, covering) == [read]

    deleted = results_or_raise(await acls.delete(client, [by_principal, AclFilter("User:nobody")]))

    assert {frozenset(what) for what in deleted.values()} == {frozenset({read, deny}), frozenset()}

    async def are_deleted() -> bool:
        return not await acls.describe(client, by_principal)

    assert await eventually(are_deleted)


async def test_an_invalid_acl_is_rejected(client: Client) -> None:
    acl = Acl("User:ada", Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "another-name")

    outcome = (await acls.create(client, [acl]))[acl]

    assert isinstance(outcome, KafkaRefused)
