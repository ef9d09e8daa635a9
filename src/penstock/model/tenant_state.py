"""What a gateway needs to know about a tenant: one record of `_penstock.state`.

The control plane derives it from the registry and never edits it. A record without a value means that the
tenant was deleted; gateways then close its connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.model.entities import ANYWHERE, Entity, NetworkRule, Role
from penstock.model.ids import BrokerId, ServiceAccountId


@dataclass(frozen=True, slots=True)
class AccountState:
    id: ServiceAccountId
    generation: int
    role: Role = Role.LIMITED


@dataclass(frozen=True, slots=True)
class KeyState:
    id: str
    account: ServiceAccountId
    secret_sha256: str = field(repr=False)
    expires_ms: int | None = None  # when a rotated key expires; gateways enforce it by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantState(Entity):
    kind: ClassVar[str] = "tenant"

    accounts: tuple[AccountState, ...] = ()
    keys: tuple[KeyState, ...] = ()
    brokers: tuple[BrokerId, ...] = ()  # that may host its topics
    cordoned: tuple[BrokerId, ...] = ()  # of those, the ones that take no new replica
    demoted: tuple[BrokerId, ...] = ()  # of those, the ones that lead no new partition
    network: NetworkRule = ANYWHERE
    quota: Mapping[str, float] = field(default_factory=dict)  # by dimension
    auto_create_topics: bool = False

    def content(self) -> tuple[object, ...]:
        """All fields but version and time. A state with equal content need not be published again."""
        return (
            self.accounts, self.keys, self.brokers, self.cordoned, self.demoted, self.network,
            dict(self.quota), self.auto_create_topics,
        )  # fmt: skip
