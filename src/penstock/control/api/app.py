"""The HTTP API: the app, errors as problem details, and what every route shares.

    /v1/clusters, /v1/accounts, /v1/keys, /v1/operations, /v1/cells, /v1/physical-clusters, /v1/plans,
    /v1/profiles, /v1/rolls, /v1/tokens, /v1/gateways, /v1/health, /v1/slo, /v1/incidents, /v1/findings,
    /v1/backups, /v1/links

Changes respond with 202 and an operation, whose resource shows the progress. `Idempotency-Key` makes a
change safe to send again; `If-Match` carries the version that the change is based on.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from penstock import __version__
from penstock.control.api.auth import cluster_for, require, token_of
from penstock.control.api.body_limits import GATEWAY_CALLS_PATH, BodyLimits
from penstock.control.api.schemas import OperationView, Page, Problem
from penstock.control.decisions import NAME_RULE, Decision, DecisionContext
from penstock.control.metrics import ControlMetrics
from penstock.control.registry import Registry
from penstock.metrics_server import page_of
from penstock.model.entities import Entity, LogicalCluster, OperatorRole, OperatorToken
from penstock.model.errors import Fault, NotFoundError, PenstockError
from penstock.model.errors.control import (
    ControlError,
    NotActive,
    NotCaughtUp,
    RequestInvalid,
    RouteMissing,
    VersionNeeded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from starlette.types import Scope

    from penstock.balance.executing import Observation
    from penstock.balance.plan_document import PlanDocument, PlanDocuments
    from penstock.control.acls import AccountAcl
    from penstock.control.audit_log import AuditPage, AuditQuery
    from penstock.control.backups import Backups
    from penstock.control.checker import Difference
    from penstock.control.gateways.gateway_calls import GatewayCalls
    from penstock.control.gateways.gateway_directory import GatewayDirectory
    from penstock.control.health.findings import AllFindings, ClusterFinding
    from penstock.control.health.healing_service import ClusterHealing
    from penstock.control.health.health_service import HealthService
    from penstock.control.links import Links
    from penstock.control.load.balancing import Balancing
    from penstock.control.load.planning import PlanMaker
    from penstock.control.rolling.roll_planning import RollPlanner
    from penstock.control.size.controller_changes import ControllerChanges
    from penstock.control.size.resizer import Resizer
    from penstock.control.size.sizing import Sizing
    from penstock.model.durability import FindingState
    from penstock.model.entities import ServiceAccount
    from penstock.model.events import BrokerLoad, QuotaShares
    from penstock.model.ids import LogicalClusterId

PAGE_MAX: Final = 500
PAGE_DEFAULT: Final = 100
IDEMPOTENCY_KEY_MAX: Final = 200  # characters
PROBLEM_TYPE: Final = "application/problem+json"
# Error statuses that any route may respond with.
PROBLEMS: Final = (400, 401, 403, 404, 405, 409, 412, 413, 422, 428, 500, 503)

E = TypeVar("E", bound=Entity)
S = TypeVar("S")
T = TypeVar("T")


class Plans(Protocol):
    """The stored plans."""

    @property
    def documents(self) -> PlanDocuments: ...
    def need(self, plan: str) -> PlanDocument: ...


class FindingDirectory(Protocol):
    """Findings of the durability audit."""

    async def read(self) -> AllFindings: ...
    async def handle(self, one: ClusterFinding, state: FindingState, actor: str, note: str) -> None: ...


class Healing(Protocol):
    @property
    def known(self) -> Mapping[str, ClusterHealing]: ...


class Plane(Protocol):
    """What the API needs from a control plane."""

    role: Any
    loads: dict[str, float]
    shares: dict[LogicalClusterId, QuotaShares]  # latest of each tenant
    gateways: GatewayDirectory
    gateway_calls: GatewayCalls

    @property
    def registry(self) -> Registry: ...
    @property
    def broker_loads(self) -> dict[str, tuple[BrokerLoad, ...]]: ...
    @property
    def active_url(self) -> str: ...
    @property
    def position(self) -> tuple[int, int]: ...
    async def decide(
        self,
        decision: Callable[[Registry, DecisionContext], Decision],
        kind: type[Entity],
        *,
        actor: str,
        request: str = "",
        fingerprint: str = "",
    ) -> Decision: ...
    async def admit(self, adopted: str) -> None: ...
    async def acls(self, account: ServiceAccount) -> tuple[AccountAcl, ...]: ...
    async def audit(self, query: AuditQuery) -> AuditPage: ...
    @property
    def plans(self) -> Plans: ...
    @property
    def plan_maker(self) -> PlanMaker: ...
    @property
    def balancing(self) -> Balancing: ...
    @property
    def links(self) -> Links: ...
    @property
    def health(self) -> HealthService: ...
    @property
    def findings(self) -> FindingDirectory: ...
    @property
    def healing(self) -> Healing: ...
    @property
    def sizing(self) -> Sizing: ...
    @property
    def backups(self) -> Backups: ...
    @property
    def resizer(self) -> Resizer: ...
    @property
    def controllers(self) -> ControllerChanges: ...
    @property
    def roll_planner(self) -> RollPlanner: ...
    async def observe_topics(self, cluster: str, names: Collection[str]) -> Observation: ...
    async def check(self) -> tuple[Difference, ...]: ...
    async def repair(self) -> tuple[Difference, ...]: ...


bearer = HTTPBearer(auto_error=False, description="An operator token.")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


def plane_of(request: Request) -> Plane:
    plane: Plane = request.app.state.plane
    return plane


def caller(request: Request, bearer: Bearer) -> OperatorToken:
    authorization = None if bearer is None else f"{bearer.scheme} {bearer.credentials}"
    return _authenticated(plane_of(request), authorization)


def _authenticated(plane: Plane, authorization: str | None) -> OperatorToken:
    if not plane.registry.count(OperatorToken):
        # The first leadership term creates the first token.
        position, end = plane.position
        raise NotCaughtUp(position=position, end=end)
    return token_of(plane.registry, authorization)


def _sender(scope: Scope, authorization: str | None) -> OperatorToken | None:
    """The operator who sends a body; None for a gateway."""
    plane: Plane = scope["app"].state.plane
    if scope["path"] == GATEWAY_CALLS_PATH:
        token = (authorization or "").partition(" ")[2].strip()
        plane.gateway_calls.authenticate(plane.registry, token)
        return None
    return _authenticated(plane, authorization)


Caller = Annotated[OperatorToken, Depends(caller)]
CurrentPlane = Annotated[Plane, Depends(plane_of)]
IfMatch = Annotated[
    str | None,
    Header(max_length=50, description='The version that the change is based on: `"3"`, or `*` for any.'),
]


@dataclass(frozen=True, slots=True)
class Call:
    """A change request, with its caller and idempotency key."""

    plane: Plane
    token: OperatorToken
    request: str
    fingerprint: str

    @property
    def registry(self) -> Registry:
        return self.plane.registry

    @property
    def actor(self) -> str:
        return f"operator/{self.token.id}"

    def may(self, cluster: str | None, needed: OperatorRole = OperatorRole.CLUSTER_ADMIN) -> None:
        require(self.token, needed, cluster)

    def cluster(self, name_or_id: str) -> LogicalCluster:
        """The logical cluster to change."""
        return cluster_for(self.registry, self.token, OperatorRole.CLUSTER_ADMIN, name_or_id)

    async def decide(
        self, decision: Callable[[Registry, DecisionContext], Decision], kind: type[Entity]
    ) -> Decision:
        return await self.plane.decide(
            decision,
            kind,
            actor=self.actor,
            request=self.request,
            fingerprint=self.fingerprint,
        )


async def change(
    request: Request,
    plane: CurrentPlane,
    token: Caller,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=IDEMPOTENCY_KEY_MAX,
            description="A change sent again with the same key is made once.",
        ),
    ] = None,
) -> Call:
    body = await request.body()
    fingerprint = f"{request.method} {request.url.path}\0".encode() + body
    key = ""
    if idempotency_key is not None:
        key = hashlib.sha256(f"{token.id}\0{idempotency_key}".encode()).hexdigest()
    return Call(plane, token, key, hashlib.sha256(fingerprint).hexdigest())


Change = Annotated[Call, Depends(change)]


def expected_version(if_match: str | None) -> int | None:
    """The version in `If-Match`; None for `*`. The header is required."""
    if if_match is None:
        raise VersionNeeded
    text = if_match.strip().removeprefix("W/").strip('"')
    if text == "*":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise RequestInvalid(where="If-Match", reason=f"{if_match!r} is not an ETag of this API")
    return int(text)


def set_etag(response: Response, entity: Entity | None) -> None:
    if entity is not None:
        response.headers["ETag"] = f'"{entity.version}"'


def operation_view(decided: Decision, response: Response) -> OperationView:
    """The operation of an accepted change; the headers name it, and its subject's version."""
    response.headers["Location"] = f"/v1/operations/{decided.operation.id}"
    set_etag(response, decided.subject)
    return OperationView.of(decided.operation)


