"""How to open a connection: with or without TLS, with or without a login."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.kafka.oauth import OAuthLogin


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
    login: Login | OAuthLogin | None = None
    tls: ssl.SSLContext | None = None
    server_name: str | None = None  # for SNI and certificate verification, if it is not the host

    @property
    def protocol(self) -> str:
        """The value of Kafka's `security.protocol`."""
        return ("SASL_" if self.login else "") + ("SSL" if self.tls else "PLAINTEXT")


PLAINTEXT: Final = Security()


def tls_context(
    authority: Path | None, *, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """TLS that trusts only this CA (none: the system's), with a client certificate if one is given."""
    context = ssl.create_default_context(cafile=None if authority is None else str(authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context
