"""`penstock backup`: every topic in a second store, restored at its original offsets."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.console import Group

from penstock.backup import holds
from penstock.backup.abandoning import abandon
from penstock.backup.archive import Archive
from penstock.backup.catalogue import Catalogue
from penstock.backup.drill import drill as carry_out_drill
from penstock.backup.in_place.plan import PAUSE_SECONDS, InPlaceRequest
from penstock.backup.in_place.restorer import InPlaceRestorer
from penstock.backup.overview import listed_topics, status_of
from penstock.backup.planning import Selection, make_in_place_plan, make_plan, resolve, restorable
from penstock.backup.restorer import Restorer
from penstock.backup.service import BackupService
from penstock.backup.settings import BackupSettings, read_backup_settings
from penstock.backup.verification import verify as verify_backup
from penstock.cli.flags import Yes, confirmed, duration_ms, past_ms
from penstock.cli.operator.backup_expire import expire
from penstock.cli.operator.backup_remote import remote_status, remote_topics
from penstock.cli.operator.broker import Cluster
from penstock.cli.output import progress, report, show, table_of
from penstock.cli.settings import LogLines, Options, RemoteOptions, start_logs
from penstock.kafka.client import Client
from penstock.log_lines import announce
from penstock.metrics_server import metrics_at, on_loop, page_of
from penstock.model.errors import Exit
from penstock.model.errors.backup import RestoreRefused
from penstock.model.errors.settings import SettingInvalid, UsageInvalid
from penstock.model.plural import counted
from penstock.stop_signals import stop_event
from penstock.tier.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.backup.in_place.plan import InPlacePlan
    from penstock.backup.restore_plan import RestorePlan
    from penstock.link.settings import ClusterAccess

app = App(name="backup", help="Backups: deleted data restored at its original offsets.")
app.command(expire)

Settings = Annotated[Path, Parameter(name=("--settings", "-s"), help="The backup's settings file.")]
OwnSettings = Annotated[
    Path | None,
    Parameter(
        name=("--settings", "-s"),
        help="The backup's settings file.",
        show_default="ask the control plane",
        negative="",
    ),
]
Topic = Annotated[str, Parameter(help="Name of the topic, as it was.")]
TopicId = Annotated[str, Parameter(help="Its id, if several topics had the name.", show_default=False)]
Target = Annotated[
    str, Parameter(name="--as", help="Name of the restored topic.", show_default="its old name")
]
Until = Annotated[
    str | None,
    Parameter(help="Restore what was archived until then: ISO 8601, or 15m, 2h, 1d ago."),
]
FromCluster = Annotated[
    str,
    Parameter(
        name="--from",
        help="Kafka cluster id of a lost cluster whose backup is in this store.",
        show_default="this cluster",
    ),
]
Retention = Annotated[
    str | None,
    Parameter(help="Its new retention: 90s, 15m, 2h, 7d or unlimited.", show_default="its old one"),
]

InPlace = Annotated[
    bool,
    Parameter(help="Restore what a live topic has lost, while producers keep writing.", negative=""),
]
Pause = Annotated[
    str, Parameter(help="How long producers of a partition may wait, with --in-place: 90s, 5m.")
]

PAUSE = f"{PAUSE_SECONDS:.0f}s"

_TOPICS = {
    "TOPIC": "topic", "TOPIC ID": "topic_id", "PARTITIONS": "partitions", "SEGMENTS": "segments",
    "BYTES": "log_bytes", "LAST SEEN": "last_seen", "EXISTS": "exists",
}  # fmt: skip
_PLAN = {"PARTITION": "partition", "FROM": "start", "TO": "end", "BYTES": "log_bytes"}
_IN_PLACE = {**_PLAN, "PAUSE": "pause_seconds"}
_PROBLEMS = {"WHERE": "where", "PROBLEM": "what"}


@dataclass(frozen=True, slots=True)
class Opened:
    """A backup and its cluster."""

    settings: BackupSettings
    client: Client
    store: Store
    archive: Archive
    catalogue: Catalogue


@app.command
async def run(
    *,
    settings: Settings,
    until_stdin_ends: Annotated[bool, Parameter(help="Stop when standard input ends.", negative="")] = False,
    log_format: LogLines = None,
) -> int:
    """Archive topics and keep the catalogue until stopped.

    Example:  penstock backup run --settings backup.yaml
    """
    stop = stop_event(until_stdin_ends=until_stdin_ends)
    parsed = read_backup_settings(settings)
    start_logs(log_format)
    store = Store(parsed.store)
    async with _client(parsed.cluster) as client:
        service = BackupService(client, store, parsed)
        loop = asyncio.get_running_loop()
        page = on_loop(loop, page_of(service))
        with metrics_at(parsed.metrics, page, not_ready=service.not_ready, loop=loop):
            announce(f"backup to {store.name} starts")
            await service.run(stop)
    return Exit.FINE


@app.command
async def status(
    *, settings: OwnSettings = None, physical: Cluster = None, options: RemoteOptions = RemoteOptions()
) -> int:
    """Show the age of the backup, its gaps, holds and restores.

    Example:  penstock backup status
    """
    if settings is None:
        row = await asyncio.to_thread(remote_status, options, physical)
    else:
        async with _open(settings) as opened:
            row = await status_of(opened.client, opened.archive, opened.catalogue, opened.store)
    facts = [{"what": key, "value": value} for key, value in row.items()]
    show(row, options.form, table_of(facts, {"WHAT": "what", "VALUE": "value"}))
    return Exit.FINE


@app.command(name="list")
async def list_(
    *,
    settings: OwnSettings = None,
    from_cluster: FromCluster = "",
    physical: Cluster = None,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """List the topics of the backup, also deleted ones.

    Example:  penstock backup list
    """
    if settings is None:
        if from_cluster:
            raise UsageInvalid(reason="--from needs the backup's settings", way_out="Add --settings FILE.")
        rows = await asyncio.to_thread(remote_topics, options, physical)
    else:
        async with _open(settings, from_cluster) as opened:
            rows = await listed_topics(opened.client, opened.archive, opened.catalogue)
    show(rows, options.form, table_of(rows, _TOPICS, empty="no topics are archived"))
    return Exit.FINE


@app.command
async def plan(
    topic: Topic = "",
    *,
    settings: Settings,
    topic_id: TopicId = "",
    target: Target = "",
    until: Until = None,
    retention: Retention = None,
    from_cluster: FromCluster = "",
    in_place: InPlace = False,
    pause: Pause = PAUSE,
    options: Options = Options(),
) -> int:
    """Print what a restore would do, and every reason against it. Nothing changes.

    Example:  penstock backup plan orders --settings backup.yaml --as orders-restored
    """
    async with _open(settings, from_cluster) as opened:
        if in_place:
            request = _in_place_request(topic, topic_id, target, until, retention, pause)
            intended = await make_in_place_plan(opened.client, opened.archive, opened.catalogue, request)
            _show_in_place(intended, options)
            return Exit.FAILED if intended.refusals else Exit.FINE
        selection = _selection(topic, topic_id, target, until, retention)
        planned = await make_plan(opened.client, opened.archive, opened.catalogue, selection)
    _show_plan(planned, options)
    return Exit.FAILED if planned.refusals else Exit.FINE


@app.command
async def restore(
    topic: Topic = "",
    *,
    settings: Settings,
    topic_id: TopicId = "",
    target: Target = "",
    until: Until = None,
    retention: Retention = None,
    from_cluster: FromCluster = "",
    every: Annotated[
        bool, Parameter(name="--all", help="Every topic of the catalogue that does not exist.", negative="")
    ] = False,
    resume: Annotated[
        bool, Parameter(help="Continue the restore that was interrupted.", negative="")
    ] = False,
    give_up: Annotated[
        bool,
        Parameter(name="--abandon", help="Give up the restore that cannot be completed.", negative=""),
    ] = False,
    in_place: InPlace = False,
    pause: Pause = PAUSE,
    yes: Yes = False,
    options: Options = Options(),
) -> int:
    """Restore a deleted topic at its original offsets, a copy under a new name, or a lost cluster.

    With `--in-place`, a live topic gets back what retention or DeleteRecords took from it.

    Example:  penstock backup restore orders --settings backup.yaml --yes
    """
    async with _open(settings, from_cluster) as opened:
        if resume:
            rows = await _resume(opened)
        elif give_up:
            if not confirmed(
                "This gives up the restore that is not complete. Its topic stays closed.", yes=yes
            ):
                return Exit.FAILED
            row = await abandon(opened.client, opened.settings.for_restore()[1].broker_id)
            rows = [] if row is None else [row]
        elif in_place:
            request = _in_place_request(topic, topic_id, target, until, retention, pause)
            if not confirmed(f"Producers of topic {topic} wait meanwhile, one partition at a time.", yes=yes):
                return Exit.FAILED
            rows = [await _restore_in_place(opened, request)]
        elif every:
            lost = await restorable(opened.client, opened.catalogue, _until_ms(until))
            if not confirmed(f"This creates {counted(len(lost), 'topic')}.", yes=yes):
                return Exit.FAILED
            selections = [_selection("", one, "", until, retention) for one in lost]
            rows = [await _restore(opened, one) for one in selections]
        else:
            selection = _selection(topic, topic_id, target, until, retention)
            if not confirmed(f"This creates topic {target or topic or topic_id}.", yes=yes):
                return Exit.FAILED
            rows = [await _restore(opened, selection)]
    if not rows:
        report("no restore is under way" if give_up else "nothing is left to restore")
        return Exit.NOT_FOUND
    columns = {key.replace("_", " ").upper(): key for key in dict.fromkeys(k for row in rows for k in row)}
    show(rows, options.form, table_of(rows, columns))
    return Exit.FINE


async def _restore(opened: Opened, selection: Selection) -> dict[str, Any]:
    planned = await make_plan(opened.client, opened.archive, opened.catalogue, selection)
    if planned.refusals:
        raise RestoreRefused(topic=planned.request.target, reasons="; ".join(planned.refusals))
    async with _restorer(opened) as restorer:
        await restorer.begin(planned, f"restore-{int(time.time() * 1000)}")
        return await _carried_out(restorer)


async def _restore_in_place(opened: Opened, request: InPlaceRequest) -> dict[str, Any]:
    await opened.store.probe()
    planned = await make_in_place_plan(opened.client, opened.archive, opened.catalogue, request)
    if planned.refusals:
        raise RestoreRefused(topic=request.topic, reasons="; ".join(planned.refusals))
    async with _in_place_restorer(opened) as restorer:
        await restorer.begin(planned, f"restore-{int(time.time() * 1000)}")
        return await _carried_out(restorer)


async def _resume(opened: Opened) -> list[dict[str, Any]]:
    async with _in_place_restorer(opened) as in_place:
        if await in_place.resume():
            return [await _carried_out(in_place)]
    async with _restorer(opened) as restorer:
        return [await _carried_out(restorer)] if await restorer.resume() else []


async def _carried_out(restorer: Restorer | InPlaceRestorer) -> dict[str, Any]:
    with progress(f"restoring {restorer.document['target']}"):
        document = await restorer.run()
    return {"restore": restorer.restore, "topic": document["target"], **document["report"]}


@app.command
async def verify(
    *,
    settings: Settings,
    deep: Annotated[bool, Parameter(help="Read the records of every segment.", negative="")] = False,
    sample: Annotated[str, Parameter(help="Read this share of the segments, such as 1%.")] = "0%",
    options: Options = Options(),
) -> int:
    """Check that every segment is there and whole, and that no log has unexplained holes.

    Example:  penstock backup verify --settings backup.yaml --sample 1%
    """
    share = 1.0 if deep else _share(sample)
    async with _open(settings) as opened:
        seed = time.time_ns()
        with progress("verifying the backup"):
            result = await verify_backup(opened.archive, opened.catalogue, sample=share, seed=seed)
    row = asdict(result)
    report(
        f"{counted(result.segments, 'segment')}, {result.read} of them read, {result.log_bytes} bytes, "
        f"{counted(result.gaps, 'recorded gap')}, {counted(len(result.problems), 'problem')}"
    )
    show(row, options.form, table_of(row["problems"], _PROBLEMS, empty="no problems"))
    return Exit.UNHEALTHY if result.problems else Exit.FINE


@app.command
async def drill(topic: Topic = "", *, settings: Settings, options: Options = Options()) -> int:
    """Restore a topic to a scratch topic, compare every replica, and delete it again.

    Example:  penstock backup drill orders --settings backup.yaml
    """
    async with _open(settings) as opened, _restorer(opened) as restorer:
        with progress("restoring to a scratch topic"):
            result = await carry_out_drill(
                opened.client, opened.archive, opened.catalogue, restorer, opened.store, topic
            )
    row = asdict(result)
    columns = {"TOPIC": "topic", "PARTITIONS": "partitions", "BYTES": "log_bytes"}
    columns |= {"REPLICAS PROVED": "replicas_proved", "SECONDS": "seconds"}
    show(row, options.form, table_of([row], columns))
    return Exit.FINE


@app.command
async def hold(
    name: Annotated[str, Parameter(help="Name of the hold.")],
    *,
    settings: Settings,
    topic: Annotated[str, Parameter(help="Only this topic.", show_default="all topics")] = "",
    topic_id: TopicId = "",
    options: Options = Options(),
) -> int:
    """Keep deleted segments from the sweeper until the hold is released.

    Example:  penstock backup hold audit-2026 --settings backup.yaml --topic orders
    """
    async with _open(settings) as opened:
        held = topic_id or None
        if topic:
            held, _ = await resolve(opened.catalogue, opened.archive, Selection(topic, topic_id))
        at_ms = int(time.time() * 1000)
        await holds.hold(opened.store, opened.archive.cluster, name, held, at_ms)
    row = {"hold": name, "topic_id": held}
    show(row, options.form, table_of([row], {"HOLD": "hold", "TOPIC ID": "topic_id"}))
    return Exit.FINE


@app.command
async def release(
    name: Annotated[str, Parameter(help="Name of the hold.")],
    *,
    settings: Settings,
    options: Options = Options(),
) -> int:
    """Release a hold.

    Example:  penstock backup release audit-2026 --settings backup.yaml
    """
    async with _open(settings) as opened:
        await holds.release(opened.store, opened.archive.cluster, name, int(time.time() * 1000))
        left = await holds.holds(opened.store, opened.archive.cluster)
    rows = [{"hold": one.name, "topic_id": one.topic_id} for one in left]
    show(rows, options.form, table_of(rows, {"HOLD": "hold", "TOPIC ID": "topic_id"}, empty="no holds"))
    return Exit.FINE


def _selection(topic: str, topic_id: str, target: str, until: str | None, retention: str | None) -> Selection:
    if not topic and not topic_id:
        raise SettingInvalid(where="flags", key="topic", value=topic, expected="expected a topic or its id")
    retention_ms = None
    if retention == "unlimited":
        retention_ms = -1
    elif retention:
        retention_ms = int(time.time() * 1000) - past_ms(retention, "retention")
    return Selection(topic, topic_id, target, _until_ms(until), retention_ms)


def _in_place_request(
    topic: str, topic_id: str, target: str, until: str | None, retention: str | None, pause: str
) -> InPlaceRequest:
    for key, value in (("topic-id", topic_id), ("as", target), ("until", until)):
        if value:
            raise SettingInvalid(where="flags", key=key, value=value, expected="expected without --in-place")
    retention_ms = _selection(topic, "", "", None, retention).retention_ms
    return InPlaceRequest(topic, "", retention_ms, duration_ms(pause, "pause") / 1000)


def _until_ms(until: str | None) -> int | None:
    return past_ms(until, "until") if until else None


def _show_plan(planned: RestorePlan, options: Options) -> None:
    rows = [asdict(one) for one in planned.partitions]
    document: dict[str, Any] = {
        **asdict(planned.request),
        "partitions": rows,
        "log_bytes": planned.log_bytes,
        "configs": dict(planned.configs),
        "refusals": list(planned.refusals),
        "warnings": list(planned.warnings),
    }
    texts = [f"refused: {one}" for one in planned.refusals] + [f"warning: {one}" for one in planned.warnings]
    show(document, options.form, Group(table_of(rows, _PLAN, empty="no partitions"), *texts))


def _show_in_place(planned: InPlacePlan, options: Options) -> None:
    rows = [asdict(one) for one in planned.partitions]
    document: dict[str, Any] = {
        **asdict(planned.request),
        "needed": planned.needed,
        "partitions": rows,
        "log_bytes": planned.log_bytes,
        "refusals": list(planned.refusals),
        "warnings": list(planned.warnings),
    }
    texts = [f"refused: {one}" for one in planned.refusals] + [f"warning: {one}" for one in planned.warnings]
    show(document, options.form, Group(table_of(rows, _IN_PLACE, empty="no partitions"), *texts))


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise SettingInvalid(where="flags", key="sample", value=text, expected="expected 0% to 100%")
    return share


def _client(access: ClusterAccess, *, controllers: bool = False) -> Client:
    return Client(access.bootstrap, access.security, controllers=controllers)


@asynccontextmanager
async def _open(path: Path, from_cluster: str = "") -> AsyncIterator[Opened]:
    settings = read_backup_settings(path)
    store = Store(settings.store)
    async with _client(settings.cluster) as client:
        cluster = from_cluster or (await client.cluster()).id or ""
        stores = [store] if settings.tier is None else [store, Store(settings.tier)]
        yield Opened(settings, client, store, Archive(cluster, stores), Catalogue(store, cluster))


@asynccontextmanager
async def _in_place_restorer(opened: Opened) -> AsyncIterator[InPlaceRestorer]:
    access, shadow = opened.settings.for_restore()
    async with _client(access, controllers=True) as controllers:
        yield InPlaceRestorer(opened.client, controllers, opened.archive, opened.catalogue, shadow)


@asynccontextmanager
async def _restorer(opened: Opened) -> AsyncIterator[Restorer]:
    access, shadow = opened.settings.for_restore()
    async with AsyncExitStack() as stack:
        controllers = await stack.enter_async_context(_client(access, controllers=True))
        yield Restorer(opened.client, controllers, opened.archive, opened.catalogue, shadow)
