"""The routes for findings of the durability audit. A confined token sees those about its own topics."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from penstock.audit.rules.catalogue import by_name
from penstock.control.api.app import Caller, Change, CurrentPlane, Pages, Plane, operation_view
from penstock.control.api.auth import require, require_role
from penstock.control.api.schemas import Accepted, Page, RequestBody, View
from penstock.control.health.findings import AllFindings, ClusterFinding, change_finding
from penstock.model.durability import PARTITION, UNKNOWN, FindingState, Severity
from penstock.model.entities import LogicalCluster, Operation, OperatorRole, OperatorToken
from penstock.model.errors.audit import FindingUnknown
from penstock.model.ids import LogicalClusterId, tenant_of, tenant_prefix

router = APIRouter(prefix="/v1")
FindingId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]
_RULES: Final = by_name()
Filter = Annotated[str, Query(max_length=63)]


class FindingView(View):
    id: str
    """The same in every run of the audit."""
    rule: str
    severity: Severity
    state: FindingState
    physical_cluster: str
    cluster: str | None
    """The logical cluster whose topic this is about; null: none."""
    topic: str
    """Within its logical cluster; empty: about something else."""
    partition: int | None
    first: int | None
    """Offsets concerned."""
    last: int | None
    first_seen_ms: int
    last_seen_ms: int
    detail: str
    """What was observed; for confined tokens, what should hold."""
    action: str
    """What an operator does."""
    subject: str
    """Empty for confined tokens, as are `alert`, `evidence`, `actor` and `note`."""
    alert: str
    """Findings with the same alert have one cause."""
    evidence: dict[str, object]
    actor: str
    """The operator who acknowledged or resolved it."""
    note: str

    @classmethod
    def of(cls, one: ClusterFinding, *, confined: bool) -> FindingView:
        finding, rule = one.finding, _RULES.get(one.finding.rule)  # None: of a newer audit
        tenant = tenant_of(finding.topic_name)
        prefix = tenant_prefix(LogicalClusterId(tenant)) if tenant else ""
        number = finding.subject.rpartition("/")[2] if finding.subject.startswith(PARTITION) else ""
        return cls(
            id=finding.id,
            rule=finding.rule,
            severity=finding.severity,
            state=finding.state,
            physical_cluster=one.cluster,
            cluster=tenant or None,
            topic=finding.topic_name.removeprefix(prefix),
            partition=int(number) if number else None,
            first=None if finding.first == UNKNOWN else finding.first,
            last=None if finding.last == UNKNOWN else finding.last,
            first_seen_ms=finding.first_seen_ms,
            last_seen_ms=finding.last_seen_ms,
            # A detail may name what is not the tenant's, such as other partitions or an operator's actions.
            detail=(rule.invariant if rule else "") if confined else finding.detail,
            action=rule.action if rule else "",
            subject="" if confined else finding.subject,
            alert="" if confined else finding.alert,
            evidence={} if confined else dict(finding.evidence),
            actor="" if confined else finding.actor,
            note="" if confined else finding.note,
        )


class FindingPage(Page[FindingView]):
    unread: list[str]
    """Physical clusters that did not respond: their findings are missing here."""


class FindingChange(RequestBody):
    state: FindingState
    """`acknowledged`: known, and may persist. `resolved`: over. `open`: neither."""
    note: Annotated[str, Field(max_length=500)] = ""


@router.get("/findings", operation_id="listFindings", tags=["findings"])
async def list_findings(
    plane: CurrentPlane,
    token: Caller,
    pages: Pages,
    state: FindingState | None = None,
    severity: Severity | None = None,
    rule: Filter = "",
    physical_cluster: Filter = "",
) -> FindingPage:
    """What the durability audit has found, in order of ids."""
    require_role(token, OperatorRole.VIEWER)
    every = await _visible(plane, token)
    confined = bool(token.clusters)

    def matches(one: ClusterFinding) -> bool:
        finding = one.finding
        return (
            state in (None, finding.state)
            and severity in (None, finding.severity)
            and rule in ("", finding.rule)
            and physical_cluster in ("", one.cluster)
        )

    items, cursor = pages.items(
        lambda after: (each for each in every.findings if each.finding.id > after and matches(each)),
        lambda one: FindingView.of(one, confined=confined),
        lambda one: one.finding.id,
    )
    return FindingPage(items=items, cursor=cursor, unread=list(every.failures))


@router.get("/findings/{finding}", operation_id="getFinding", tags=["findings"])
async def get_finding(plane: CurrentPlane, token: Caller, finding: FindingId) -> FindingView:
    require_role(token, OperatorRole.VIEWER)
    one = (await _visible(plane, token)).need(finding)
    if one is None:
        # A confined token cannot learn whether the finding exists.
        require(token, OperatorRole.VIEWER)
        raise FindingUnknown(finding=finding)
    return FindingView.of(one, confined=bool(token.clusters))


@router.put("/findings/{finding}", operation_id="changeFinding", tags=["findings"], status_code=202)
async def put_finding(call: Change, finding: FindingId, body: FindingChange, response: Response) -> Accepted:
    """Acknowledges, resolves or opens a finding."""
    call.may(None, OperatorRole.ADMIN)
    one = (await call.plane.findings.read()).need(finding)
    if one is None:
        raise FindingUnknown(finding=finding)
    decided = await call.decide(lambda r, c: change_finding(r, c, one, body.state, body.note), Operation)
    # A request sent again stores it again, which changes nothing: the first one may have died in between.
    await call.plane.findings.handle(one, body.state, call.actor, body.note)
    return Accepted(operation=operation_view(decided, response))


async def _visible(plane: Plane, token: OperatorToken) -> AllFindings:
    """What a token may see: a confined one, findings about topics of its logical clusters."""
    every = await plane.findings.read()
    if not token.clusters:
        return every
    logical = [plane.registry.get(LogicalCluster, each) for each in token.clusters]
    hosts = every.of({each.cluster for each in logical if each is not None})
    own = [each for each in hosts.findings if tenant_of(each.finding.topic_name) in token.clusters]
    return AllFindings(tuple(own), hosts.failures)
