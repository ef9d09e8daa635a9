"""`penstock fleet`: the Kafka clusters underneath."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from getpass import getpass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Group, RenderableType

from penstock.cli.output import Format, progress, show, table_of, tell
from penstock.cli.settings import Options
from penstock.fleet import adopt as adoption
from penstock.fleet.jars import KAFKA_VERSION, cache_directory, fetch_jars
from penstock.fleet.layout import Layout
from penstock.fleet.local import watched_fleet
from penstock.fleet.passwords import PLATFORM_USER, SCRAM_MECHANISM
from penstock.fleet.runtime import obtain_runtime
from penstock.kafka.security import Mechanism
from penstock.model.errors import Exit
from penstock.model.errors.fleet import ClusterUnknown
from penstock.model.errors.settings import SettingInvalid

app = App(name="fleet", help="The Kafka clusters underneath: jars, connections, adoption.")


@app.command
async def fetch(
    *,
    force: Annotated[bool, Parameter(help="Fetch again what is here already.", negative="")] = False,
    options: Options = Options(),
) -> int:
    """Resolve Kafka's jars with Maven, check them, and make the class-data archive.

    Example:  penstock fleet fetch
    """
    if force:
        with progress(f"fetching Kafka {KAFKA_VERSION} with Maven"):
            fetch_jars(cache_directory(), force=True)
    runtime = await obtain_runtime(progress)
    data = {
        "kafka": KAFKA_VERSION,
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
    client: Annotated[Literal["java", "python", "kcat"], Parameter(help="Whose form of settings.")] = "java",
    cluster: Annotated[str | None, Parameter(help="Which cluster.", show_default="the first")] = None,
    options: Options = Options(),
) -> int:
    """Print settings with which a client logs in as the platform itself. They hold its password.

    Example:  penstock fleet connect > client.properties
    """
    fleet = watched_fleet(options.layout)
    chosen = next((c for c in fleet.clusters if cluster in (None, c.name)), None)
    if chosen is None:
        known = ", ".join(c.name for c in fleet.clusters) or "none yet"
        raise ClusterUnknown(cluster=cluster or "home", known=known)
    settings = client_settings(
        chosen.cluster.spec.bootstrap(),
        password=fleet.access.credentials.platform,
        ca=str(fleet.access.ca) if chosen.cluster.spec.tls else None,
        client=client,
    )
    if options.form is not Format.TABLE:
        show(settings, options.form, "")
    elif client == "kcat":
        print(" ".join(["kcat", *(f"-X '{key}={value}'" for key, value in settings.items())]))
    else:
        for key, value in settings.items():
            print(f"{key}={value}")
    return Exit.FINE


@app.command
async def adopt(
    name: Annotated[str, Parameter(help="What to call it here.")],
    *,
    bootstrap: Annotated[str, Parameter(help="Its bootstrap address, host:port[,…].")],
    user: Annotated[str | None, Parameter(help="SASL user; none means no login.")] = None,
    password_file: Annotated[Path | None, Parameter(help="A file that holds the password.")] = None,
    mechanism: Annotated[Mechanism, Parameter(help="SASL mechanism.")] = Mechanism.SCRAM_SHA_512,
    tls: Annotated[bool, Parameter(help="Connect by TLS.", negative="")] = False,
    ca: Annotated[Path | None, Parameter(help="The CA to trust, PEM; the system's if left out.")] = None,
    metrics: Annotated[str | None, Parameter(help="Brokers' metrics agents, host:port[,…].")] = None,
    options: Options = Options(),
) -> int:
    """Take in a cluster that runs elsewhere: probe what it allows and remember it. Changes nothing on it.

    Example:  penstock fleet adopt east --bootstrap kafka-1:9092 --user penstock --password-file secret --tls
    """
    target = adoption.Target(
        bootstrap=bootstrap,
        user=user,
        password=_password(password_file) if user else None,
        mechanism=mechanism,
        tls=tls or ca is not None,
        ca=str(ca.absolute()) if ca else None,
        metrics=tuple(metrics.split(",")) if metrics else (),
    )
    adopted = await adoption.adopt(options.layout, name, target)
    show(asdict(adopted), options.form, _adopted_view(adopted))
    return Exit.FINE


@app.command(name="list")
def list_(*, options: Options = Options()) -> int:
    """List the clusters of this fleet, its own and adopted ones.

    Example:  penstock fleet list -o json
    """
    layout = options.layout
    rows = _embedded_rows(layout) if layout.fleet_file.exists() else []
    for a in adoption.list_adopted(layout):
        rows.append(_row(a.name, "adopted", a.kafka_id, a.brokers, a.zones, a.bootstrap))
    columns = {"NAME": "name", "KIND": "kind", "KAFKA ID": "kafka_id", "BROKERS": "brokers"}
    columns |= {"ZONES": "zones", "BOOTSTRAP": "bootstrap"}
    show(rows, options.form, table_of(rows, columns))
    return Exit.FINE


@app.command
def capabilities(
    name: Annotated[str, Parameter(help="An adopted cluster.")],
    *,
    options: Options = Options(),
) -> int:
    """Show what an adopted cluster allows, and what the platform would need the rest for.

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
    tell(f"{name} is forgotten here and goes on where it runs")
    return Exit.FINE


