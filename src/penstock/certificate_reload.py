"""Loads a server's certificate again when its files change, without a restart.

New handshakes use the new certificate; established connections stay. A file that is half written or does not
match its key is not used: the certificate in use stays until a valid one is there.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from penstock.model.errors.control import ServerCertificateInvalid

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.model.errors import PenstockError

RELOAD_SECONDS: Final = 1.0  # between two looks at the files

log = structlog.get_logger("penstock.tls")


@dataclass(frozen=True, slots=True)
class ServerTls:
    certificate: Path
    key: Path | None = None  # none: in the certificate's file


class ServerCertificate:
    """The TLS context of a server, and the files of its certificate. `error` has a `path` and a `reason`."""

    def __init__(self, files: ServerTls, error: type[PenstockError] = ServerCertificateInvalid) -> None:
        self._files = files
        self._error = error
        self._version = self._versions()
        self.context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2

    async def follow(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        version = self._versions()
        if version == self._version:
            return
        try:
            # First into a context that nothing uses: a failed load would leave half of the new pair.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except self._error as failure:
            log.warning("certificate not reloaded", error=str(failure))
        else:
            log.info("certificate reloaded", path=str(self._files.certificate))
        self._version = version

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        try:
            context.load_cert_chain(self._files.certificate, self._files.key)
        except (ssl.SSLError, OSError) as failure:
            raise self._error(path=self._files.certificate, reason=failure) from failure
        return context

    def _versions(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_version(path) for path in (self._files.certificate, self._files.key) if path)


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
