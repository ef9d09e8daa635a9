"""`penstock gateway`: the gateways through which tenants reach Kafka."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter, validators

from penstock.audit.topics import ensure_durability_topic
from penstock.cli.output import report, show, table_of
from penstock.cli.remote import connected
from penstock.cli.settings import LogLines, Options, RemoteOptions, start_logs
from penstock.fleet.credentials.gateway_credentials import GatewayCredentials, tenants_key
from penstock.fleet.credentials.passwords import PLATFORM_USER, PlatformKey
from penstock.gateway.limits.shared_counters import WORKERS_MAX
from penstock.gateway.process.run import DRAIN_SECONDS_MORE, run_gateway
from penstock.gateway.process.run_file import end, headline_metrics, running
from penstock.gateway.process.tenant_source import provision_gateways
from penstock.gateway.settings import Bounds, read_gateway_file
from penstock.gateway.tenancy.tenant_provisioning import provision as provision_tenants
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.log_lines import announce
from penstock.model.api_keys import new_api_key
from penstock.model.errors import Exit
from penstock.model.errors.fleet import ClusterReplaced, ClusterUnknown
from penstock.model.errors.gateway import GatewayNotRunning
from penstock.model.plural import counted
from penstock.quota.topics import ensure_acks_topic

app = App(name="gateway", help="Gateways: run, list, status, drain, credentials, provision, keys.")

_STATUS = {
    "GATEWAY": "gateway",
    "PROCESS": "pid",
    "SECONDS": "seconds",
    "CONNECTIONS": "connections",
    "TENANTS": "tenants",
    "DENIALS": "denials",
    "BOOTSTRAP": "bootstrap",
}

_LIST = {
    "GATEWAY": "gateway", "CLUSTER": "cluster", "STATE": "state", "SILENT_SECONDS": "silent_seconds",
    "CONNECTIONS": "connections", "STATE_AGE_SECONDS": "state_age_seconds", "BOOTSTRAP": "bootstrap",
    "INSTANCE": "instance",
}  # fmt: skip

ConfigFile = Annotated[Path, Parameter(help="File with settings, brokers and tenants.", negative="")]


@app.command
def run(
    *,
    config: ConfigFile = Path("gateway.yaml"),
    workers: Annotated[
        int | None,
        Parameter(
            help="Processes that serve the same ports and share all limits. [default: the file's, or 1]",
            show_default=False,
            validator=validators.Number(gte=1, lte=WORKERS_MAX),
        ),
    ] = None,
    log_format: LogLines = None,
    until_stdin_ends: Annotated[bool, Parameter(help="Stop when standard input ends.", negative="")] = False,
) -> int:
    """Serve tenants until SIGTERM, which drains. Changes of the file take effect while it runs.

    Example:  penstock gateway run --config gateway.yaml
    """
    start_logs(log_format)
    return run_gateway(config, workers=workers, until_stdin_ends=until_stdin_ends, report=announce)


@app.command
def status(*, config: ConfigFile = Path("gateway.yaml"), options: Options = Options()) -> int:
    """Show the gateways that run with this file, by worker. Counters need its `metrics_port`.

    Example:  penstock gateway status --config gateway.yaml
    """
    rows = [
        {
            "gateway": process.gateway,
            "pid": process.pid,
            "seconds": int(time.time() - one.since),
            **headline_metrics(process.metrics),
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
    but_newest: Annotated[bool, Parameter(help="Keep the newest, which takes over.", negative="")] = False,
) -> int:
    """Drain gateways: no new requests, responses for those in flight, then exit. Waits for the end.

    Example:  penstock gateway drain --but-newest
    """
    gateways = running(config)
    if not gateways:
        raise GatewayNotRunning(config=config)
    chosen = gateways[:-1] if but_newest else gateways
    for one in end(chosen, Bounds().drain_seconds + DRAIN_SECONDS_MORE):
        report(f"gateway {one.gateway} (process {one.pid}) has exited")
    return Exit.FINE


@app.command
async def provision(
    *,
    bootstrap: Annotated[str, Parameter(help="Bootstrap address of the brokers' internal listener.")],
    config: ConfigFile = Path("gateway.yaml"),
) -> int:
    """Create the Kafka users, ACLs and quotas of every tenant in the file, and the topic of ack evidence.

    Repeating it changes nothing.

    Example:  penstock gateway provision --bootstrap 127.0.0.1:19090
    """
    settings, tenants = read_gateway_file(config)
    key = PlatformKey(settings.platform_key.read_bytes())
    login = Login(PLATFORM_USER, key.password(PLATFORM_USER), Mechanism.SCRAM_SHA_512)
    tls = tls_context(settings.upstream_ca) if settings.upstream_ca is not None else None
    async with Client(bootstrap, Security(login, tls)) as client:
        await provision_tenants(client, tenants.tenants, key)
        await provision_gateways(client, key)
        await ensure_acks_topic(client)
        await ensure_durability_topic(client)
    report(f"provisioned {counted(len(tenants.tenants), 'tenant')}")
    return Exit.FINE


@app.command(name="list")
def list_(*, options: RemoteOptions = RemoteOptions()) -> int:
    """Show the gateways that have registered themselves, on any host, and whether they live.

    Example:  penstock gateway list
    """
    rows = list(connected(options).every("/gateways"))
    show(rows, options.form, table_of(rows, _LIST, empty="no gateway has registered itself"))
    return Exit.FINE


@app.command
async def credentials(
    cluster: Annotated[str, Parameter(help="A cluster that the control plane's settings name.")],
    *,
    config: Annotated[Path, Parameter(help="The control plane's settings.", negative="")],
    to: Annotated[Path, Parameter(help="Where to write the credentials.", negative="")],
) -> int:
    """Write the credentials that gateways of one physical cluster need. They open no other cluster.

    Example:  penstock gateway credentials home --config control.yaml --to gateway.credentials
    """
    from penstock.control.physical.configured import cluster_id
    from penstock.control.settings import read_control_settings
    from penstock.kafka.admin import brokers

    settings = read_control_settings(config, os.environ)
    clusters = {each.name: each for each in (settings.home, *settings.clusters)}
    if cluster not in clusters:
        raise ClusterUnknown(cluster=cluster, known=", ".join(clusters))
    chosen = clusters[cluster]
    async with Client(chosen.bootstrap, chosen.security) as client:
        kafka_id = (await brokers.describe(client)).cluster_id
    if chosen.kafka_id not in ("", kafka_id):
        raise ClusterReplaced(
            name=cluster, kafka_id=chosen.kafka_id, bootstrap=chosen.bootstrap, other=kafka_id
        )
    secret = tenants_key(settings.platform_key, kafka_id, chosen.key_generation)
    GatewayCredentials(cluster_id(kafka_id), kafka_id, secret, chosen.key_generation).write(to)
    report(f"{to}: credentials for gateways of {cluster}, Kafka cluster {kafka_id}")
    return Exit.FINE


@app.command
def key(*, options: Options = Options()) -> int:
    """Generate an API key. The secret is shown only now; put its hash into the file.

    Example:  penstock gateway key -o json
    """
    new = new_api_key(secrets.choice)
    made = {"id": new.id, "secret": new.secret, "secret_sha256": new.secret_sha256}
    rows = [{"part": part, "value": value} for part, value in made.items()]
    show(made, options.form, table_of(rows, {"PART": "part", "VALUE": "value"}))
    return Exit.FINE
