"""The routes for cluster links: states, and what operators request of their processes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from penstock.control.api.app import Caller, Change, CurrentPlane, operation_view
from penstock.control.api.auth import require
from penstock.control.api.routes import Id
from penstock.control.api.schemas import Accepted, View
from penstock.control.links import Row, request_action
from penstock.link.states import Action, State
from penstock.model.entities import OperatorRole, PhysicalCluster

router = APIRouter(prefix="/v1")
LinkName = Annotated[str, Path(pattern=r"^[a-zA-Z0-9._-]{1,100}$")]


class MirroredView(View):
    partition: str
    end: int
    """Of the mirror; −1: unknown."""
    source_end: int
    lag: int | None
    failed: str
    """Why it stopped; empty: it has not."""
    truncating: bool


class TailView(View):
    """What only the old source had when the link was reversed."""

    partition: str
    start: int
    end: int
    batches: int
    saved: bool
    kept: int
    """The mirror keeps what is below."""


class LinkView(View):
    physical_cluster: str
    """Its destination."""
    name: str
    state: State
    step: str | None
    """The last one of a promotion or a failover."""
    patterns: list[str]
    topics: list[str]
    partitions: int
    lag: int | None
    """Offsets that are not mirrored yet; null: unknown."""
    failed: dict[str, str]
    """Why partitions have stopped."""
    problems: dict[str, str]
    """What does not follow the source, and why."""
    error: str
    """Of the last request."""


class LinkDetailView(LinkView):
    progress: list[MirroredView]
    tails: list[TailView]


class LinksView(View):
    items: list[LinkView]
    unread: dict[str, str]
    """Physical clusters that did not respond, and why."""


@router.get("/links", operation_id="listLinks", tags=["links"])
async def list_links(plane: CurrentPlane, token: Caller) -> LinksView:
    """The links to every known physical cluster, as their processes last reported."""
    require(token, OperatorRole.VIEWER)
    read = await plane.links.read()
    items = [LinkView(**_summary(cluster, row)) for cluster, row in read.rows]
    return LinksView(items=items, unread=dict(read.unread))


@router.get("/links/{physical}/{link}", operation_id="getLink", tags=["links"])
async def get_link(plane: CurrentPlane, token: Caller, physical: Id, link: LinkName) -> LinkDetailView:
    """One link, with its partitions, and the tails that were saved when it was reversed."""
    require(token, OperatorRole.VIEWER)
    cluster = plane.registry.need(PhysicalCluster, physical).id
    row = await plane.links.show(cluster, link)
    return LinkDetailView(
        **_summary(cluster, row),
        progress=[MirroredView(partition=place, **one) for place, one in row["progress"].items()],
        tails=[
            TailView(partition=place, **{key: value for key, value in one.items() if key != "emptied"})
            for place, one in row["tails"].items()
        ],
    )


@router.post("/links/{physical}/{link}/pause", operation_id="pauseLink", status_code=202, tags=["links"])
async def pause(call: Change, physical: Id, link: LinkName, response: Response) -> Accepted:
    """Its process stops fetching. Mirrors stay closed for writes."""
    return await _requested(call, physical, link, Action.PAUSE, response)


@router.post("/links/{physical}/{link}/resume", operation_id="resumeLink", status_code=202, tags=["links"])
async def resume(call: Change, physical: Id, link: LinkName, response: Response) -> Accepted:
    """Its process fetches again."""
    return await _requested(call, physical, link, Action.RESUME, response)


@router.post("/links/{physical}/{link}/promote", operation_id="promoteLink", status_code=202, tags=["links"])
async def promote(call: Change, physical: Id, link: LinkName, response: Response) -> Accepted:
    """Its process closes the source for writes, drains it, and opens the mirrors."""
    return await _requested(call, physical, link, Action.PROMOTE, response)


@router.post(
    "/links/{physical}/{link}/failover", operation_id="failoverLink", status_code=202, tags=["links"]
)
async def failover(call: Change, physical: Id, link: LinkName, response: Response) -> Accepted:
    """Its process opens the mirrors with what they have. What was not mirrored stays on the source."""
    return await _requested(call, physical, link, Action.FAILOVER, response)


async def _requested(call: Change, physical: str, link: str, action: Action, response: Response) -> Accepted:
    """Audited first. The state of the link shows when its process has carried it out."""
    call.may(None, OperatorRole.ADMIN)
    cluster = call.registry.need(PhysicalCluster, physical).id
    row = await call.plane.links.show(cluster, link)
    decided = await call.decide(lambda r, c: request_action(r, c, cluster, row, action), PhysicalCluster)
    await call.plane.links.request(cluster, link, action, decided.operation.created_ms)
    return Accepted(operation=operation_view(decided, response))


def _summary(cluster: str, row: Row) -> dict[str, Any]:
    keys = ("name", "state", "step", "patterns", "topics", "partitions", "lag", "failed", "problems", "error")
    return {"physical_cluster": cluster, **{key: row[key] for key in keys}}
