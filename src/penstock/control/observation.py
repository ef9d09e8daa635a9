"""Reads a physical cluster as it is, for the checker."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.control.checker import ActualState
from penstock.control.gateways.state_publisher import PARTITION
from penstock.control.kafka_access import read_access
from penstock.kafka.admin import topics
from penstock.kafka.partition_log import bounds, read
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import KafkaMissing
from penstock.model.events import RegistryRecord, entity_of
from penstock.model.ids import TENANT_NAME
from penstock.model.tenant_state import TenantState

if TYPE_CHECKING:
    from penstock.kafka.client import Client


async def read_actual_state(
    client: Client, *, sets_client_quotas: bool = True, sets_acls: bool = True
) -> ActualState:
    listed = await topics.describe(client)
    placed = {
        name: frozenset(replica for partition in topic.partitions for replica in partition.replicas)
        for name, topic in listed.items()
        if TENANT_NAME.match(name) and not isinstance(topic, PenstockError)
    }
    return ActualState(
        await read_access(client, sets_client_quotas=sets_client_quotas, sets_acls=sets_acls),
        placed,
        await read_published_states(client),
    )


async def read_published_states(client: Client) -> dict[str, TenantState]:
    """The tenant states on `_penstock.state`, read from its start."""
    states: dict[str, TenantState] = {}
    try:
        position, end = await bounds(client, PARTITION)
    except KafkaMissing:
        return states
    while position < end:
        chunk = await read(client, PARTITION, position)
        for record in chunk.records:
            assert record.key is not None
            kind, tenant = entity_of(record.key)
            if kind == TenantState.kind:
                states.pop(tenant, None)
                if record.value is not None:
                    with suppress(PenstockError):  # unreadable for gateways, too: it counts as missing
                        states[tenant] = TenantState.from_record(RegistryRecord.from_bytes(record.value))
        position = chunk.position
    return states
