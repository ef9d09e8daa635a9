"""`penstock debug`: an archive for fault analysis."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from penstock.cli.doctor import findings, versions
from penstock.cli.local import status_data
from penstock.cli.output import Format, plain, report, show
from penstock.cli.settings import ENVIRONMENT_PREFIX, Options, read_settings
from penstock.fleet.local_fleet import load_fleet
from penstock.fleet.status import fleet_status
from penstock.model.errors import Exit
from penstock.model.errors.settings import UsageInvalid
from penstock.model.plural import counted
from penstock.platform.debug_bundle import write_bundle
from penstock.platform.services import job_states, service_states

app = App(name="debug", help="Collect what helps to find a fault.")


@app.command
async def bundle(
    *,
    to: Annotated[
        Path | None, Parameter(help="The archive to write.", show_default="penstock-debug-TIME.tar.gz")
    ] = None,
    options: Options = Options(),
) -> int:
    """Collect versions, settings, state, logs and metrics into an archive, without secrets.

    Example:  penstock debug bundle --to bundle.tar.gz
    """
    path = to or Path(f"penstock-debug-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz")
    if not path.parent.is_dir():
        raise UsageInvalid(
            reason=f"{path.parent} is not a directory", way_out="Create it, or name another file."
        )
    fleet = load_fleet(options.layout)
    seen, services = await fleet_status(fleet), await asyncio.to_thread(service_states, fleet)
    documents = {
        "versions": versions() | {"system": platform.platform()},
        "doctor": findings(options.layout),
        "settings/settings": read_settings(os.environ),
        "settings/environment": sorted(name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)),
        "status": status_data(seen, services, job_states(fleet.layout)),
    }
    names = await asyncio.to_thread(write_bundle, path, fleet, seen, documents)
    if options.form is not Format.TABLE:
        show({"archive": str(path), "files": names}, options.form, "")
    else:
        report(f"wrote {plain(str(path))} with {counted(len(names), 'file')}; secrets are left out")
    return Exit.FINE
