"""The state of the platform's services, and of the pipeline's jobs, on this machine."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen

from penstock.fleet.supervisor import supervisor_of
from penstock.pipeline.status import all_statuses
from penstock.platform.companions import service_records
from penstock.platform.control_client import read_address
from penstock.platform.reachability import why_closed
from penstock.process_identity import read_record

if TYPE_CHECKING:
    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalFleet

RESPONSE_SECONDS_MAX: Final = 3.0
READY: Final = "ready"


def service_states(fleet: LocalFleet) -> list[dict[str, Any]]:
    """Every service that should run beside the fleet, and whether it is ready; none for Kafka alone."""
    layout = fleet.layout
    records = [record for path in service_records(layout) if (record := read_record(path)) is not None]
    services = []
    if records and supervisor_of(layout) is None:
        services.append(_service("supervisor", "not running"))
    for process, facts in records:
        service, address = str(facts["service"]), str(facts["address"])
        if not process.is_alive():
            services.append(_service(service, "not running", address))
        elif service.startswith("control"):
            services += _control_planes(service, address)
        elif address:
            services.append(_service(service, _listening(address), address))
        else:
            services.append(_service(service, READY))
    return services


def _service(service: str, state: str, address: str = "", role: str = "") -> dict[str, Any]:
    return {"service": service, "state": state, "role": role, "address": address}


def _control_planes(service: str, url: str) -> list[dict[str, Any]]:
    """The local control plane, and the active one if that is another."""
    health = _health(url)
    rows = [_service(service, _state(health), url, health.get("role", ""))]
    active = health.get("active", "")
    if active and active != url:
        other = _health(active)
        rows.append(_service(service, _state(other), active, other.get("role", "")))
    return rows


def _listening(bootstrap: str) -> str:
    closed = [each for each in bootstrap.split(",") if why_closed(f"tcp://{each}")]
    return f"not listening on {', '.join(closed)}" if closed else READY


def job_states(layout: Layout) -> list[dict[str, Any]]:
    """The pipeline's jobs that have run with this home's default settings, and their lag."""
    return [
        {"job": each.job, "state": each.state, "lag": each.lag, "error": each.error}
        for each in all_statuses(layout.home / "pipeline" / "state")
    ]


def control_plane_url(layout: Layout) -> str:
    """The URL of the control plane of the running supervisor; empty if it runs Kafka alone, or not at all."""
    supervisor, address = supervisor_of(layout), read_address(layout)
    if supervisor is None or address.get("pid") != supervisor.pid:
        return ""  # not running, or the address is of an earlier start
    return str(address["url"])


def control_plane_state(url: str) -> str:
    """`ready` if this control plane is active, or knows the one that is."""
    return _state(_health(url))


def _state(health: dict[str, str]) -> str:
    if not health:
        return "no response"
    return READY if health["active"] else "none active"


def _health(url: str) -> dict[str, str]:
    """What the control plane reports of itself: its role, and the URL of the active one."""
    try:
        with urlopen(f"{url}/healthz", timeout=RESPONSE_SECONDS_MAX) as response:  # noqa: S310 - our address
            health = json.load(response)
            return {"role": str(health["role"]), "active": str(health["active"])}
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return {}
