"""The routes for backups: their state, the topics in them, and plans of restores. They change nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from penstock.backup.planning import Selection
from penstock.control.api.app import Caller, CurrentPlane
from penstock.control.api.auth import require
from penstock.control.api.routes import Id
from penstock.control.api.schemas import RequestBody, View
from penstock.model.entities import OperatorRole

router = APIRouter(prefix="/v1")

TopicName = Annotated[str, Field(max_length=249)]
Milliseconds = Annotated[int, Field(ge=0, lt=2**53)]


class SweepView(View):
    """The last run that deleted what is older than `keep_days`."""

    at_ms: int
    tier_objects: int
    """Objects deleted from the store of the tier."""
    backup_objects: int
    """Objects deleted from the store of the backup."""
    postponed: int
    """Segments beyond the limits of a run."""
    orphans: int
    """Segments in the store of the tier that Kafka does not know; only reported."""
    missing: int
    """Segments that Kafka knows and the store of the tier has not."""
    refused: str
    """Why nothing was deleted, or only from one store."""
    error: str


class BackupView(View):
    physical_cluster: str
    name: str
    store: str
    tier: str
    """The store of the tier, if sweeps include it."""
    keep_days: float
    last_sweep: SweepView | None
    """By this control plane since its start; only the active one sweeps."""


class BackupsView(View):
    items: list[BackupView]


class BackupStateView(BackupView):
    cluster: str
    """Kafka's cluster id."""
    topics: int
    segments: int
    gaps: int
    """Recorded gaps: offsets that retention deleted before they were archived."""
    last_archived: str | None
    last_catalogue: str | None
    last_drill: str | None
    holds: str
    restore_running: str
    restores: int


class BackupTopicView(View):
    topic: str
    topic_id: str
    partitions: int
    segments: int
    log_bytes: int
    last_seen: str | None
    """When the catalogue had it last."""
    exists: bool


class BackupTopicsView(View):
    items: list[BackupTopicView]


class RestoreRequest(RequestBody):
    topic: TopicName = ""
    """Its name, as it was."""
    topic_id: Annotated[str, Field(max_length=22)] = ""
    """Its id, if several topics had the name."""
    target: TopicName = ""
    """Name of the restored topic; empty: its old name."""
    until_ms: Milliseconds | None = None
    """Restore what was archived until then."""
    retention_ms: Annotated[int, Field(ge=-1, lt=2**53)] | None = None
    """Its new retention; -1: unlimited; null: its old one."""


class PartitionPlanView(View):
    partition: int
    start: int
    end: int
    log_bytes: int


class RestorePlanView(View):
    topic: str
    topic_id: str
    target: str
    partitions: list[PartitionPlanView]
    log_bytes: int
    configs: dict[str, str | None]
    refusals: list[str]
    """Every reason against it; empty: it may be carried out."""
    warnings: list[str]


@router.get("/backups", operation_id="listBackups", tags=["backups"])
async def list_backups(plane: CurrentPlane, token: Caller) -> BackupsView:
    """The physical clusters that have a backup. Does not read their stores."""
    require(token, OperatorRole.VIEWER)
    return BackupsView(items=[BackupView.model_validate(asdict(each)) for each in plane.backups.known()])


@router.get("/backups/{physical}", operation_id="getBackup", tags=["backups"])
async def get_backup(plane: CurrentPlane, token: Caller, physical: Id) -> BackupStateView:
    """The age of a backup, its gaps, holds and restores. Lists its store."""
    require(token, OperatorRole.VIEWER)
    facts, state = await plane.backups.status(physical)
    return BackupStateView.model_validate(asdict(facts) | state | {"store": facts.store})


@router.get("/backups/{physical}/topics", operation_id="listBackupTopics", tags=["backups"])
async def list_topics(plane: CurrentPlane, token: Caller, physical: Id) -> BackupTopicsView:
    """The topics of a backup, also deleted ones."""
    require(token, OperatorRole.VIEWER)
    rows = await plane.backups.topics(physical)
    return BackupTopicsView(items=[BackupTopicView.model_validate(row) for row in rows])


@router.post("/backups/{physical}/plan", operation_id="planRestore", tags=["backups"])
async def plan_restore(
    plane: CurrentPlane, token: Caller, physical: Id, body: RestoreRequest
) -> RestorePlanView:
    """What a restore would do, and every reason against it. Nothing changes."""
    require(token, OperatorRole.VIEWER)
    selection = Selection(body.topic, body.topic_id, body.target, body.until_ms, body.retention_ms)
    planned = await plane.backups.plan(physical, selection)
    return RestorePlanView(
        topic=planned.request.topic,
        topic_id=planned.request.topic_id,
        target=planned.request.target,
        partitions=[
            PartitionPlanView(
                partition=each.partition, start=each.start, end=each.end, log_bytes=each.log_bytes
            )
            for each in planned.partitions
        ],
        log_bytes=planned.log_bytes,
        configs=dict(planned.configs),
        refusals=list(planned.refusals),
        warnings=list(planned.warnings),
    )
