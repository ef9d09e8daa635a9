"""The state of the platform's services, and of the pipeline's jobs, on this machine."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError
from urllib.request import Request

from penstock.control.physical.gateway_files import GATEWAY_FILE, advertised_bootstrap, management_address
from penstock.control.physical.local import dedicated_homes
from penstock.fleet.supervisor import supervisor_of
from penstock.http_calls import open_url
from penstock.pipeline.status import all_statuses
from penstock.platform.companions import CONTROL, SUPERVISOR, service_records
from penstock.platform.control_client import operator_token, read_address
from penstock.process_identity import read_record

if TYPE_CHECKING:
    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalFleet

RESPONSE_SECONDS_MAX: Final = 3.0
REASON_BYTES_MAX: Final = 500
READY: Final = "ready"


def service_states(fleet: LocalFleet) -> list[dict[str, Any]]:
    """Every service that should run beside the fleet, and whether it is ready; none for Kafka alone."""
    layout = fleet.layout
    records = [record for path in service_records(layout) if (record := read_record(path)) is not None]
    services = [_supervisor(layout)] if records else []
    for process, facts in records:
        service, address, metrics = (str(facts[key]) for key in ("service", "address", "metrics"))
        if not process.is_alive():
            services.append(_service(service, "not running", address, metrics=metrics))
        elif service == CONTROL:
            services += _control_planes(service, address, metrics)
        else:
            services.append(_service(service, readiness(metrics), address, metrics=metrics))
    return services + _dedicated_gateways(layout)


def _service(
    service: str, state: str, address: str = "", role: str = "", metrics: str = ""
) -> dict[str, Any]:
    return {"service": service, "state": state, "role": role, "address": address, "metrics": metrics}


def _supervisor(layout: Layout) -> dict[str, Any]:
    """Its own readiness is not asked: it is not ready for as long as another service is not."""
    metrics = str(read_address(layout).get("metrics", {}).get(SUPERVISOR, ""))
    return _service(SUPERVISOR, "not running" if supervisor_of(layout) is None else READY, metrics=metrics)


def _dedicated_gateways(layout: Layout) -> list[dict[str, Any]]:
    rows = []
    for home in dedicated_homes(layout):
        for path in (home.home / GATEWAY_FILE, home.cluster(home.home.name) / GATEWAY_FILE):
            if path.exists():
                metrics, name = management_address(path), f"gateway of {home.home.name}"
                rows.append(_service(name, readiness(metrics), advertised_bootstrap(path), metrics=metrics))
    return rows


def readiness(metrics: str) -> str:
    """What `/readyz` of a management address responds."""
    try:
        with open_url(Request(f"http://{metrics}/readyz"), timeout=RESPONSE_SECONDS_MAX):
            return READY
    except HTTPError as refusal:
        with refusal:
            return f"not ready: {refusal.read(REASON_BYTES_MAX).decode(errors='replace').strip()}"
    except (OSError, HTTPException, ValueError):
        return "no response"


def _control_planes(service: str, url: str, metrics: str) -> list[dict[str, Any]]:
    """The local control plane, and the active one if that is another."""
    health = _health(url)
    rows = [_service(service, _state(health), url, health.get("role", ""), metrics)]
    active = health.get("active", "")
    if active and active != url:
        other = _health(active)
        rows.append(_service(service, _state(other), active, other.get("role", "")))
    return rows


def job_states(layout: Layout) -> list[dict[str, Any]]:
    """The pipeline's jobs that have run with this home's default settings, and their lag."""
    return [
        {"job": each.job, "state": each.state, "lag": each.lag, "error": each.error}
        for each in all_statuses(layout.home / "pipeline" / "state")
    ]


def broker_health(fleet: LocalFleet) -> dict[tuple[str, str], str]:
    """By cluster and node, how brokers are judged; nothing unless a control plane responds."""
    if not (url := control_plane_url(fleet.layout)) or not (token := operator_token(fleet.layout)):
        return {}
    request = Request(f"{url}/v1/health", headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - ours
    try:
        with open_url(request, timeout=RESPONSE_SECONDS_MAX) as response:
            judged = {
                (cluster["physical_cluster"], broker["broker"]): str(broker["health"])
                for cluster in json.load(response)
                for broker in cluster["brokers"]
            }
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return {}
    return {
        (cluster.name, node.spec.name): judged[cluster.cluster.id, node.spec.id]
        for cluster in fleet.clusters
        for node in cluster.nodes
        if node.spec.is_broker and (cluster.cluster.id, node.spec.id) in judged
    }


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
        with open_url(Request(f"{url}/healthz"), timeout=RESPONSE_SECONDS_MAX) as response:  # noqa: S310 - ours
            health = json.load(response)
            return {"role": str(health["role"]), "active": str(health["active"])}
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return {}