@app.command
async def rotate(*, options: Options = Options()) -> int:
    """Give every node a new certificate and have it taken up without a restart.

    Example:  penstock fleet rotate
    """
    from penstock.fleet.rotation import rotate_certificates

    rotated = await rotate_certificates(watched_fleet(options.layout))
    rows = [{"node": node, "certificate": "renewed"} for node in rotated]
    show(rows, options.form, table_of(rows, {"NODE": "node", "CERTIFICATE": "certificate"}))
    return Exit.FINE


def _embedded_rows(layout: Layout) -> list[dict[str, object]]:
    clusters = [c.cluster for c in watched_fleet(layout).clusters]
    return [
        _row(c.spec.name, "embedded", c.kafka_id, len(c.spec.brokers), c.spec.zones, c.spec.bootstrap())
        for c in clusters
    ]


def _row(
    name: str, kind: str, kafka_id: str, brokers: int, zones: Sequence[str], bootstrap: str
) -> dict[str, object]:
    row: dict[str, object] = {"name": name, "kind": kind, "kafka_id": kafka_id, "brokers": brokers}
    return row | {"zones": ",".join(zones), "bootstrap": bootstrap}


def _password(path: Path | None) -> str:
    """From a file or a prompt: a password on the command line would be seen by everybody."""
    if path is None:
        if not sys.stdin.isatty():
            raise SettingInvalid(
                where="penstock fleet adopt", key="--password-file", value=None, expected="expected a file"
            )
        return getpass("password: ")
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise SettingInvalid(
            where="penstock fleet adopt",
            key="--password-file",
            value=str(path),
            expected=f"but {error.strerror}",
        ) from error


def _adopted_view(adopted: adoption.Adopted) -> RenderableType:
    rows = [asdict(row) for row in adopted.capabilities]
    zones = ", ".join(adopted.zones) or "none"
    head = f"[bold]{adopted.name}[/] {adopted.kafka_id}: {adopted.brokers} brokers, zones {zones}"
    columns = {"CAPABILITY": "capability", "THERE": "there", "NEEDED FOR": "needed_for", "WHY NOT": "reason"}
    return Group(head, table_of(rows, columns))


def client_settings(
    bootstrap: str, *, password: str, ca: str | None, client: Literal["java", "python", "kcat"]
) -> dict[str, str]:
    settings = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL" if ca else "SASL_PLAINTEXT",
        "sasl.mechanism": SCRAM_MECHANISM,
    }
    if client == "java":
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        settings["sasl.jaas.config"] = f'{module} required username="{PLATFORM_USER}" password="{password}";'
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": ca or ""}
    else:
        settings |= {"sasl.username": PLATFORM_USER, "sasl.password": password}
        trust = {"ssl.ca.location": ca or ""}
    return settings | (trust if ca else {})
