"""Default URL and file names of a local control plane and its operator token."""

from __future__ import annotations

from typing import Final

URL_DEFAULT: Final = "http://127.0.0.1:28080"
ADDRESS_FILE: Final = "control.json"  # under the home: `penstock up` writes the control plane's URL here
TOKEN_FILE: Final = "operator.token"  # noqa: S105 - the name of a file, under the home's secrets
