"""Which error of the catalogue a failed TLS handshake is: each names another setting to change."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from penstock.model.errors.wire import (
    AuthorityUnknown,
    BrokerUntrusted,
    CertificateExpired,
    CertificateRefused,
    HostNameMismatch,
)

if TYPE_CHECKING:
    from penstock.model.errors import PenstockError

# OpenSSL's X509_V_ERR_… codes.
_ERRORS: Final[dict[int, type[BrokerUntrusted]]] = {
    2: AuthorityUnknown,  # UNABLE_TO_GET_ISSUER_CERT
    7: AuthorityUnknown,  # CERT_SIGNATURE_FAILURE: a CA of the same name
    9: CertificateExpired,  # CERT_NOT_YET_VALID
    10: CertificateExpired,  # CERT_HAS_EXPIRED
    18: AuthorityUnknown,  # DEPTH_ZERO_SELF_SIGNED_CERT
    19: AuthorityUnknown,  # SELF_SIGNED_CERT_IN_CHAIN
    20: AuthorityUnknown,  # UNABLE_TO_GET_ISSUER_CERT_LOCALLY
    21: AuthorityUnknown,  # UNABLE_TO_VERIFY_LEAF_SIGNATURE
    62: HostNameMismatch,  # HOSTNAME_MISMATCH
    64: HostNameMismatch,  # IP_ADDRESS_MISMATCH
}
# Alerts of a server that does not accept the client's certificate, or requires one.
_ABOUT_OUR_CERTIFICATE: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")


def tls_error(failure: ssl.SSLError, address: str) -> PenstockError | None:
    """None if neither certificate is the reason."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        kind = _ERRORS.get(failure.verify_code, BrokerUntrusted)
        return kind(address=address, reason=failure.verify_message)
    reason = failure.reason or ""
    if "ALERT" in reason and any(word in reason for word in _ABOUT_OUR_CERTIFICATE):
        return CertificateRefused(address=address, reason=reason.lower().replace("_", " "))
    return None
