"""SCRAM users on a real cluster: whoever is set here can log in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.kafka import users
from penstock.kafka.connection import Connection
from penstock.kafka.outcomes import all_done
from penstock.kafka.security import Login, Mechanism, Security
from penstock.kafka.users import Credential
from penstock.model.errors.wire import KafkaMissing, LoginRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client
    from tests.ground.fleet import Fleet

pytestmark = pytest.mark.kafka

PASSWORD = "p,=ässwörd"  # separators of SCRAM's own messages, and letters beyond ASCII


async def log_in(fleet: Fleet, login: Login) -> str:
    host, _, port = fleet.gateway_bootstrap.split(",")[0].rpartition(":")
    security = Security(login, fleet.security().tls)
    async with await Connection.open(host, int(port), security) as connection:
        return str((await connection.call("DescribeCluster"))["ClusterId"])


async def test_a_user_is_made_logs_in_and_is_deleted(
    fleet: Fleet, client: Client, unique: Callable[[str], str]
) -> None:
    user = unique("ada,=")
    login = Login(user, PASSWORD)
    all_done(await users.alter(client, upsert=[Credential(user, PASSWORD, iterations=5000)]))

    async def logged_in() -> str | None:
        try:
            return await log_in(fleet, login)
        except LoginRefused:  # the broker asked has not heard of the user yet
            return None

    assert await eventually(logged_in) == fleet.kafka_id
    assert (await users.describe(client, [user]))[user] == {Mechanism.SCRAM_SHA_512: 5000}
    assert user in await users.describe(client)
    with pytest.raises(LoginRefused, match="SCRAM-SHA-512"):
        await log_in(fleet, Login(user, "wrong"))

    all_done(await users.alter(client, delete=[(user, Mechanism.SCRAM_SHA_512)]))

    async def gone() -> bool:
        return not await users.describe(client, [user])

    assert await eventually(gone)


async def test_deleting_a_user_that_is_not_there_says_so(
    client: Client, unique: Callable[[str], str]
) -> None:
    user = unique("ada")

    outcome = (await users.alter(client, delete=[(user, Mechanism.SCRAM_SHA_256)]))[user]

    assert isinstance(outcome, KafkaMissing)


async def test_a_mechanism_that_is_not_offered_is_refused_with_those_that_are(fleet: Fleet) -> None:
    with pytest.raises(LoginRefused, match="UNSUPPORTED_SASL_MECHANISM") as refused:
        await log_in(fleet, Login("ada", "x", Mechanism.PLAIN))

    assert "SCRAM-SHA-512" in refused.value.advice
