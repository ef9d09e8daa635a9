"""Client quotas that Kafka itself keeps: by user, client id or address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.outcomes import outcome
from penstock.kafka.refusals import check
from penstock.kafka.routing import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTES: Final = "producer_byte_rate"
CONSUMER_BYTES: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATIONS: Final = "controller_mutation_rate"
CONNECTIONS: Final = "connection_creation_rate"

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2


class Part(NamedTuple):
    """One part of an entity; the name None means the default of its kind."""

    kind: str
    name: str | None


Entity = frozenset[Part]


def entity(**parts: str | None) -> Entity:
    """`entity(user="ada", client_id=None)`: Ada's default for any client id."""
    return frozenset(Part(kind.replace("_", "-"), name) for kind, name in parts.items())


async def describe(
    client: Client,
    *,
    kinds: Sequence[str] = (),
    exactly: Entity | None = None,
    timeout: float = CALL_SECONDS,
) -> dict[Entity, dict[str, float]]:
    """Quotas of exactly one entity, of every entity that has parts of these kinds, or all."""
    if exactly is not None:
        components = [
            {"EntityType": kind, "MatchType": DEFAULT if name is None else EXACT, "Match": name}
            for kind, name in exactly
        ]
    else:
        components = [{"EntityType": kind, "MatchType": ANY, "Match": None} for kind in kinds]
    body = {"Components": components, "Strict": exactly is not None}
    answer = await client.call("DescribeClientQuotas", body, timeout=timeout)
    check("DescribeClientQuotas", answer["ErrorCode"], answer["ErrorMessage"])
    return {_entity(e): {v["Key"]: v["Value"] for v in e["Values"]} for e in answer["Entries"] or ()}


async def alter(
    client: Client,
    wanted: Mapping[Entity, Mapping[str, float | None]],
    *,
    validate_only: bool = False,
    timeout: float = CALL_SECONDS,
) -> dict[Entity, PenstockError | None]:
    """Set the limits given, take away those given as None, leave the others."""
    entries = [
        {
            "Entity": [{"EntityType": kind, "EntityName": name} for kind, name in sorted(who, key=str)],
            "Ops": [
                {"Key": key, "Value": value or 0.0, "Remove": value is None} for key, value in limits.items()
            ],
        }
        for who, limits in wanted.items()
    ]
    body = {"Entries": entries, "ValidateOnly": validate_only}
    answer = await client.call("AlterClientQuotas", body, to=CONTROLLER, timeout=timeout)
    results: dict[Entity, PenstockError | None] = {}
    for e in answer["Entries"]:
        who = _entity(e)
        said = ", ".join(f"{kind} {name or 'default'}" for kind, name in sorted(who, key=str))
        results[who] = outcome("AlterClientQuotas", e["ErrorCode"], e["ErrorMessage"], said, None)
    return results


def _entity(e: Mapping[str, Any]) -> Entity:
    return frozenset(Part(p["EntityType"], p["EntityName"]) for p in e["Entity"])
