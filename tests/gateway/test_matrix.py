"""Java's admin client, method by method, as a tenant: what each comes to, in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gateway.conftest import TENANTS_FILE
from tests.gateway.tables import JAVA

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.gateway import Access

pytestmark = pytest.mark.kafka


def test_every_method_of_javas_admin_client_matches_the_table(
    java: Callable[..., str], ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    printed = java(
        "EveryMethod",
        ada.bootstrap,
        unique("orders"),
        unique("readers"),
        ada.key,
        ada.secret,
        bob.key,
        bob.secret,
    )

    # A control plane sets a client quota for each tenant, which the tenant may see.
    expected = JAVA | ({"describeClientQuotas": "1"} if TENANTS_FILE else {})
    lines = [line.split("|") for line in printed.splitlines() if line.count("|") == 2]
    for name in ("t0", "t1"):
        assert {method: result for who, method, result in lines if who == name} == expected
