"""`penstock fleet`: the Kafka clusters underneath."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from getpass import getpass
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Group, RenderableType
from rich.text import Text

from penstock.cli.operator.controllers import app as controllers_app
from penstock.cli.operator.fleet_roll import app as roll_app
from penstock.cli.operator.fleet_roll import finalize, versions
from penstock.cli.operator.resize import grow, shrink
from penstock.cli.operator.sizing import COMMANDS, profiles
from penstock.cli.output import Format, progress, report, show, table_of
from penstock.cli.settings import Options
from penstock.cli.tenant.client_settings import ClientChoice, To, client_settings, hand_out
from penstock.fleet.adopted import adoption
from penstock.fleet.credentials.passwords import PLATFORM_USER, SCRAM_MECHANISM
from penstock.fleet.jars import KAFKA_VERSION, cache_directory, fetch_jars
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import load_fleet
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.versions import pin_of
from penstock.kafka.security import Login, Mechanism
from penstock.model.errors import Exit
from penstock.model.errors.fleet import ClusterUnknown
from penstock.model.errors.settings import SettingInvalid
from penstock.model.plural import counted

app = App(
    name="fleet",
    help="The Kafka clusters underneath: jars, connections, adoption, size, cost, rolls, controllers.",
)
for _name, _command in COMMANDS.items():
    app.command(_command, name=_name)
app.command(profiles)
app.command(grow)
app.command(shrink)
app.command(controllers_app)
app.command(roll_app)
app.command(versions)
upgrade = App(name="upgrade", help="Raise the features of a cluster after its nodes run a newer version.")
upgrade.command(finalize)
app.command(upgrade)


@app.command
async def fetch(
    *,
    force: Annotated[bool, Parameter(help="Fetch again what is already cached.", negative="")] = False,
    kafka: Annotated[
        str | None, Parameter(help="Kafka version; pinned by its checksums.", show_default=KAFKA_VERSION)
    ] = None,
    options: Options = Options(),
) -> int:
    """Resolve Kafka's jars with Maven, verify them, and create the class-data archive.

    Example:  penstock fleet fetch
    """
    cache, version = cache_directory(), kafka or KAFKA_VERSION
    if force:
        with progress(f"fetching Kafka {version} with Maven"):
            fetch_jars(cache, force=True, pin=pin_of(cache, version))
    runtime = await obtain_runtime(progress, version)
    data = {
        "kafka": version,
        "jars": str(runtime.jars.directory),
        "archive": str(runtime.archive),
    }
    rows = [{"part": part, "where": where} for part, where in data.items()]
    if options.form is not Format.TABLE:
        show(data, options.form, table_of(rows, {"PART": "part", "WHERE": "where"}))
    return Exit.FINE


@app.command
def connect(
    *,
    client: ClientChoice = "java",
    cluster: Annotated[str | None, Parameter(help="Which cluster.", show_default="the first")] = None,
    to: To = None,
    options: Options = Options(),
) -> int:
    """Print settings for a client that logs in as the platform itself. They contain its password.

    Example:  penstock fleet connect --to .penstock/client.properties
    """
    fleet = load_fleet(options.layout)
    chosen = next((c for c in fleet.clusters if cluster in (None, c.name)), None)
    if chosen is None:
        known = ", ".join(c.name for c in fleet.clusters) or "none yet"
        raise ClusterUnknown(cluster=cluster or "home", known=known)
    settings = client_settings(
        chosen.cluster.spec.bootstrap(),
        Login(PLATFORM_USER, fleet.access.credentials.platform, Mechanism(SCRAM_MECHANISM)),
        client,
        ca=str(fleet.access.ca) if chosen.cluster.spec.tls else None,
    )
    hand_out(settings, client, options.form, to)
    return Exit.FINE


@app.command
async def adopt(
    name: Annotated[str, Parameter(help="Its name here.")],
    *,
    bootstrap: Annotated[str, Parameter(help="Its bootstrap address, host:port[,…].")],
    user: Annotated[str | None, Parameter(help="SASL user; no login if left out.")] = None,
    password_file: Annotated[Path | None, Parameter(help="File with the password.")] = None,
    mechanism: Annotated[Mechanism, Parameter(help="SASL mechanism.")] = Mechanism.SCRAM_SHA_512,
    tls: Annotated[bool, Parameter(help="Connect with TLS.", negative="")] = False,
    ca: Annotated[Path | None, Parameter(help="CA certificate, PEM; the system's CAs if left out.")] = None,
    certificate: Annotated[Path | None, Parameter(help="Client certificate for mTLS, PEM.")] = None,
    key: Annotated[Path | None, Parameter(help="Its key, if it is in another file.")] = None,
    server_name: Annotated[
        str | None, Parameter(help="Name to verify, if certificates do not name the brokers' hosts.")
    ] = None,
    token_url: Annotated[str | None, Parameter(help="Token endpoint, for OAUTHBEARER.")] = None,
    client_id: Annotated[str | None, Parameter(help="OAuth client.")] = None,
    client_secret_file: Annotated[Path | None, Parameter(help="File with its secret.")] = None,
    scope: Annotated[str | None, Parameter(help="Requested scope.")] = None,
    token_ca: Annotated[Path | None, Parameter(help="CA certificate of the token endpoint.")] = None,
    metrics: Annotated[str | None, Parameter(help="Brokers' metrics agents, host:port[,…].")] = None,
    restart: Annotated[
        str | None, Parameter(help="Command that restarts a broker, with {host}.", show_default="by hand")
    ] = None,
    options: Options = Options(),
) -> int:
    """Adopt a cluster that runs elsewhere: probe its capabilities and save them. Changes nothing on it.

    Example:  penstock fleet adopt east --bootstrap kafka-1:9092 --user penstock --password-file secret --tls
    """
    target = adoption.Target(
        bootstrap=bootstrap,
        user=user,
        password=_password(password_file) if user else None,
        mechanism=mechanism,
        tls=tls or ca is not None or certificate is not None,
        ca=_path(ca),
        metrics=tuple(metrics.split(",")) if metrics else (),
        certificate=_path(certificate),
        key=_path(key),
        server_name=server_name,
        token_url=token_url,
        client_id=client_id,
        client_secret=_password(client_secret_file, "--client-secret-file") if token_url else None,
        scope=scope,
        token_ca=_path(token_ca),
        restart=restart,
    )
    adopted = await adoption.adopt(options.layout, name, target)
    show(asdict(adopted), options.form, _adopted_view(adopted))
    return Exit.FINE


@app.command(name="list")
def list_(*, options: Options = Options()) -> int:
    """List the embedded and the adopted clusters.

    Example:  penstock fleet list -o json
    """
    layout = options.layout
    rows = _embedded_rows(layout) if layout.fleet_file.exists() else []
    for a in adoption.list_adopted(layout):
        rows.append(_row(a.name, "adopted", a.kafka_id, a.brokers, a.zones, a.bootstrap))
    columns = {"NAME": "name", "KIND": "kind", "KAFKA ID": "kafka_id", "BROKERS": "brokers"}
    columns |= {"ZONES": "zones", "BOOTSTRAP": "bootstrap"}
    show(
        rows,
        options.form,
        table_of(rows, columns, empty="no clusters: start one with `penstock up`, or adopt one"),
    )
    return Exit.FINE


@app.command
def capabilities(
    name: Annotated[str, Parameter(help="An adopted cluster.")],
    *,
    options: Options = Options(),
) -> int:
    """Show the capabilities of an adopted cluster, and what the missing ones are needed for.

    Example:  penstock fleet capabilities east
    """
    adopted = adoption.load_adopted(options.layout, name)
    show([asdict(row) for row in adopted.capabilities], options.form, _adopted_view(adopted))
    return Exit.FINE


@app.command
def abandon(
    name: Annotated[str, Parameter(help="An adopted cluster.")],
    *,
    options: Options = Options(),
) -> int:
    """Forget an adopted cluster. Nothing happens to the cluster itself.

    Example:  penstock fleet abandon east
    """
    adoption.abandon(options.layout, name)
    report(f"{name} is no longer adopted; the cluster itself keeps running")
    return Exit.FINE


@app.command
async def rotate(*, options: Options = Options()) -> int:
    """Renew the certificate of every node, without a restart.

    Example:  penstock fleet rotate
    """
    from penstock.fleet.credentials.certificate_rotation import rotate_certificates

    rotated = await rotate_certificates(load_fleet(options.layout))
    rows = [{"node": node, "certificate": "renewed"} for node in rotated]
    show(rows, options.form, table_of(rows, {"NODE": "node", "CERTIFICATE": "certificate"}))
    return Exit.FINE


def _embedded_rows(layout: Layout) -> list[dict[str, object]]:
    clusters = [c.cluster for c in load_fleet(layout).clusters]
    return [
        _row(c.spec.name, "embedded", c.kafka_id, len(c.spec.brokers), c.spec.zones, c.spec.bootstrap())
        for c in clusters
    ]


def _row(
    name: str, kind: str, kafka_id: str, brokers: int, zones: Sequence[str], bootstrap: str
) -> dict[str, object]:
    row: dict[str, object] = {"name": name, "kind": kind, "kafka_id": kafka_id, "brokers": brokers}
    return row | {"zones": ",".join(zones), "bootstrap": bootstrap}


def _path(path: Path | None) -> str | None:
    return str(path.absolute()) if path else None


def _password(path: Path | None, flag: str = "--password-file") -> str:
    """From a file or a prompt: every user of the machine sees command lines."""
    if path is None:
        if not sys.stdin.isatty():
            raise SettingInvalid(
                where="penstock fleet adopt", key=flag, value=None, expected="expected a file"
            )
        return getpass("password: ")
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise SettingInvalid(
            where="penstock fleet adopt",
            key=flag,
            value=str(path),
            expected=f"but {error.strerror}",
        ) from error


def _adopted_view(adopted: adoption.Adopted) -> RenderableType:
    rows = [asdict(row) for row in adopted.capabilities]
    zones = ", ".join(adopted.zones) or "none"
    head = f"[bold]{adopted.name}[/] {adopted.kafka_id}: {counted(adopted.brokers, 'broker')}, zones: {zones}"
    columns = {
        "CAPABILITY": "capability",
        "AVAILABLE": "available",
        "NEEDED FOR": "needed_for",
        "WHY NOT": "reason",
    }
    grants = ["These commands grant the missing rights:", *adopted.grants] if adopted.grants else []
    return Group(head, table_of(rows, columns), *(Text(line, overflow="fold") for line in grants))