@dataclass(frozen=True, slots=True)
class Paging:
    """Which page of a list is requested. Every list uses it."""

    limit: int
    after: str  # the page starts after this id, which need not exist any more

    def page(
        self, rows: Callable[[str], Iterable[T]], show: Callable[[T], S], identity: Callable[[T], str]
    ) -> Response:
        """`rows` returns the rows after an id, in order of ids."""
        items, cursor = self.items(rows, show, identity)
        return _written(Page(items=items, cursor=cursor))

    def items(
        self, rows: Callable[[str], Iterable[T]], show: Callable[[T], S], identity: Callable[[T], str]
    ) -> tuple[list[S], str | None]:
        """As `page`, for routes whose pages have more: the items, and the cursor of the next page."""
        items: list[S] = []
        last = self.after
        for row in rows(self.after):
            if len(items) == self.limit:
                return items, _cursor(last)
            items.append(show(row))
            last = identity(row)
        return items, None

    def entities(
        self,
        registry: Registry,
        kind: type[E],
        show: Callable[[E], S],
        matches: Callable[[E], bool] | None = None,
    ) -> Response:
        def rows(after: str) -> Iterable[E]:
            return (one for one in registry.after(kind, after) if matches is None or matches(one))

        return self.page(rows, show, lambda entity: entity.id)

    def among(self, entities: Iterable[E], show: Callable[[E], S]) -> Response:
        """A page of entities given in order of ids."""
        return self.page(lambda after: (e for e in entities if e.id > after), show, lambda entity: entity.id)


