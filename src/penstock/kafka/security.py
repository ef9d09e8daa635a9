"""How to open a connection: in the clear or by TLS, with or without a login."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path


class Mechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class Login:
    user: str
    password: str = field(repr=False)
    mechanism: Mechanism = Mechanism.SCRAM_SHA_512


@dataclass(frozen=True, slots=True)
class Security:
    login: Login | None = None
    tls: ssl.SSLContext | None = None
    server_name: str | None = None  # for SNI and the certificate check, if not the host itself

    @property
    def protocol(self) -> str:
        """Kafka's name for it, as in `security.protocol`."""
        return ("SASL_" if self.login else "") + ("SSL" if self.tls else "PLAINTEXT")


PLAINTEXT: Final = Security()


def tls_trusting(
    authority: Path, *, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """TLS that trusts this certificate authority alone; with a client certificate if one is given."""
    context = ssl.create_default_context(cafile=str(authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context
