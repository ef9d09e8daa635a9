"""`doctor`, `version`, `completion`: the installation itself."""

from __future__ import annotations

import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from penstock import __version__
from penstock.cli.output import show, table_of
from penstock.cli.remote import tenant_key
from penstock.cli.settings import Options, RemoteOptions
from penstock.fleet.class_archive import archive_path
from penstock.fleet.cluster_record import check_ports_free, load_cluster
from penstock.fleet.jars import KAFKA_VERSION, Jars, cache_directory, jar_checksums, jars_directory, verify
from penstock.fleet.java import find_java
from penstock.fleet.layout import make_directory
from penstock.fleet.local_fleet import check_disk_space, load_fleet_document
from penstock.fleet.spec_file import parse_fleet
from penstock.fleet.supervisor import supervisor_of
from penstock.kafka.routing import addresses
from penstock.model.errors import Exit, PenstockError
from penstock.model.errors.control import ControlPlaneNotReady
from penstock.model.errors.fleet import MavenMissing
from penstock.platform.reachability import METADATA_SECONDS, unreachable
from penstock.platform.services import READY, control_plane_state, control_plane_url
from penstock.wire.compiled import DataPath, active_data_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.fleet.layout import Layout
    from penstock.kafka.routing import Address


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    state: str  # fine, warning, failed
    detail: str
    hint: str = ""


async def doctor(
    *,
    from_here: Annotated[
        str | None,
        Parameter(help="Check only whether this machine reaches this logical cluster.", negative=""),
    ] = None,
    options: RemoteOptions = RemoteOptions(),
) -> int:
    """Check this machine, and whether a running platform accepts changes.

    With --from-here, connect to the gateways of a logical cluster as its clients do, and try every address
    that they advertise.

    Example:  penstock doctor --from-here shop
    """
    rows = await reach_findings(options, from_here) if from_here else findings(options.layout)
    columns = {"CHECK": "what", "STATE": "state", "DETAIL": "detail", "HINT": "hint"}
    show(rows, options.form, table_of(rows, columns))
    return Exit.UNHEALTHY if any(row["state"] == "failed" for row in rows) else Exit.FINE


async def reach_findings(options: RemoteOptions, cluster: str) -> list[dict[str, str]]:
    """Bootstrap addresses, login, and every advertised address, tried from this machine."""
    key = tenant_key(options, cluster)
    servers = addresses(key.bootstrap)
    closed = await unreachable(servers)
    hint = "Correct the address, or start the gateway there."
    rows = [_reached("bootstrap", server, closed, hint) for server in dict.fromkeys(servers)]
    if len(closed) < len(set(servers)):
        try:
            async with key.client() as client:
                nodes = (await client.cluster(timeout=METADATA_SECONDS)).nodes
        except PenstockError as error:
            rows.append(Finding("login", "failed", f"{error.message} ({error.code})", error.advice))
        else:
            rows.append(Finding("login", "fine", f"API key {key.key}"))
            advertised = sorted({node.address for node in nodes.values()}, key=str)
            closed = await unreachable(advertised)
            hint = (
                "The gateway advertises this address: change `advertised_host`, `advertised_port` or "
                "`domain` in its file, or let this machine resolve and reach it."
            )
            rows += [_reached("advertised", address, closed, hint) for address in advertised]
    return [asdict(row) for row in rows]


def _reached(what: str, address: Address, closed: Mapping[Address, str], hint: str) -> Finding:
    if address in closed:
        return Finding(what, "failed", f"{address}: {closed[address]}", hint)
    return Finding(what, "fine", str(address))


def findings(layout: Layout) -> list[dict[str, str]]:
    checks: dict[str, Callable[[], str]] = {
        "python": lambda: f"{platform.python_version()} at {sys.executable}",
        "java": _java,
        "maven": _maven,
        "jars": _jars,
        "archive": _archive,
        "data-path": _data_path,
        "home": lambda: _home(layout),
        "ports": lambda: _ports(layout),
        "control-plane": lambda: _control_plane(layout),
    }
    return [asdict(_finding(what, check)) for what, check in checks.items()]


def version(*, options: Options = Options()) -> int:
    """Print the versions of Penstock, Kafka, Python and Java.

    Example:  penstock version -o json
    """
    data = versions()
    rows = [{"part": part, "version": number} for part, number in data.items()]
    show(data, options.form, table_of(rows, {"PART": "part", "VERSION": "version"}))
    return Exit.FINE


def versions() -> dict[str, str | None]:
    try:
        java: str | None = find_java().version
    except PenstockError:
        java = None  # `doctor` shows the reason
    return {
        "penstock": __version__,
        "kafka": KAFKA_VERSION,
        "python": platform.python_version(),
        "java": java,
    }


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell.")],
) -> int:
    """Print a completion script for your shell.

    Example:  penstock completion bash > ~/.local/share/bash-completion/completions/penstock
    """
    from penstock.cli.app import command_tree

    print(command_tree().generate_completion(shell=shell))
    return Exit.FINE


def _finding(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, "fine", check())
    except PenstockError as error:
        return Finding(what, "failed", f"{error.message} ({error.code})", error.advice)


def _java() -> str:
    java = find_java()
    return f"{java.version} at {java.executable}"


def _maven() -> str:
    if path := shutil.which("mvn"):
        return path
    if jars_directory(cache_directory()).exists():
        return "missing, and not needed: the jars are here"
    raise MavenMissing


def _jars() -> str:
    directory = jars_directory(cache_directory())
    if not directory.exists():
        return "not fetched yet: `penstock fleet fetch` or the next `penstock up` does it"
    verify(directory, jar_checksums())
    return f"Kafka {KAFKA_VERSION} in {directory}"


def _archive() -> str:
    path = archive_path(find_java(), Jars(jars_directory(cache_directory())))
    return str(path) if path.exists() else "not created yet: the next `penstock up` does it"


def _data_path() -> str:
    """The gateway's data path behaves the same, compiled or not."""
    data_path = active_data_path()
    return f"{data_path}; `make setup` compiles it again" if data_path is DataPath.STALE else data_path


def _home(layout: Layout) -> str:
    parent = layout.home
    while not parent.exists():
        parent = parent.parent
    make_directory(parent)
    check_disk_space(parent)
    return f"{layout.home}, {shutil.disk_usage(parent).free / 1e9:.0f} GB free"


def _ports(layout: Layout) -> str:
    if supervisor_of(layout) is not None:
        return "in use by this fleet, which is up"
    spec = parse_fleet(load_fleet_document(layout) or {"clusters": [{}]})
    for cluster in spec:
        settled = load_cluster(cluster, layout)
        for node in (settled.spec if settled else cluster).nodes:
            if all(node.ports.values()):
                check_ports_free(cluster, node)
    return "free"


def _control_plane(layout: Layout) -> str:
    url = control_plane_url(layout)
    if not url:
        return "not running"
    state = control_plane_state(url)
    if state != READY:
        raise ControlPlaneNotReady(url=url, state=state)
    return f"ready at {url}"
