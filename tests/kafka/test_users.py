"""SCRAM users on a real cluster: a user set here can log in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.kafka.admin import users
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.users import Credential
from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors.wire import KafkaMissing, LoginRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client
    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka

PASSWORD = "p,=ässwörd"  # separators of SCRAM messages, and letters beyond ASCII


async def log_in(fleet: Fleet, login: Login) -> str:
    host, _, port = fleet.gateway_bootstrap.split(",")[0].rpartition(":")
    security = Security(login, fleet.security().tls)
    async with await Connection.open(host, int(port), security) as connection:
        return str((await connection.call("DescribeCluster"))["ClusterId"])


async def test_a_user_is_created_logs_in_and_is_deleted(
    fleet: Fleet, client: Client, unique: Callable[[str], str]
) -> None:
    user = unique("ada,=")
    login = Login(user, PASSWORD)
    results_or_raise(await users.alter(client, upsert=[Credential(user, PASSWORD, iterations=5000)]))

    async def logged_in() -> str | None:
        try:
            return await log_in(fleet, login)
        except LoginRefused:  # this broker does not know the user yet
            return None

    assert await eventually(logged_in) == fleet.kafka_id
    assert (await users.describe(client, [user]))[user] == {Mechanism.SCRAM_SHA_512: 5000}
    assert user in await users.describe(client)
    with pytest.raises(LoginRefused, match="SCRAM-SHA-512"):
        await log_in(fleet, Login(user, "wrong"))

    results_or_raise(await users.alter(client, delete=[(user, Mechanism.SCRAM_SHA_512)]))

    async def is_deleted() -> bool:
        return not await users.describe(client, [user])

    assert await eventually(is_deleted)


async def test_deleting_a_missing_user_is_an_error(client: Client, unique: Callable[[str], str]) -> None:
    user = unique("ada")

    outcome = (await users.alter(client, delete=[(user, Mechanism.SCRAM_SHA_256)]))[user]

    assert isinstance(outcome, KafkaMissing)


async def test_an_unsupported_mechanism_is_an_error_that_lists_the_supported_ones(fleet: Fleet) -> None:
    with pytest.raises(LoginRefused, match="UNSUPPORTED_SASL_MECHANISM") as refused:
        await log_in(fleet, Login("ada", "x", Mechanism.PLAIN))

    assert "SCRAM-SHA-512" in refused.value.advice
