"""The platform's key, its CA, and the certificates of nodes.

`platform.key` is the root of every password the platform uses with Kafka (see `passwords`), so no
password is stored, and losing Kafka's storage loses no secret. The platform's CA issues the
certificates of listeners outside loopback. The key and the CA are created once; a node certificate is
replaced when it is about to expire or no longer matches.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.atomic_files import write_atomically
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.fleet.layout import SECRET_DIRECTORY_MODE, SECRET_FILE_MODE, make_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


CA_DAYS = 3650
CERTIFICATE_DAYS = 90
RENEW_DAYS_BEFORE_END = 30


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, hosts: Sequence[str], *, now: dt.datetime) -> bytes:
        """A new key and its certificate chain as one PEM, which Kafka accepts as a key store."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_general_name(host) for host in hosts]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        certificate = (
            _builder(_common_name(name), self.certificate.subject, key, now, CERTIFICATE_DAYS)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(issuer_id, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return _key_pem(key) + certificate.public_bytes(serialization.Encoding.PEM) + self.pem


def load_platform_key(directory: Path) -> PlatformKey:
    """The key in this directory, created on the first call."""
    path = make_directory(directory, mode=SECRET_DIRECTORY_MODE) / "platform.key"
    if not path.exists():
        write_atomically(path, secrets.token_bytes(32), mode=SECRET_FILE_MODE)
    return PlatformKey(path.read_bytes())


def load_authority(directory: Path, *, now: dt.datetime) -> Authority:
    """The CA in this directory, created on the first call.

    Key and certificate are in one file, so that a crash cannot leave one without the other. The
    certificate alone is also written, for clients."""
    path = make_directory(directory, mode=SECRET_DIRECTORY_MODE) / "ca.key.pem"
    if not path.exists():
        write_atomically(path, _new_authority(now), mode=SECRET_FILE_MODE)
    pem = path.read_bytes()
    key = serialization.load_pem_private_key(pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    authority = Authority(x509.load_pem_x509_certificate(pem), key)
    public = directory / "ca.pem"
    if not public.exists() or public.read_bytes() != authority.pem:
        write_atomically(public, authority.pem)
    return authority


def needs_renewal(keystore: bytes, authority: Authority, hosts: Sequence[str], *, now: dt.datetime) -> bool:
    """Whether a node's certificate expires soon, or is from another CA or for other hosts."""
    certificate = x509.load_pem_x509_certificate(keystore)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if set(names) != {_general_name(host) for host in hosts} or authority.pem not in keystore:
        return True
    return now > certificate.not_valid_after_utc - dt.timedelta(days=RENEW_DAYS_BEFORE_END)


def ensure_keystore(
    path: Path,
    authority: Authority,
    name: str,
    hosts: Sequence[str],
    *,
    now: dt.datetime,
    force: bool = False,
) -> bool:
    """Create or renew the key store of a node; true if it changed."""
    if not force and path.exists() and not needs_renewal(path.read_bytes(), authority, hosts, now=now):
        return False
    write_atomically(path, authority.issue(name, hosts, now=now), mode=SECRET_FILE_MODE)
    return True


def _new_authority(now: dt.datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _common_name("Penstock CA")
    certificate = (
        _builder(name, name, key, now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
                key_encipherment=False, data_encipherment=False, key_agreement=False,
                encipher_only=False, decipher_only=False,
            ),
            critical=True,
        )
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    return _key_pem(key) + certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: dt.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