def _written(page: Page[S]) -> Response:
    # Serialized here: FastAPI's response validation would double the time of a long list.
    return Response(page.model_dump_json(), media_type="application/json")


def paging(
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT,
    cursor: Annotated[str, Query(max_length=200, description="The cursor of the previous page.")] = "",
) -> Paging:
    return Paging(limit, _cursor_id(cursor))


Pages = Annotated[Paging, Depends(paging)]


def _cursor(entity_id: str) -> str:
    return base64.urlsafe_b64encode(entity_id.encode()).decode().rstrip("=")


def _cursor_id(cursor: str) -> str:
    if not cursor:
        return ""
    try:
        return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError, UnicodeDecodeError):
        raise RequestInvalid(where="cursor", reason="it does not come from a page") from None


# Errors


def problem(error: PenstockError) -> JSONResponse:
    status = _status(error)
    body = Problem(
        type=f"urn:penstock:{error.code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=error.message,
        code=error.code,
        hint=error.advice,
        fault=error.fault,
        retriable=error.retriable,
        active=str(error.facts.get("url", "")) if isinstance(error, NotActive) else None,
    )
    headers = {"Retry-After": "1"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        headers["Connection"] = "close"  # the rest of the body stays unread
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body.model_dump(), status_code=status, media_type=PROBLEM_TYPE, headers=headers)


