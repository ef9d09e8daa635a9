"""Runs a control plane as a process: the plane, its HTTP server, and their start and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import structlog
import uvicorn

from penstock.certificate_reload import ServerCertificate
from penstock.control.api.app import make_api
from penstock.control.health.notification import Notifier
from penstock.control.home import Home
from penstock.control.metrics import ControlMetrics, why_not_ready
from penstock.control.physical.addresses import root_token
from penstock.control.physical.cluster_access import Clusters
from penstock.control.physical.configured import provide, require_same, require_unclaimed
from penstock.control.physical.local import fleet_clusters
from penstock.control.physical.local_nodes import LocalNodes
from penstock.control.physical.provider import Provisioners
from penstock.control.service import CellWatch, ControlPlane, Role
from penstock.control.settings import check_listener
from penstock.control.size.sizing import SizingFiles
from penstock.metrics_server import metrics_at, on_loop, page_of
from penstock.model import fault_points
from penstock.model.api_keys import hashed
from penstock.model.backoff import Backoff
from penstock.model.errors import PenstockError, UnavailableError
from penstock.model.errors.fleet import ClusterReplaced, RightsMissing
from penstock.model.errors.gateway import ListenFailed
from penstock.model.errors.settings import SettingInvalid
from penstock.stop_signals import stop_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.certificate_reload import ServerTls
    from penstock.control.physical.cluster_access import ProvidedCluster
    from penstock.control.settings import ConfiguredCluster, ControlSettings
    from penstock.fleet.credentials.passwords import PlatformKey
    from penstock.fleet.layout import Layout

BACKLOG: Final = 1024
SHUTDOWN_SECONDS: Final = 3  # for requests in progress at shutdown
HOME_BACKOFF: Final = Backoff(0.5, 10.0)
REACH_SECONDS: Final = 10.0  # between two attempts to reach the other clusters
START_POLL_SECONDS: Final = 0.2  # until the registry is read

log = structlog.get_logger("penstock.control")


@dataclass(frozen=True, slots=True)
class ControlOptions:
    layout: Layout
    listen: str
    session_seconds: float
    cell_brokers: int = 0
    until_stdin_ends: bool = False
    relieves: bool = True  # whether full cells are relieved automatically
    allow_plaintext: bool = False
    metrics: str | None = None  # host:port of its management address


async def run_control(options: ControlOptions, *, report: Callable[[str], None]) -> None:
    """Runs a control plane for the fleet under a home."""
    check_listener(options.listen, False, allow_plaintext=options.allow_plaintext)
    fault_points.check_armed()
    stop = stop_event(until_stdin_ends=options.until_stdin_ends)
    server = Server.bind(options.listen)
    provided_clusters = fleet_clusters(options.layout, cell_brokers=options.cell_brokers)
    root = hashed(root_token(options.layout))
    clusters = Clusters(provided_clusters)
    provisioner = Provisioners(options.layout, cell_brokers=options.cell_brokers)
    plane = ControlPlane(
        Home(provided_clusters[0].id, server.url, provided_clusters, root),
        clusters,
        provisioner=provisioner,
        session_seconds=options.session_seconds,
        watch=CellWatch(relieves=options.relieves),
        nodes=LocalNodes(options.layout),
        sizing_files=SizingFiles(options.layout.home / "sizing"),
        layout=options.layout,
    )
    try:
        with _managed(options.metrics, stop, report) as metrics:
            metrics.plane = plane
            await server.serve(plane, stop, report=report)
    finally:
        await provisioner.close()
        await clusters.close()
        server.close()


async def run_configured_control(
    settings: ControlSettings, *, report: Callable[[str], None], until_stdin_ends: bool = False
) -> None:
    """Runs a control plane whose settings name its home, any Kafka cluster."""
    fault_points.check_armed()
    stop = stop_event(until_stdin_ends=until_stdin_ends)
    server = Server.bind(settings.listen, settings.tls, settings.advertised)
    clusters = Clusters(())
    try:
        with _managed(settings.metrics, stop, report) as metrics:
            home = await _reach_home(settings, stop, report)
            if home is None:
                return
            clusters.add(home)
            plane = metrics.plane = ControlPlane(
                Home(home.id, server.url, (home,), hashed(settings.token), settings=settings.digests()),
                clusters,
                session_seconds=settings.session_seconds,
                watch=CellWatch(relieves=settings.relieves),
                notifier=Notifier(settings.notify),
            )
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(watch_clusters(plane, settings))
                try:
                    await server.serve(plane, stop, report=report)
                finally:
                    watching.cancel()
    finally:
        await clusters.close()
        server.close()


@contextlib.contextmanager
def _managed(
    address: str | None, stop: asyncio.Event, report: Callable[[str], None]
) -> Iterator[ControlMetrics]:
    """Serves the management address: from before the home is reached until the control plane has stopped."""
    metrics, loop = ControlMetrics(), asyncio.get_running_loop()

    def not_ready() -> str:
        return "it is stopping" if stop.is_set() else why_not_ready(metrics.plane)

    with metrics_at(address, on_loop(loop, page_of(metrics)), not_ready=not_ready, loop=loop) as url:
        if url:
            report(f"metrics on {url}")
        yield metrics


async def _reach_home(
    settings: ControlSettings, stop: asyncio.Event, report: Callable[[str], None]
) -> ProvidedCluster | None:
    """The home cluster once it is reachable; None at shutdown. Other failures need an operator."""
    attempt = 0
    stopping = asyncio.create_task(stop.wait())
    while not stop.is_set():
        providing = asyncio.create_task(provide(settings.home, settings.platform_key))
        await asyncio.wait({providing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not providing.done():
            providing.cancel()
            break
        try:
            return await providing
        except UnavailableError as failure:
            if attempt == 0:
                report(f"waiting for the home cluster: {failure}")
            log.warning("home cluster not reached", error=str(failure), remedy=failure.advice)
        attempt += 1
        await asyncio.wait({stopping}, timeout=HOME_BACKOFF.seconds(attempt))
    return None


async def watch_clusters(plane: ControlPlane, settings: ControlSettings) -> None:
    """Adds each cluster once it is reachable, and follows what it allows; one that fails delays no other."""
    while True:
        complete = plane.role is not Role.STARTING
        if complete:
            for cluster in (settings.home, *settings.clusters):
                complete &= await _probe_cluster(plane, cluster, settings.platform_key)
        pause = settings.probe_seconds if complete else min(REACH_SECONDS, settings.probe_seconds)
        await asyncio.sleep(pause if plane.role is not Role.STARTING else START_POLL_SECONDS)


async def _probe_cluster(plane: ControlPlane, cluster: ConfiguredCluster, key: PlatformKey) -> bool:
    """Whether it could be probed; changes take effect at once."""
    try:
        provided = await provide(cluster, key)
        require_same(plane.registry, plane.clusters.known, provided)
        await require_unclaimed(plane.registry, provided)
        if not plane.has_current(provided):
            await plane.add_cluster(provided)
            for each in provided.missing:
                log.warning(
                    "capability missing",
                    cluster=cluster.name,
                    capability=each.capability,
                    feature=each.needed_for,
                    error=each.reason,
                )
    except PenstockError as failure:
        name, remedy = cluster.name, failure.advice
        log.warning("cluster not reached", cluster=name, error=str(failure), remedy=remedy)
        if isinstance(failure, ClusterReplaced | RightsMissing):
            with contextlib.suppress(PenstockError):  # logged above; the next probe repeats it
                await plane.report_unusable(name, failure, replaced=isinstance(failure, ClusterReplaced))
        return False
    return True


class Server:
    """The HTTP API on a bound socket. Nothing listens before `serve`, so callers are refused until then."""

    def __init__(self, listener: socket.socket, url: str, certificate: ServerCertificate | None) -> None:
        self._listener = listener
        self.url = url
        self._certificate = certificate

    @classmethod
    def bind(cls, listen: str, tls: ServerTls | None = None, advertised: str = "") -> Self:
        certificate = None if tls is None else ServerCertificate(tls)
        listener = _bind(listen)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return cls(listener, advertised or f"{'https' if tls else 'http'}://{shown}:{port}", certificate)

    async def serve(self, plane: ControlPlane, stop: asyncio.Event, *, report: Callable[[str], None]) -> None:
        """Runs the plane and its API until `stop`."""
        config = uvicorn.Config(
            make_api(plane),
            log_level="warning",
            log_config=None,  # its lines go to the log of this process
            lifespan="off",
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            backlog=BACKLOG,
        )
        config.load()
        if self._certificate is not None:
            config.ssl = self._certificate.context
        server = _UvicornServer(config)
        self._listener.listen(BACKLOG)  # before the report: callers may connect at once
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[self._listener]))
            follow = self._certificate.follow() if self._certificate is not None else asyncio.sleep(0)
            following = group.create_task(follow)
            report(f"control plane at {self.url}")
            await plane.run(stop)
            following.cancel()
            server.should_exit = True
            await serving

    def close(self) -> None:
        self._listener.close()


class _UvicornServer(uvicorn.Server):
    """Leaves signals to `stop_event`: the plane must leave its group first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[Any]:
        yield


def _bind(listen: str) -> socket.socket:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or not host or int(port) > 65535:
        raise SettingInvalid(
            where="penstock control run", key="--listen", value=listen, expected="expected host:port"
        )
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), int(port)))
    except OSError as failure:
        listener.close()
        raise ListenFailed(host=host, port=port, reason=failure.strerror or failure) from failure
    return listener
