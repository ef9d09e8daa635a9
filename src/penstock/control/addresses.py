"""Where a local control plane and its operators' token are found."""

from __future__ import annotations

from typing import Final

URL_DEFAULT: Final = "http://127.0.0.1:28080"
ADDRESS_FILE: Final = "control.json"  # under the home: where `penstock up` says the control plane is
TOKEN_FILE: Final = "operator.token"  # noqa: S105 - the name of a file, under the home's secrets
