"""A control plane on paper: decides like the real one, carries everything out at once, needs no Kafka."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.control.decisions import Ask, Decided, decided_before
from penstock.control.registry import Put, Registry
from penstock.control.rules import own_rules
from penstock.control.service import Role
from penstock.model.entities import OperatorRole, OperatorToken
from penstock.model.errors.control import NotActive
from penstock.model.errors.fleet import AdoptedNotEmpty
from penstock.model.ids import LogicalClusterId
from tests.control.ground import Paper

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.control.checker import Difference
    from penstock.control.rules import OwnRule, Rule
    from penstock.model.entities import Entity, ServiceAccount
    from penstock.model.events import QuotaShares

ROOT = "root-secret"


@dataclass
class PaperPlane:
    paper: Paper = field(default_factory=lambda: Paper.with_cells(2, bootstrap="127.0.0.1:28001"))
    role: Role = Role.ACTIVE
    loads: dict[str, float] = field(default_factory=dict)
    shares: dict[LogicalClusterId, QuotaShares] = field(default_factory=dict)
    carries: bool = True
    made: tuple[Rule, ...] = ()  # through Kafka
    found: tuple[Difference, ...] = ()
    not_empty: tuple[str, ...] = ()  # adopted clusters

    def __post_init__(self) -> None:
        self.add_token("root", OperatorRole.ADMIN, ROOT)

    def add_token(self, name: str, role: OperatorRole, secret: str, *clusters: str) -> None:
        sha = hashlib.sha256(secret.encode()).hexdigest()
        token = OperatorToken(
            id=name,
            version=1,
            name=name,
            role=role,
            secret_sha256=sha,
            clusters=tuple(map(LogicalClusterId, clusters)),
        )
        self.paper.registry.accept([Put(token)])

    @property
    def registry(self) -> Registry:
        return self.paper.registry

    @property
    def active_url(self) -> str:
        return "http://elsewhere:1"

    @property
    def position(self) -> tuple[int, int]:
        return 5, 5

    async def decide(
        self,
        decision: Callable[[Registry, Ask], Decided],
        kind: type[Entity],
        *,
        actor: str,
        request: str = "",
        fingerprint: str = "",
    ) -> Decided:
        if self.role is not Role.ACTIVE:
            raise NotActive(url=self.active_url)
        now = int(time.time() * 1000)
        ask = Ask(actor, now, secrets.choice, request, fingerprint, self.loads)
        decided = decided_before(self.registry, ask, kind) or decision(self.registry, ask)
        self.paper.accept(decided)
        if self.carries and not decided.repeated:
            self.paper.carry_out(decided.operation)
        return decided

    async def admit(self, adopted: str) -> None:
        if adopted in self.not_empty:
            raise AdoptedNotEmpty(name=adopted, count=1, shown="orders")

    async def rules(self, account: ServiceAccount) -> tuple[OwnRule, ...]:
        return own_rules(account, self.made)

    async def check(self) -> tuple[Difference, ...]:
        return self.found

    async def repair(self) -> tuple[Difference, ...]:
        return ()
