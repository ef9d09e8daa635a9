"""What commands connect to, selected by flags, profile and settings: the control plane, or a logical cluster.

Both are tried first, so that a command fails at once when nothing runs, and names what to start.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.cli.output import plain, progress, report
from penstock.cli.settings import ProfileOptions, RemoteOptions, setting
from penstock.fleet.supervisor import supervisor_of
from penstock.kafka.routing import addresses
from penstock.model.errors.control import (
    AdvertisedUnreachable,
    ControlUnreachable,
    GatewayUnreachable,
    KeyNotStored,
    ProfileLacks,
    TokenRefused,
)
from penstock.model.errors.fleet import NotRunning
from penstock.model.errors.settings import UsageInvalid
from penstock.model.errors.wire import BrokerUnreachable
from penstock.platform.control_client import WAIT_SECONDS, connect, local_url
from penstock.platform.keyring import saved_key
from penstock.platform.reachability import check_advertised, check_bootstrap, why_closed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.kafka.client import Client
    from penstock.platform.control_client import ControlClient
    from penstock.platform.keyring import SavedKey


def connected(options: RemoteOptions) -> ControlClient:
    """A client of the control plane. Raises at once if nothing listens there and nothing will."""
    chosen, url = options.chosen, control_url(options)
    token = chosen.token if chosen else ""
    if chosen and not (token or os.environ.get("PENSTOCK_TOKEN")):
        raise ProfileLacks(name=chosen.name, what="operator token", flags="--url URL --token-file FILE")
    control = connect(options.layout, url, token=token, ca=chosen.ca if chosen else None)
    if not control.token:
        raise TokenRefused
    if url:
        check_reachable(control)
    elif all(map(why_closed, control.urls)) and supervisor_of(options.layout) is None:
        raise NotRunning(home=options.layout.home)  # a supervisor would start it
    return control


def check_reachable(control: ControlClient) -> None:
    """Raises ControlUnreachable at once if no control plane can be connected to."""
    reasons = [why_closed(each) for each in control.urls]
    if all(reasons):
        raise ControlUnreachable(url=",".join(control.urls), reason=reasons[0])


def control_url(options: RemoteOptions) -> str:
    """Where the control plane is; empty for the local one."""
    chosen = options.chosen
    return options.url or (chosen.control_url() if chosen else setting("url", ""))


def tenant_key(options: ProfileOptions, cluster: str | None) -> SavedKey:
    """The saved API key of a logical cluster, with the TLS settings of the profile."""
    chosen = options.chosen
    try:
        key = saved_key(options.layout, cluster)
    except KeyNotStored:
        home = options.layout
        nothing = chosen is None and not setting("url", "") and supervisor_of(home) is None
        if nothing and why_closed(local_url(home)):
            raise NotRunning(home=home.home) from None
        raise
    if chosen is None:
        return key
    return replace(key, tls=key.tls or chosen.tls, ca=key.ca or str(chosen.ca or ""))


@asynccontextmanager
async def tenant_client(options: ProfileOptions, cluster: str | None) -> AsyncIterator[Client]:
    """A client of a logical cluster. Names the address that fails; at once if it is the first."""
    key = tenant_key(options, cluster)
    try:
        await check_bootstrap(key.bootstrap)
    except GatewayUnreachable:
        if options.chosen is None and supervisor_of(options.layout) is None:
            raise NotRunning(home=options.layout.home) from None
        raise
    async with key.client() as client:
        await check_advertised(client, key.bootstrap)
        try:
            yield client
        except BrokerUnreachable as failure:
            address = str(failure.facts["address"])
            if address not in map(str, addresses(key.bootstrap)) and ":" in address:
                raise AdvertisedUnreachable(
                    address=address, bootstrap=key.bootstrap, reason=failure.facts["reason"]
                ) from failure
            raise


def wait_for(
    control: ControlClient, operation: dict[str, Any], *, seconds: float = WAIT_SECONDS, until: str = ""
) -> dict[str, Any]:
    """The operation once it has ended, or is at the step `until`, with its steps on the terminal."""
    with progress(f"{operation['action']} ({operation['id']})"):
        return control.wait(operation, seconds=seconds, until=until, on_step=lambda step: report(plain(step)))


def physical_cluster(control: ControlClient, given: str | None) -> str:
    """The given id, or that of the only physical cluster."""
    if given is not None:
        return given
    known = [str(one["id"]) for one in control.every("/physical-clusters")]
    if len(known) != 1:
        shown = ", ".join(known) or "none"
        raise UsageInvalid(
            reason=f"there are {len(known)} physical clusters: {shown}",
            way_out="Choose: --physical-cluster ID.",
        )
    return known[0]
