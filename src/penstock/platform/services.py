"""The state of the platform's services, and of the pipeline's jobs, on this machine."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen

from penstock.control.physical.local import gateway_file
from penstock.fleet.supervisor import supervisor_of
from penstock.gateway.process.run_file import running
from penstock.pipeline.status import all_statuses
from penstock.platform.control_client import read_address

if TYPE_CHECKING:
    from penstock.fleet.layout import Layout
    from penstock.fleet.local_fleet import LocalFleet

RESPONSE_SECONDS_MAX: Final = 5.0
READY: Final = "ready"


def service_states(fleet: LocalFleet) -> list[dict[str, Any]]:
    """The control plane and the gateways of the running supervisor; none if it runs Kafka alone."""
    url = control_plane_url(fleet.layout)
    if not url:
        return []
    services = [{"service": "control plane", "state": control_plane_state(url), "address": url}]
    for cluster in fleet.clusters:
        gateways = running(gateway_file(fleet.layout, cluster.cluster.spec))
        services += [
            {"service": f"gateway {one.gateway}", "state": READY, "address": one.bootstrap}
            for one in gateways
        ]
        if not gateways:
            services.append({"service": f"gateway of {cluster.name}", "state": "not running", "address": ""})
    return services


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
    try:
        with urlopen(f"{url}/healthz", timeout=RESPONSE_SECONDS_MAX) as response:  # noqa: S310 - our address
            return READY if json.load(response)["active"] else "none active"
    except (OSError, HTTPException, ValueError, KeyError):
        return "no answer"
