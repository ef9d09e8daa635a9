"""A control plane for API tests: decides like the real one, completes operations at once, needs no Kafka."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.audit.lifecycle import handled, handling_of
from penstock.balance.executing import Health, Observation
from penstock.balance.plan_document import (
    Origin,
    PlanDocument,
    PlanDocuments,
    document_of,
    new_document,
    new_plan_id,
)
from penstock.control.acls import account_acls
from penstock.control.audit_log import AuditPage, AuditQuery
from penstock.control.backups import Backups
from penstock.control.decisions import Decision, DecisionContext, decided_before
from penstock.control.gateways.gateway_calls import GatewayCalls
from penstock.control.gateways.gateway_directory import GatewayDirectory
from penstock.control.health.findings import all_findings
from penstock.control.health.health_service import HealthService
from penstock.control.health.mitigating import Mitigating
from penstock.control.links import Links, LinksRead, Row
from penstock.control.load.balancing import Balancing
from penstock.control.load.planning import PlanMaker
from penstock.control.physical.cluster_access import Clusters
from penstock.control.registry import Put, Registry
from penstock.control.rolling.roll_planning import RollPlanner
from penstock.control.rolling.roll_service import RollSupport
from penstock.control.service import Role
from penstock.control.size.controller_changes import ControllerChanges
from penstock.control.size.resizer import Resizer
from penstock.control.size.sizing import Sizing, SizingFiles
from penstock.model.api_keys import hashed
from penstock.model.entities import OperatorRole, OperatorToken
from penstock.model.errors.balance import ClusterUnobserved, PlanUnknown
from penstock.model.errors.control import NotActive
from penstock.model.errors.fleet import AdoptedInUse
from penstock.model.errors.link import LinkUnknown
from penstock.model.ids import LogicalClusterId
from tests.control.in_memory_control import InMemoryControl

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from starlette.testclient import TestClient

    from penstock.balance.plan_document import Names, PlannedMove
    from penstock.balance.planner import Plan
    from penstock.control.acls import AccountAcl
    from penstock.control.checker import Difference
    from penstock.control.health.findings import AllFindings, ClusterFinding
    from penstock.control.health.healing_service import ClusterHealing
    from penstock.control.load.planning import ClusterReading
    from penstock.control.physical.cluster_access import Provisioner
    from penstock.link.states import Action
    from penstock.model.durability import FindingRecord, FindingState
    from penstock.model.entities import Entity, ServiceAccount
    from penstock.model.events import AuditEvent, BrokerLoad, LoadHour, QuotaShares
    from penstock.model.tenant_acls import AclEntry

ROOT = "root-secret"


class InMemoryPlans:
    def __init__(self) -> None:
        self.documents = PlanDocuments()

    async def propose_moves(
        self, moves: Sequence[PlannedMove], *, cluster: str, actor: str, purpose: str
    ) -> PlanDocument:
        origin = Origin(new_plan_id(secrets.choice), cluster, int(time.time() * 1000), actor, purpose)
        self.add(new_document(moves, origin))
        return self.need(origin.id)

    async def propose(
        self, plan: Plan, names: Names, *, cluster: str, actor: str, purpose: str
    ) -> PlanDocument:
        origin = Origin(new_plan_id(secrets.choice), cluster, int(time.time() * 1000), actor, purpose)
        self.add(document_of(plan, names, origin))
        return self.need(origin.id)

    def add(self, document: PlanDocument) -> None:
        for key, value in document.records():
            self.documents.apply(key, value)

    def need(self, plan: str) -> PlanDocument:
        document = self.documents.document(plan)
        if document is None:
            raise PlanUnknown(plan=plan)
        return document


@dataclass
class InMemoryHours:
    known: dict[int, LoadHour] = field(default_factory=dict)

    async def hours(self, cluster: str) -> dict[int, LoadHour]:
        return {hour: each for hour, each in self.known.items() if each.cluster == cluster}


class InMemoryLinks(Links):
    """Links as their processes reported them."""

    def __init__(self) -> None:
        super().__init__(Clusters(()))
        self.known: dict[tuple[str, str], Row] = {}
        self.unread: dict[str, str] = {}
        self.requests: list[tuple[str, str, Action]] = []

    async def read(self) -> LinksRead:
        return LinksRead(tuple((key[0], row) for key, row in sorted(self.known.items())), self.unread)

    async def show(self, cluster: str, link: str) -> Row:
        if (cluster, link) not in self.known:
            raise LinkUnknown(link=link, known="none")
        return self.known[cluster, link]

    async def request(self, cluster: str, link: str, action: Action, created_ms: int) -> None:
        assert created_ms > 0
        self.requests.append((cluster, link, action))


@dataclass
class InMemoryFindings:
    """By physical cluster: its findings, or why they cannot be read."""

    known: dict[str, list[FindingRecord] | str] = field(default_factory=dict)

    async def read(self) -> AllFindings:
        return all_findings(self.known.items())

    async def handle(self, one: ClusterFinding, state: FindingState, actor: str, note: str) -> None:
        findings = self.known[one.cluster]
        assert isinstance(findings, list)
        handling = handling_of(one.finding, state, actor, note, one.finding.last_seen_ms)
        findings[findings.index(one.finding)] = handled(one.finding, handling)


@dataclass
class InMemoryHealing:
    known: dict[str, ClusterHealing] = field(default_factory=dict)


@dataclass
class InMemoryPlane:
    memory: InMemoryControl = field(
        default_factory=lambda: InMemoryControl.with_cells(2, bootstrap="127.0.0.1:28001")
    )
    role: Role = Role.ACTIVE
    loads: dict[str, float] = field(default_factory=dict)
    shares: dict[LogicalClusterId, QuotaShares] = field(default_factory=dict)
    broker_loads: dict[str, tuple[BrokerLoad, ...]] = field(default_factory=dict)
    completes: bool = True
    created_acls: tuple[AclEntry, ...] = ()  # by tenants, through Kafka
    differences: tuple[Difference, ...] = ()
    audited: tuple[AuditEvent, ...] = ()
    not_empty: tuple[str, ...] = ()  # adopted clusters
    active_url: str = "http://elsewhere:1"
    gateways: GatewayDirectory = field(default_factory=GatewayDirectory)
    gateway_calls: GatewayCalls = field(default_factory=lambda: GatewayCalls(Clusters(())))
    links: InMemoryLinks = field(default_factory=lambda: InMemoryLinks())
    plans: InMemoryPlans = field(default_factory=lambda: InMemoryPlans())
    seen: Observation = field(default_factory=lambda: Observation({}, frozenset()))  # of any cluster

    reading: ClusterReading | None = None  # of any cluster, for plans
    move_health: Health = field(default_factory=Health)  # of any cluster
    plan_maker: PlanMaker = field(init=False)
    balancing: Balancing = field(init=False)
    health: HealthService = field(init=False)
    healing: InMemoryHealing = field(default_factory=lambda: InMemoryHealing())
    findings: InMemoryFindings = field(default_factory=lambda: InMemoryFindings())
    load_hours: InMemoryHours = field(default_factory=lambda: InMemoryHours())
    sizing: Sizing = field(init=False)
    backups: Backups = field(default_factory=lambda: Backups(Clusters(()), lambda: False))
    provisioner: Provisioner | None = None
    resizer: Resizer = field(init=False)

    def __post_init__(self) -> None:
        self.plan_maker = PlanMaker(
            lambda: self.registry, lambda: self.broker_loads, self.read_cluster, self._proposals
        )
        self.balancing = Balancing(self, self.read_health, lambda: self.role is Role.ACTIVE)
        clusters = Clusters(())
        mitigating = Mitigating(self, clusters, self._proposals)
        self.health = HealthService(self, clusters, mitigating, lambda: self.role is Role.ACTIVE)
        self.sizing = Sizing(self, self.load_hours, lambda: self.role is Role.ACTIVE, SizingFiles())
        self.resizer = Resizer(self, self.provisioner)
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

    async def read_cluster(self, cluster: str) -> ClusterReading:
        if self.reading is None:
            raise ClusterUnobserved(cluster=cluster, reason="it has not been reached yet")
        return self.reading

    async def read_health(self, cluster: str, seen: Observation) -> Health:
        del cluster, seen
        return self.move_health

    def _proposals(self) -> InMemoryPlans:
        if self.role is not Role.ACTIVE:
            raise NotActive(url=self.active_url)
        return self.plans

    @property
    def controllers(self) -> ControllerChanges:
        return ControllerChanges(self, Clusters(()), None)

    @property
    def roll_planner(self) -> RollPlanner:
        return RollPlanner(lambda: self.registry, Clusters(()), RollSupport())

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
            raise AdoptedInUse(name=adopted, shown="_penstock.state")

    async def acls(self, account: ServiceAccount) -> tuple[AccountAcl, ...]:
        return account_acls(account, self.created_acls)

    async def audit(self, query: AuditQuery) -> AuditPage:
        start = query.offset or 0
        events = tuple(event for event in self.audited[start:] if query.matches(event))
        events = events[-query.last :] if query.last else events[: query.limit]
        return AuditPage(events, len(self.audited), len(self.audited))

    async def observe_topics(self, cluster: str, names: Collection[str]) -> Observation:
        del cluster, names
        return self.seen

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
