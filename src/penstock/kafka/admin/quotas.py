"""Describe and set Kafka's client quotas: by user, client id or IP address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.kafka.admin.outcomes import outcome
from penstock.kafka.broker_errors import check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError

USER: Final = "user"

PRODUCER_BYTES: Final = "producer_byte_rate"
CONSUMER_BYTES: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2


class EntityComponent(NamedTuple):
    """One component of an entity; without a name it is the default of its type."""

    kind: str
    name: str | None


Entity = frozenset[EntityComponent]


def entity(**components: str | None) -> Entity:
    """`entity(user="ada", client_id=None)` is Ada's default for any client id."""
    return frozenset(EntityComponent(kind.replace("_", "-"), name) for kind, name in components.items())


async def describe(
    client: Client, *, kinds: Sequence[str] = (), exactly: Entity | None = None, timeout: float = CALL_SECONDS
) -> dict[Entity, dict[str, float]]:
    """Quotas of exactly one entity, of every entity with components of these kinds, or all."""
    if exactly is not None:
        components = [
            {"EntityType": kind, "MatchType": DEFAULT if name is None else EXACT, "Match": name}
            for kind, name in exactly
        ]
    else:
        components = [{"EntityType": kind, "MatchType": ANY, "Match": None} for kind in kinds]
    body = {"Components": components, "Strict": exactly is not None}
    response = await client.call("DescribeClientQuotas", body, timeout=timeout)
    check("DescribeClientQuotas", response["ErrorCode"], response["ErrorMessage"])
    return {_entity(e): {v["Key"]: v["Value"] for v in e["Values"]} for e in response["Entries"] or ()}


async def alter(
    client: Client,
    limits: Mapping[Entity, Mapping[str, float | None]],
    *,
    validate_only: bool = False,
    timeout: float = CALL_SECONDS,
) -> dict[Entity, PenstockError | None]:
    """Set limits; a limit of None is removed, others stay as they are."""
    entries = [
        {
            "Entity": [{"EntityType": kind, "EntityName": name} for kind, name in sorted(altered, key=str)],
            "Ops": [
                {"Key": key, "Value": value or 0.0, "Remove": value is None} for key, value in values.items()
            ],
        }
        for altered, values in limits.items()
    ]
    body = {"Entries": entries, "ValidateOnly": validate_only}
    response = await client.call("AlterClientQuotas", body, to=CONTROLLER, timeout=timeout)
    results: dict[Entity, PenstockError | None] = {}
    for e in response["Entries"]:
        altered = _entity(e)
        subject = ", ".join(f"{kind} {name or 'default'}" for kind, name in sorted(altered, key=str))
        results[altered] = outcome("AlterClientQuotas", e["ErrorCode"], e["ErrorMessage"], subject, None)
    return results


def _entity(e: Mapping[str, Any]) -> Entity:
    return frozenset(EntityComponent(p["EntityType"], p["EntityName"]) for p in e["Entity"])
