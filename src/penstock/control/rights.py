"""Users, ACLs and client quotas inside Kafka, set and read as `wanted` speaks of them."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

from penstock.control.coalescing import Coalesced
from penstock.control.rules import Rule
from penstock.control.wanted import Rights
from penstock.fleet.passwords import SCRAM_ITERATIONS
from penstock.kafka import acls, quotas, users
from penstock.kafka.acls import Acl, AclFilter, Operation, Pattern, Permission, ResourceType
from penstock.kafka.security import Mechanism
from penstock.kafka.users import Credential
from penstock.model.errors import PenstockError
from penstock.model.ids import ID_ALPHABET, ID_LENGTH
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.fleet.passwords import PlatformKey
    from penstock.kafka.client import Client

RATES: Final = (quotas.PRODUCER_BYTES, quotas.CONSUMER_BYTES)
_MECHANISM: Final = Mechanism.SCRAM_SHA_512
_TAIL: Final = f"[{ID_ALPHABET}]{{{ID_LENGTH}}}"
TENANT_USER: Final = re.compile(f"(lkc-{_TAIL})_sa-{_TAIL}")
TENANT_NAME: Final = re.compile(f"(lkc-{_TAIL})_")
_USER: Final = "User:"


class Granter:
    """What one physical cluster's tenants have there. Doing anything twice changes nothing."""

    def __init__(self, client: Client, key: PlatformKey, *, fused: bool = True) -> None:
        self._client = client
        self._key = key
        self._fused = fused  # whether it may set client quotas there
        self._give = Coalesced[Rights](self._give_all)
        self._take = Coalesced[str](self._take_all)

    async def give(self, rights: Rights) -> None:
        """Users with their passwords, rules and rates; what was there besides stays."""
        if rights.users:
            await self._give.ask(rights)

    async def take(self, users_gone: Sequence[str]) -> None:
        """Everything that these users have, rules first: they bite at once, users when they log in."""
        await asyncio.gather(*(self._take.ask(user) for user in users_gone))

    async def take_rules(self, rules: Sequence[Rule]) -> None:
        """These very rules, whoever they are of."""
        filters = [acls.exactly(acl_of(rule)) for rule in rules]
        if filters:
            _raise_any(await acls.delete(self._client, filters))

    async def _give_all(self, many: Sequence[Rights]) -> None:
        wanted = Rights()
        for rights in many:
            wanted |= rights
        credentials = [
            Credential(user, self._key.password(user, generation), _MECHANISM, SCRAM_ITERATIONS)
            for user, generation in wanted.users.items()
        ]
        _raise_any(await users.alter(self._client, upsert=credentials))
        _raise_any(await acls.create(self._client, [acl_of(rule) for rule in sorted(wanted.rules)]))
        if self._fused:
            rates = {quotas.entity(user=user): dict(values) for user, values in wanted.rates.items()}
            _raise_any(await quotas.alter(self._client, rates))

    async def _take_all(self, gone: Sequence[str]) -> None:
        _raise_any(await acls.delete(self._client, [AclFilter(principal=f"User:{user}") for user in gone]))
        if self._fused:
            nothing: dict[str, float | None] = dict.fromkeys(RATES)
            _raise_any(await quotas.alter(self._client, {quotas.entity(user=user): nothing for user in gone}))
        answers = await users.alter(self._client, delete=[(user, _MECHANISM) for user in gone])
        missing = Code.RESOURCE_NOT_FOUND
        said = {
            user: None if isinstance(a, PenstockError) and a.facts.get("error_code") == missing else a
            for user, a in answers.items()
        }
        _raise_any(said)


async def rules_of(client: Client, user: str) -> frozenset[Rule]:
    found = await acls.describe(client, AclFilter(principal=_USER + user))
    return frozenset(rule_of(acl) for acl in found)


async def present_rights(client: Client, *, fused: bool = True) -> Rights:
    """What tenants' users have now, of all tenants; without rates where those are not the platform's."""
    named = {user: 0 for user in await users.describe(client) if TENANT_USER.fullmatch(user)}
    rules = set()
    for acl in await acls.describe(client):
        user = acl.principal.removeprefix(_USER)
        if TENANT_USER.fullmatch(user) or TENANT_NAME.match(acl.resource_name):
            rules.add(rule_of(acl))
    rates: dict[str, Mapping[str, float]] = {}
    limited = await quotas.describe(client, kinds=[quotas.USER]) if fused else {}
    for entity, values in limited.items():
        for part in entity:
            if part.name is not None and TENANT_USER.fullmatch(part.name):
                rates[part.name] = dict(values)
    return Rights(named, frozenset(rules), rates)


def acl_of(rule: Rule) -> Acl:
    # A principal of another kind than a user, which only a hand can have made, keeps its kind.
    principal = rule.user if ":" in rule.user else _USER + rule.user
    return Acl(
        principal,
        Operation[_kafkas(rule.operation)],
        ResourceType[_kafkas(rule.resource)],
        rule.name,
        Pattern[_kafkas(rule.pattern)],
        Permission[_kafkas(rule.permission)],
        rule.host,
    )


def rule_of(acl: Acl) -> Rule:
    return Rule(
        acl.principal.removeprefix(_USER),
        _ours(acl.resource_type.name),
        acl.resource_name,
        _ours(acl.pattern.name),
        _ours(acl.operation.name),
        _ours(acl.permission.name),
        acl.host,
    )


def _kafkas(word: str) -> str:
    return word.upper().replace("-", "_")


def _ours(word: str) -> str:
    return word.lower().replace("_", "-")


def _raise_any(answers: Mapping[Any, object]) -> None:
    for answer in answers.values():
        if isinstance(answer, PenstockError):
            raise answer
