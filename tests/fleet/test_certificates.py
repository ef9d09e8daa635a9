"""The platform's passwords and certificates."""

from __future__ import annotations

import datetime as dt
import ipaddress
import stat
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from penstock.fleet.credentials.certificates import (
    CERTIFICATE_DAYS,
    RENEW_DAYS_BEFORE_END,
    ensure_keystore,
    load_authority,
    load_platform_key,
    needs_renewal,
)
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.model.errors.fleet import DirectoryNotWritable

if TYPE_CHECKING:
    from pathlib import Path

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
HOSTS = ["127.0.0.1", "kafka-1"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_password_depends_on_key_user_and_generation() -> None:
    key = PlatformKey(b"k" * 32)

    assert key.password("u") == key.password("u", 1)
    assert len({key.password("u"), key.password("v"), key.password("u", 2)}) == 3
    assert PlatformKey(b"j" * 32).password("u") != key.password("u")


def test_users_and_generations_cannot_collide() -> None:
    key = PlatformKey(b"k" * 32)

    assert key.password("u\x001", 1) != key.password("u", 11)
    assert key.password("u1", 1) != key.password("u", 11)


def test_a_password_needs_no_quoting() -> None:
    assert all(c.isalnum() or c in "-_" for c in PlatformKey(b"k").password("u"))


def test_a_key_is_not_printed() -> None:
    assert "secret" not in repr(PlatformKey(b"secret"))


def test_the_platform_key_is_created_once(tmp_path: Path) -> None:
    first = load_platform_key(tmp_path / "secrets")

    assert load_platform_key(tmp_path / "secrets") == first
    assert len(first.secret) == 32
    assert load_platform_key(tmp_path / "elsewhere") != first


def test_secrets_are_private(tmp_path: Path) -> None:
    load_platform_key(tmp_path / "secrets")
    load_authority(tmp_path / "secrets", now=NOW)

    assert mode(tmp_path / "secrets") == 0o700
    assert mode(tmp_path / "secrets" / "platform.key") == 0o600
    assert mode(tmp_path / "secrets" / "ca.key.pem") == 0o600


def test_a_secrets_directory_that_is_not_writable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("a file where a directory is needed")

    with pytest.raises(DirectoryNotWritable, match="secrets is not writable"):
        load_platform_key(tmp_path / "secrets")


def test_the_ca_is_created_once_and_its_certificate_is_written_beside_it(tmp_path: Path) -> None:
    first = load_authority(tmp_path, now=NOW)
    (tmp_path / "ca.pem").unlink()

    again = load_authority(tmp_path, now=NOW)

    assert again.pem == first.pem == (tmp_path / "ca.pem").read_bytes()
    assert b"PRIVATE" not in (tmp_path / "ca.pem").read_bytes()


def test_an_issued_certificate_can_be_verified(tmp_path: Path) -> None:
    authority = load_authority(tmp_path, now=NOW)
    leaf, *chain = x509.load_pem_x509_certificates(authority.issue("n", HOSTS, now=NOW))

    verifier = PolicyBuilder().store(Store([authority.certificate])).time(NOW)
    for name in (x509.DNSName("kafka-1"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))):
        assert verifier.build_server_verifier(name).verify(leaf, chain)[0] == leaf
    with pytest.raises(VerificationError):
        verifier.build_server_verifier(x509.DNSName("kafka-2")).verify(leaf, chain)


def test_a_certificate_of_another_ca_is_not_trusted(tmp_path: Path) -> None:
    ours, other = (load_authority(tmp_path / name, now=NOW) for name in ("ours", "other"))
    leaf, *chain = x509.load_pem_x509_certificates(other.issue("n", HOSTS, now=NOW))

    verifier = PolicyBuilder().store(Store([ours.certificate])).time(NOW)
    with pytest.raises(VerificationError):
        verifier.build_server_verifier(x509.DNSName("kafka-1")).verify(leaf, chain)


def test_a_keystore_holds_key_and_chain_and_is_private(tmp_path: Path) -> None:
    authority = load_authority(tmp_path, now=NOW)
    path = tmp_path / "keystore.pem"

    assert ensure_keystore(path, authority, "n", HOSTS, now=NOW)

    assert mode(path) == 0o600
    key = load_pem_private_key(path.read_bytes(), None)
    leaf, ca = x509.load_pem_x509_certificates(path.read_bytes())
    assert leaf.public_key() == key.public_key()
    assert ca == authority.certificate


def test_a_valid_certificate_is_kept(tmp_path: Path) -> None:
    authority = load_authority(tmp_path, now=NOW)
    path = tmp_path / "keystore.pem"
    ensure_keystore(path, authority, "n", HOSTS, now=NOW)

    assert not ensure_keystore(path, authority, "n", list(reversed(HOSTS)), now=NOW)


def test_a_certificate_is_renewed_before_it_expires(tmp_path: Path) -> None:
    authority = load_authority(tmp_path, now=NOW)
    keystore = authority.issue("n", HOSTS, now=NOW)
    due = NOW + dt.timedelta(days=CERTIFICATE_DAYS - RENEW_DAYS_BEFORE_END)

    assert not needs_renewal(keystore, authority, HOSTS, now=due - dt.timedelta(minutes=1))
    assert needs_renewal(keystore, authority, HOSTS, now=due + dt.timedelta(minutes=1))


def test_a_certificate_for_other_hosts_or_of_another_ca_is_renewed(tmp_path: Path) -> None:
    authority, other = (load_authority(tmp_path / name, now=NOW) for name in ("ours", "other"))
    keystore = authority.issue("n", HOSTS, now=NOW)

    assert needs_renewal(keystore, authority, [*HOSTS, "kafka-2"], now=NOW)
    assert needs_renewal(keystore, other, HOSTS, now=NOW)
