"""`penstock gateway`: tenants' way to Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
import secrets
import signal
import string
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
from cyclopts import App, Parameter

from penstock.cli.output import show, table_of, tell
from penstock.cli.settings import Options
from penstock.fleet.passwords import PLATFORM_USER, PlatformKey
from penstock.gateway.config import API_KEY_LENGTH, API_SECRET_LENGTH, GatewayConfig
from penstock.gateway.metrics import MetricsServer
from penstock.gateway.pressure import PressureWatch
from penstock.gateway.provision import provision as provision_tenants
from penstock.gateway.running import announce, end, figures, running
from penstock.gateway.server import Gateway
from penstock.gateway.settings import Bounds, GatewaySettings, TenantsFrom, read_gateway_file
from penstock.gateway.shares import Reporter, Shares
from penstock.gateway.sources import FileSource
from penstock.gateway.states_topic import gateway_client, state_source
from penstock.gateway.throttled import throttled_by
from penstock.gateway.throttling import Quotas
from penstock.gateway.tuned import Tuning
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security, tls_trusting
from penstock.model.errors import Exit
from penstock.model.errors.gateway import GatewayNotRunning
from penstock.model.errors.settings import ExtraMissing

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

app = App(name="gateway", help="Tenants' way to Kafka: serve, look, drain, provision, make keys.")

GARBAGE_CHECKED_EVERY = 20_000  # allocations; only ended connections leave cycles, of some fifty objects each

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
    gc.set_threshold(GARBAGE_CHECKED_EVERY)
    uvloop.run(_serve(settings, tenants, config, until_stdin_ends=until_stdin_ends))
    return Exit.FINE


async def _serve(
    settings: GatewaySettings, tenants: GatewayConfig, path: Path, *, until_stdin_ends: bool
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_ends:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    async with contextlib.AsyncExitStack() as ending:
        gateway, tuning = await _started(settings, tenants, path, ending, stop)
        await _until(stop, gateway, tuning, path)


async def _started(
    settings: GatewaySettings,
    tenants: GatewayConfig,
    path: Path,
    ending: contextlib.AsyncExitStack,
    stop: asyncio.Event,
) -> tuple[Gateway, Tuning]:
    """With limits: those of its file, or its share of what the cluster's state says."""
    if settings.tenants_from is TenantsFrom.FILE:
        quotas = Quotas()
        tuning = Tuning(quotas)
        gateway = Gateway(settings, tenants, source=FileSource(path), session=throttled_by(quotas, tuning))
        await gateway.start()
        _beside(_watching(gateway, tuning, None), ending, stop)
        return gateway, tuning
    source = state_source(settings, tenants)
    tenants = await source.first()
    client = await ending.enter_async_context(gateway_client(settings, tenants))
    shares, reporter = Shares(client, settings.gateway, settings.gateways), Reporter()
    tuning = Tuning(shares.quotas)
    gateway = Gateway(
        settings, tenants, source=source, evidence=reporter, session=throttled_by(shares.quotas, tuning)
    )
    await gateway.start()
    ending.push_async_callback(reporter.flush, client)
    _beside([shares.run(gateway), reporter.run(client), *_watching(gateway, tuning, client)], ending, stop)
    return gateway, tuning


def _watching(gateway: Gateway, tuning: Tuning, client: Client | None) -> list[Coroutine[Any, Any, None]]:
    """Who looks after brokers that have too much to do."""
    watch = PressureWatch(gateway)
    return [watch.run(client), tuning.run(gateway, watch)]


def _beside(
    works: Iterable[Coroutine[Any, Any, None]], ending: contextlib.AsyncExitStack, stop: asyncio.Event
) -> None:
    for work in works:
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: stop.set())  # by itself none of them ends but by an error
        ending.push_async_callback(_ended, task)


async def _ended(task: asyncio.Task[None]) -> None:
    """Stop it, or raise what it has ended with."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


async def _until(stop: asyncio.Event, gateway: Gateway, tuning: Tuning, path: Path) -> None:
    settings = gateway.settings
    gc.collect()
    gc.freeze()  # plans and routes stay: they need not be looked through again
    metrics, address = None, ""
    if settings.metrics_port is not None:
        metrics = MetricsServer(gateway, settings.listen, settings.metrics_port, tuning)
        address = f"http://{settings.listen}:{metrics.port}/metrics"
        tell(f"metrics on {address}")
    announced = announce(path, settings.gateway, gateway.bootstrap, address)
    try:
        tell(
            f"gateway {settings.gateway} serves {len(gateway.config.tenants)} tenants at {gateway.bootstrap}"
        )
        await stop.wait()
        tell("draining")
        await gateway.drain()
    finally:
        announced.unlink(missing_ok=True)
        if metrics is not None:
            metrics.close()


@app.command
def status(*, config: ConfigFile = Path("gateway.yaml"), options: Options = Options()) -> int:
    """Show the gateways that run with this file. Connections and denials need its `metrics_port`.

    Example:  penstock gateway status --config gateway.yaml
    """
    found = running(config)
    rows = [
        {
            "gateway": one.gateway,
            "pid": one.pid,
            "seconds": int(time.time() - one.started),
            **figures(one.metrics),
            "bootstrap": one.bootstrap,
        }
        for one in found
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
    """Make the Kafka users and ACLs of every tenant in the file. Doing it again changes nothing.

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
