"""The control plane as commands call it: found by flags and settings, with progress on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.output import plain, progress, report
from penstock.cli.settings import RemoteOptions, setting
from penstock.platform.control_client import WAIT_SECONDS, connect

if TYPE_CHECKING:
    from penstock.platform.control_client import ControlClient


def connected(options: RemoteOptions) -> ControlClient:
    return connect(options.layout, control_url(options))


def control_url(options: RemoteOptions) -> str:
    """Where the control plane is; empty for the local one."""
    return options.url or setting("url", "")


def wait_for(
    control: ControlClient, operation: dict[str, Any], *, seconds: float = WAIT_SECONDS, until: str = ""
) -> dict[str, Any]:
    """The operation once it has ended, or is at the step `until`, with its steps on the terminal."""
    with progress(f"{operation['action']} ({operation['id']})"):
        return control.wait(operation, seconds=seconds, until=until, on_step=lambda step: report(plain(step)))
