"""Default URL, file names and root token of a local control plane."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from penstock.atomic_files import write_atomically
from penstock.fleet.layout import SECRET_DIRECTORY_MODE, SECRET_FILE_MODE, make_directory

if TYPE_CHECKING:
    from penstock.fleet.layout import Layout

URL_DEFAULT: Final = "http://127.0.0.1:28080"
ADDRESS_FILE: Final = "control.json"  # under the home: `penstock up` writes the control plane's URL here
TOKEN_FILE: Final = "operator.token"  # noqa: S105 - the name of a file, under the home's secrets
TOKEN_BYTES: Final = 32


def root_token(layout: Layout) -> str:
    """The root operator's token, readable with the home's secrets; created at the first start."""
    path = make_directory(layout.secrets, mode=SECRET_DIRECTORY_MODE) / TOKEN_FILE
    if not path.exists():
        write_atomically(path, secrets.token_urlsafe(TOKEN_BYTES), mode=SECRET_FILE_MODE)
    return path.read_text().strip()
