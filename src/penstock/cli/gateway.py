"""`penstock gateway`: tenants' way to Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import hashlib
import logging
import secrets
import signal
import string
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import structlog
from cyclopts import App, Parameter, validators

from penstock.cli.output import show, table_of, tell
from penstock.cli.settings import Options
from penstock.fleet.passwords import PLATFORM_USER, PlatformKey
from penstock.gateway.calibration import Calibration
from penstock.gateway.config import API_KEY_LENGTH, API_SECRET_LENGTH, GatewayConfig
from penstock.gateway.metrics import Figures, MetricsServer
from penstock.gateway.pooled import Pooled
from penstock.gateway.pressure import PressureWatch
from penstock.gateway.provision import provision as provision_tenants
from penstock.gateway.routes import routes
from penstock.gateway.running import announce, end, figures, running, withdraw
from penstock.gateway.server import Gateway
from penstock.gateway.settings import Bounds, GatewaySettings, TenantsFrom, read_gateway_file
from penstock.gateway.shares import Reporter, Shares
from penstock.gateway.sources import FileSource
from penstock.gateway.states_topic import gateway_client, state_source
from penstock.gateway.supervisor import Seat, Supervisor, Worker, as_worker, hold_ports
from penstock.gateway.tally import WORKERS_MAX, Tally
from penstock.gateway.throttled import throttled_by
from penstock.gateway.tuned import Tuning
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security, tls_trusting
from penstock.model.errors import Exit
from penstock.model.errors.gateway import GatewayNotRunning
from penstock.model.errors.settings import ExtraMissing

app = App(name="gateway", help="Tenants' way to Kafka: serve, look, drain, provision, make keys.")

GARBAGE_CHECKED_EVERY = 20_000  # allocations; only ended connections leave cycles, of some fifty objects each

METRICS_AGAIN_SECONDS = 1.0  # between two tries for a port that a predecessor has
DRAIN_SECONDS_MORE = 15.0  # than a gateway gives its clients
_STATUS = {
    "GATEWAY": "gateway",
    "PROCESS": "pid",
    "SECONDS": "seconds",
    "CONNECTIONS": "connections",
    "TENANTS": "tenants",
    "DENIALS": "denials",
    "BOOTSTRAP": "bootstrap",
}

ConfigFile = Annotated[Path, Parameter(help="Settings, brokers and tenants.", negative="")]


@app.command
def run(
    *,
    config: ConfigFile = Path("gateway.yaml"),
    workers: Annotated[
        int | None,
        Parameter(
            help="Processes on the same ports, which share all limits. [default: the file's, or 1]",
            show_default=False,
            validator=validators.Number(gte=1, lte=WORKERS_MAX),
        ),
    ] = None,
    until_stdin_ends: Annotated[
        bool, Parameter(help="End when whoever started it does.", negative="")
    ] = False,
) -> int:
    """Serve tenants until told to stop. SIGTERM drains; tenants are followed while it runs.

    Example:  penstock gateway run --config gateway.yaml
    """
    try:
        import uvloop
    except ImportError as missing:
        raise ExtraMissing(what="the gateway", module="uvloop", extra="platform") from missing
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    settings, tenants = read_gateway_file(config)
    if workers is not None:
        settings = replace(settings, workers=workers)
    gc.set_threshold(GARBAGE_CHECKED_EVERY)
    tally, seat = Tally(settings.workers), None
    if settings.workers > 1:
        held, settings, tenants = hold_ports(settings, tenants)
        found = _supervisor(settings, tenants, config, tally, until_stdin_ends=until_stdin_ends).run()
        for port in held:
            port.close()
        if not isinstance(found, Seat):
            return found
        seat, until_stdin_ends = found, False
        tally.sit(seat.index)
        settings = as_worker(settings, seat.index)
    uvloop.run(_serve(settings, tenants, config, tally, seat, until_stdin_ends=until_stdin_ends))
    return Exit.FINE


def _supervisor(
    settings: GatewaySettings, tenants: GatewayConfig, path: Path, tally: Tally, *, until_stdin_ends: bool
) -> Supervisor:
    """Of workers that share what is prepared here: plans and routes, which take their time."""
    routes(restricted=False)
    gc.collect()
    gc.freeze()

    def serving(workers: Sequence[Worker]) -> None:
        seen = [{"worker": one.index, "pid": one.pid, **(one.said or {})} for one in workers]
        bootstrap = seen[0]["bootstrap"]
        announce(path, settings.gateway, bootstrap, workers=seen)
        tell(f"gateway {settings.gateway} serves with {len(seen)} workers at {bootstrap}")

    return Supervisor(
        settings.workers,
        reclaim=lambda index: tally.columns[index].reclaim(),
        serving=serving,
        ended=lambda: withdraw(path),
        drain_seconds=settings.bounds.drain_seconds + DRAIN_SECONDS_MORE,
        until_stdin_ends=until_stdin_ends,
    )


async def _serve(
    settings: GatewaySettings,
    tenants: GatewayConfig,
    path: Path,
    tally: Tally,
    seat: Seat | None,
    *,
    until_stdin_ends: bool,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_ends:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    if seat is not None:
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the parent hears it, too, and drains us
        loop.add_reader(seat.line.fileno(), stop.set)  # nothing is said to us: it is the parent's end
    async with contextlib.AsyncExitStack() as ending:
        starting = asyncio.create_task(_started(settings, tenants, path, tally, ending, stop))
        told = asyncio.create_task(stop.wait())
        await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            shown = await starting
            await _until(stop, shown, path, seat)
        else:  # no broker was reached so far
            starting.cancel()


async def _started(
    settings: GatewaySettings,
    tenants: GatewayConfig,
    path: Path,
    tally: Tally,
    ending: contextlib.AsyncExitStack,
    stop: asyncio.Event,
) -> Figures:
    """With limits: those of its file, or its share of what the cluster's state says."""
    if settings.tenants_from is TenantsFrom.FILE:
        pooled = Pooled(tally)
        tuning = Tuning(pooled.quotas, gateways=settings.gateways)
        calibration = Calibration(tenants.brokers, tally)
        session = throttled_by(pooled.quotas, tuning, calibration)
        gateway = Gateway(settings, tenants, source=FileSource(path), session=session, tally=tally)
        await gateway.start()
        _beside([pooled.run(gateway), *_watching(gateway, tuning, calibration, None)], ending, stop)
        return Figures(gateway, tuning, calibration)
    source = state_source(settings, tenants)
    tenants = await source.first()
    client = await ending.enter_async_context(gateway_client(settings, tenants))
    shares, reporter = Shares(client, settings.gateway, settings.gateways), Reporter()
    tuning = Tuning(shares.quotas, gateways=settings.gateways)
    calibration = Calibration(tenants.brokers, tally)
    session = throttled_by(shares.quotas, tuning, calibration)
    gateway = Gateway(settings, tenants, source=source, evidence=reporter, session=session, tally=tally)
    await gateway.start()
    ending.push_async_callback(reporter.flush, client)
    watching = _watching(gateway, tuning, calibration, client)
    _beside([shares.run(gateway), reporter.run(client), *watching], ending, stop)
    return Figures(gateway, tuning, calibration)


