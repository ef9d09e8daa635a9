"""A control plane for API tests: decides like the real one, completes operations at once, needs no Kafka."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.control.acls import account_acls
from penstock.control.decisions import Decision, DecisionContext, decided_before
from penstock.control.registry import Put, Registry
from penstock.control.service import Role
from penstock.model.api_keys import hashed
from penstock.model.entities import OperatorRole, OperatorToken
from penstock.model.errors.control import NotActive
from penstock.model.errors.fleet import AdoptedNotEmpty
from penstock.model.ids import LogicalClusterId
from tests.control.in_memory_control import InMemoryControl

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.testclient import TestClient

    from penstock.control.acls import AccountAcl
    from penstock.control.checker import Difference
    from penstock.model.entities import Entity, ServiceAccount
    from penstock.model.events import QuotaShares
    from penstock.model.tenant_acls import AclEntry

ROOT = "root-secret"


@dataclass
class InMemoryPlane:
    memory: InMemoryControl = field(
        default_factory=lambda: InMemoryControl.with_cells(2, bootstrap="127.0.0.1:28001")
    )
    role: Role = Role.ACTIVE
    loads: dict[str, float] = field(default_factory=dict)
    shares: dict[LogicalClusterId, QuotaShares] = field(default_factory=dict)
    completes: bool = True
    created_acls: tuple[AclEntry, ...] = ()  # by tenants, through Kafka
    differences: tuple[Difference, ...] = ()
    not_empty: tuple[str, ...] = ()  # adopted clusters
    active_url: str = "http://elsewhere:1"

    def __post_init__(self) -> None:
        self.add_token("root", OperatorRole.ADMIN, ROOT)

    def add_token(self, name: str, role: OperatorRole, secret: str, *clusters: str) -> None:
        sha = hashed(secret)
        token = OperatorToken(
            id=name,
            version=1,
            name=name,
            role=role,
            secret_sha256=sha,
            clusters=tuple(map(LogicalClusterId, clusters)),
        )
        self.memory.registry.accept([Put(token)])

    @property
    def registry(self) -> Registry:
        return self.memory.registry

    @property
    def position(self) -> tuple[int, int]:
        return 5, 5

    async def decide(
        self,
        decision: Callable[[Registry, DecisionContext], Decision],
        kind: type[Entity],
        *,
        actor: str,
        request: str = "",
        fingerprint: str = "",
    ) -> Decision:
        if self.role is not Role.ACTIVE:
            raise NotActive(url=self.active_url)
        now = int(time.time() * 1000)
        context = DecisionContext(actor, now, secrets.choice, request, fingerprint, self.loads)
        result = decided_before(self.registry, context, kind) or decision(self.registry, context)
        self.memory.accept(result)
        if self.completes and not result.repeated:
            self.memory.complete(result.operation)
        return result

    async def admit(self, adopted: str) -> None:
        if adopted in self.not_empty:
            raise AdoptedNotEmpty(name=adopted, count=1, shown="orders")

    async def acls(self, account: ServiceAccount) -> tuple[AccountAcl, ...]:
        return account_acls(account, self.created_acls)

    async def check(self) -> tuple[Difference, ...]:
        return self.differences

    async def repair(self) -> tuple[Difference, ...]:
        return ()


class Api:
    """A client with a token."""

    def __init__(self, plane: InMemoryPlane, client: TestClient) -> None:
        self.plane, self.client, self.secret = plane, client, ROOT

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = {"Authorization": f"Bearer {self.secret}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return self.client.request(method, f"/v1{path}", json=body, headers=sent)

    def create(self, name: str = "shop", **more: Any) -> dict[str, Any]:
        response = self("POST", "/clusters", {"name": name, **more})
        assert response.status_code == 202, response.text
        cluster: dict[str, Any] = response.json()["cluster"]
        return cluster


def code(response: Any, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    return str(response.json()["code"])
