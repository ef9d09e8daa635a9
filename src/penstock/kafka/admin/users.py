"""Describe and set Kafka's SCRAM users. Passwords are salted here and never sent."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.kafka.admin.outcomes import outcome
from penstock.kafka.broker_errors import check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import CONTROLLER
from penstock.kafka.scram import HASHES, ITERATIONS_MIN
from penstock.kafka.security import Mechanism
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError

SALT_BYTES: Final = 24

_NUMBERS: Final = {Mechanism.SCRAM_SHA_256: 1, Mechanism.SCRAM_SHA_512: 2}
_MECHANISMS: Final = {number: mechanism for mechanism, number in _NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class Credential:
    """A password to set for a user and a mechanism."""

    user: str
    password: str = field(repr=False)
    mechanism: Mechanism = Mechanism.SCRAM_SHA_512
    iterations: int = ITERATIONS_MIN


async def describe(
    client: Client, users: Sequence[str] | None = None, *, timeout: float = CALL_SECONDS
) -> dict[str, dict[Mechanism, int]]:
    """Iterations by mechanism, for these users or all; users without credentials are left out."""
    api = "DescribeUserScramCredentials"
    body = {"Users": None if users is None else [{"Name": user} for user in users]}
    response = await client.call(api, body, timeout=timeout)
    check(api, response["ErrorCode"], response["ErrorMessage"])
    described = {}
    for r in response["Results"]:
        if r["ErrorCode"] == Code.RESOURCE_NOT_FOUND:
            continue
        check(api, r["ErrorCode"], r["ErrorMessage"], f"user {r['User']!r}")
        described[r["User"]] = {_MECHANISMS[c["Mechanism"]]: c["Iterations"] for c in r["CredentialInfos"]}
    return described


async def alter(
    client: Client,
    *,
    upsert: Sequence[Credential] = (),
    delete: Sequence[tuple[str, Mechanism]] = (),
    timeout: float = CALL_SECONDS,
) -> dict[str, PenstockError | None]:
    """Set and delete credentials; returns the error, if any, by user."""
    upsertions = []
    for credential in upsert:
        salt = os.urandom(SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(
            HASHES[credential.mechanism.value], credential.password.encode(), salt, credential.iterations
        )
        upsertions.append(
            {
                "Name": credential.user,
                "Mechanism": _NUMBERS[credential.mechanism],
                "Iterations": credential.iterations,
                "Salt": salt,
                "SaltedPassword": salted,
            }
        )
    deletions = [{"Name": user, "Mechanism": _NUMBERS[mechanism]} for user, mechanism in delete]
    api = "AlterUserScramCredentials"
    body = {"Upsertions": upsertions, "Deletions": deletions}
    response = await client.call(api, body, to=CONTROLLER, timeout=timeout)
    return {
        r["User"]: outcome(api, r["ErrorCode"], r["ErrorMessage"], f"user {r['User']!r}", None)
        for r in response["Results"]
    }
