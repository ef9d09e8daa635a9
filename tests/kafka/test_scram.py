"""SCRAM against the example of the RFC, and against servers with invalid messages."""

from __future__ import annotations

import pytest

from penstock.kafka.scram import (
    Exchange,
    ScramRefused,
    ScramUntrusted,
    check_final,
    final_message,
    first_message,
)

# RFC 7677, section 3.
EXCHANGE = Exchange("sha256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_example_of_the_rfc() -> None:
    proof = final_message(EXCHANGE, SERVER_FIRST)

    assert first_message(EXCHANGE) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert proof.message == CLIENT_FINAL
    check_final(proof, SERVER_FINAL)


def test_separators_in_a_name_are_escaped() -> None:
    assert first_message(Exchange("sha512", "a=b,c", "p", "n")) == b"n,,n=a=3Db=2Cc,r=n"


@pytest.mark.parametrize(
    ("server_first", "reason"),
    [
        (b"", "not a SCRAM message"),
        (b"\xff", "not UTF-8"),
        (f"r={NONCE},s=!,i=4096".encode(), "not a SCRAM message"),
        (f"r={NONCE},s=W22Z,i=many".encode(), "not a SCRAM message"),
        (b"r=another,s=W22Z,i=4096", "our nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22Z,i=4096", "our nonce"),
        (f"r={NONCE},s=W22Z,i=1".encode(), "1 iterations"),
        (f"r={NONCE},s=W22Z,i=900000000".encode(), "900000000 iterations"),
    ],
)
def test_an_invalid_first_message_is_not_trusted(server_first: bytes, reason: str) -> None:
    with pytest.raises(ScramUntrusted, match=reason):
        final_message(EXCHANGE, server_first)


@pytest.mark.parametrize("server_final", [b"", b"v=", b"v=!", b"v=AAAA", SERVER_FINAL[:-4]])
def test_a_wrong_signature_is_not_trusted(server_final: bytes) -> None:
    with pytest.raises(ScramUntrusted):
        check_final(final_message(EXCHANGE, SERVER_FIRST), server_final)


def test_a_rejection_keeps_its_reason() -> None:
    with pytest.raises(ScramRefused, match="invalid-proof"):
        check_final(final_message(EXCHANGE, SERVER_FIRST), b"e=invalid-proof")
