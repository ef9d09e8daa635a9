"""What a gateway is told of a tenant: one record of `_penstock.state`, whole.

It is made from the registry and never edited. A record without a value means that the tenant is
gone; gateways then close its connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.model.entities import ANYWHERE, Entity, NetworkRule
from penstock.model.ids import BrokerId, ServiceAccountId


@dataclass(frozen=True, slots=True)
class AccountState:
    id: ServiceAccountId
    generation: int


@dataclass(frozen=True, slots=True)
class KeyState:
    id: str
    account: ServiceAccountId
    secret_sha256: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantState(Entity):
    kind: ClassVar[str] = "tenant"

    accounts: tuple[AccountState, ...] = ()
    keys: tuple[KeyState, ...] = ()
    brokers: tuple[BrokerId, ...] = ()  # where its topics may lie
    network: NetworkRule = ANYWHERE
    quota: Mapping[str, float] = field(default_factory=dict)  # by dimension

    def says(self) -> tuple[object, ...]:
        """Everything but when it was said: what is equal here need not be told again."""
        return self.accounts, self.keys, self.brokers, self.network, dict(self.quota)