def _watching(
    gateway: Gateway, tuning: Tuning, calibration: Calibration, client: Client | None
) -> list[Coroutine[Any, Any, None]]:
    """Who looks after what brokers have to do."""
    watch = PressureWatch(gateway)
    return [watch.run(client), tuning.run(gateway, watch), calibration.run()]


def _beside(
    works: Iterable[Coroutine[Any, Any, None]],
    ending: contextlib.AsyncExitStack,
    stop: asyncio.Event | None = None,
) -> None:
    for work in works:
        task = asyncio.create_task(work)
        if stop is not None:
            task.add_done_callback(lambda _: stop.set())  # by itself none of them ends but by an error
        ending.push_async_callback(_ended, task)


async def _ended(task: asyncio.Task[None]) -> None:
    """Stop it, or raise what it has ended with."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


async def _until(stop: asyncio.Event, shown: Figures, path: Path, seat: Seat | None) -> None:
    gateway, settings = shown.gateway, shown.gateway.settings
    gc.collect()
    gc.freeze()  # plans and routes stay: they need not be looked through again

    def say(metrics: str) -> None:
        if seat is not None:
            seat.say(bootstrap=gateway.bootstrap, metrics=metrics)
        else:
            announce(path, settings.gateway, gateway.bootstrap, metrics)

    async with contextlib.AsyncExitStack() as ending:
        if seat is None:
            ending.callback(withdraw, path)
        if settings.metrics_port is None:
            say("")
        elif not _metrics(shown, settings.metrics_port, ending, say):
            say("")  # for now: its predecessor has the port
            _beside([_metrics_later(shown, settings.metrics_port, ending, say)], ending)
        if seat is None:
            count = len(gateway.config.tenants)
            tell(f"gateway {settings.gateway} serves {count} tenants at {gateway.bootstrap}")
        await stop.wait()
        tell("draining")
        await gateway.drain()


def _metrics(
    shown: Figures, port: int, ending: contextlib.AsyncExitStack, say: Callable[[str], None]
) -> bool:
    """Serve its figures, and say where; False if another has the port."""
    host = shown.gateway.settings.listen
    try:
        metrics = MetricsServer(shown, host, port)
    except OSError as failure:
        if failure.errno != errno.EADDRINUSE:
            raise
        return False
    ending.callback(metrics.close)
    address = f"http://{host}:{metrics.port}/metrics"
    tell(f"metrics on {address}")
    say(address)
    return True


async def _metrics_later(
    shown: Figures, port: int, ending: contextlib.AsyncExitStack, say: Callable[[str], None]
) -> None:
    while not _metrics(shown, port, ending, say):
        await asyncio.sleep(METRICS_AGAIN_SECONDS)


@app.command
def status(*, config: ConfigFile = Path("gateway.yaml"), options: Options = Options()) -> int:
    """Show the gateways that run with this file, worker by worker. Figures need its `metrics_port`.

    Example:  penstock gateway status --config gateway.yaml
    """
    rows = [
        {
            "gateway": process.gateway,
            "pid": process.pid,
            "seconds": int(time.time() - one.started),
            **figures(process.metrics),
            "bootstrap": one.bootstrap,
        }
        for one in running(config)
        for process in one.processes
    ]
    if not rows:
        raise GatewayNotRunning(config=config)
    show(rows, options.form, table_of(rows, _STATUS))
    return Exit.FINE


@app.command
def drain(
    *,
    config: ConfigFile = Path("gateway.yaml"),
    but_newest: Annotated[
        bool, Parameter(help="Leave the one that was started last: it takes over.", negative="")
    ] = False,
) -> int:
    """Have gateways take nothing new, answer what is in flight, and end; returns when they have.

    Example:  penstock gateway drain --but-newest
    """
    found = running(config)
    if not found:
        raise GatewayNotRunning(config=config)
    chosen = found[:-1] if but_newest else found
    for one in end(chosen, Bounds().drain_seconds + DRAIN_SECONDS_MORE):
        tell(f"gateway {one.gateway} (process {one.pid}) has ended")
    return Exit.FINE


@app.command
async def provision(
    *,
    bootstrap: Annotated[str, Parameter(help="Where the platform itself talks to the brokers.")],
    config: ConfigFile = Path("gateway.yaml"),
) -> int:
    """Make the Kafka users, ACLs and byte rates of every tenant in the file. Doing it again changes nothing.

    Example:  penstock gateway provision --bootstrap 127.0.0.1:19090
    """
    settings, tenants = read_gateway_file(config)
    key = PlatformKey(settings.platform_key.read_bytes())
    login = Login(PLATFORM_USER, key.password(PLATFORM_USER), Mechanism.SCRAM_SHA_512)
    tls = tls_trusting(settings.upstream_ca) if settings.upstream_ca is not None else None
    async with Client(bootstrap, Security(login, tls)) as client:
        await provision_tenants(client, tenants.tenants, key)
    tell(f"{len(tenants.tenants)} tenants are provisioned")
    return Exit.FINE


@app.command
def key(*, options: Options = Options()) -> int:
    """Make an API key. Its secret is shown here and nowhere else; the file takes its hash.

    Example:  penstock gateway key -o json
    """
    letters = string.ascii_uppercase + string.digits
    secret = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(API_SECRET_LENGTH))
    made = {
        "id": "".join(secrets.choice(letters) for _ in range(API_KEY_LENGTH)),
        "secret": secret,
        "secret_sha256": hashlib.sha256(secret.encode()).hexdigest(),
    }
    rows = [{"part": part, "value": value} for part, value in made.items()]
    show(made, options.form, table_of(rows, {"PART": "part", "VALUE": "value"}))
    return Exit.FINE