def _status(error: PenstockError) -> int:
    if isinstance(error, ControlError):
        return error.status
    if isinstance(error, NotFoundError):
        return HTTPStatus.NOT_FOUND
    if error.fault is Fault.CALLER:
        return HTTPStatus.UNPROCESSABLE_ENTITY
    return HTTPStatus.SERVICE_UNAVAILABLE if error.retriable else HTTPStatus.INTERNAL_SERVER_ERROR


async def _penstock_error(request: Request, error: Exception) -> JSONResponse:
    del request
    assert isinstance(error, PenstockError)
    return problem(error)


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    del request
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
    reason = first["msg"]
    if first["type"] == "string_pattern_mismatch":  # only names have a pattern
        reason = f"{first['input']!r} is not a valid name: {NAME_RULE}"
    return problem(RequestInvalid(where=where, reason=reason))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, PenstockError):
        return problem(error.__cause__)
    response = problem(RouteMissing(method=request.method, path=request.url.path, reason=error.detail))
    response.status_code = error.status_code
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


def make_api(plane: Plane | None = None) -> FastAPI:
    """The app; without a plane it can only describe itself."""
    from penstock.control.api import (
        backup_routes,
        broker_routes,
        controller_routes,
        finding_routes,
        gateway_routes,
        healing_routes,
        health_routes,
        link_routes,
        load_routes,
        plan_routes,
        quota_routes,
        resize_routes,
        roll_routes,
        sizing_routes,
    )
    from penstock.control.api.routes import router

    app = FastAPI(
        title="Penstock control plane",
        version=__version__,
        description="Logical clusters, service accounts, API keys and the operations on them.",
        openapi_url="/v1/openapi.json",
        docs_url="/v1/docs",
        redoc_url=None,
    )
    app.state.plane = plane
    app.add_middleware(
        BodyLimits,
        authenticate=_sender,
        problem=problem,
    )
    app.include_router(router, responses=_documented())
    app.include_router(quota_routes.router, responses=_documented())
    app.include_router(broker_routes.router, responses=_documented())
    app.include_router(load_routes.router, responses=_documented())
    app.include_router(link_routes.router, responses=_documented())
    app.include_router(gateway_routes.router, responses=_documented())
    app.include_router(plan_routes.router, responses=_documented())
    app.include_router(health_routes.router, responses=_documented())
    app.include_router(finding_routes.router, responses=_documented())
    app.include_router(healing_routes.router, responses=_documented())
    app.include_router(sizing_routes.router, responses=_documented())
    app.include_router(resize_routes.router, responses=_documented())
    app.include_router(roll_routes.router, responses=_documented())
    app.include_router(backup_routes.router, responses=_documented())
    app.include_router(controller_routes.router, responses=_documented())
    app.add_api_route("/metrics", _metrics, include_in_schema=False)
    app.add_api_route("/healthz", _healthy, include_in_schema=False)
    app.add_exception_handler(PenstockError, _penstock_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign] # FastAPI's own way to replace it
    return app


async def _metrics(plane: CurrentPlane) -> Response:
    return Response(page_of(ControlMetrics(plane))(), media_type="text/plain; version=0.0.4")


async def _healthy(plane: CurrentPlane) -> dict[str, str]:
    """Reads the registry; a control plane that is not caught up responds with 503."""
    plane.registry.count(OperatorToken)
    return {"role": str(plane.role), "active": plane.active_url}


def _documented() -> dict[int | str, dict[str, Any]]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {PROBLEM_TYPE: {"schema": schema}}}
        for status in PROBLEMS
    }


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schema["info"]["version"] = "1"  # of the API, not of the release
        schemas = schema["components"]["schemas"]
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        app.openapi_schema = schema
    return app.openapi_schema
