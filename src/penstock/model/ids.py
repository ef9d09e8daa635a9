"""Ids, and how a tenant's names look inside Kafka.

An id is a prefix and six characters of an alphabet without look-alikes. `NewType` keeps a
logical cluster's id from being passed where a physical one is meant. Randomness is passed in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NewType

from penstock.model.errors.settings import NameInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Choice = Callable[[Sequence[str]], str]

PhysicalClusterId = NewType("PhysicalClusterId", str)
LogicalClusterId = NewType("LogicalClusterId", str)
ServiceAccountId = NewType("ServiceAccountId", str)
BrokerId = NewType("BrokerId", int)
Zone = NewType("Zone", str)

ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ID_LENGTH = 6
KAFKA_NAME_LENGTH_MAX = 249  # characters, topics; Kafka's own limit
TENANT_PREFIX_LENGTH = len("lkc-xxxxxx_")
TENANT_NAME_LENGTH_MAX = KAFKA_NAME_LENGTH_MAX - TENANT_PREFIX_LENGTH

_FORM = f"[{ID_ALPHABET}]{{{ID_LENGTH}}}"
_PATTERNS = {
    "physical cluster id": re.compile(f"pkc-{_FORM}"),
    "logical cluster id": re.compile(f"lkc-{_FORM}"),
    "service account id": re.compile(f"sa-{_FORM}"),
}


def physical_cluster_id(value: str) -> PhysicalClusterId:
    return PhysicalClusterId(_checked(value, "physical cluster id", "pkc-xxxxxx"))


def logical_cluster_id(value: str) -> LogicalClusterId:
    return LogicalClusterId(_checked(value, "logical cluster id", "lkc-xxxxxx"))


def service_account_id(value: str) -> ServiceAccountId:
    return ServiceAccountId(_checked(value, "service account id", "sa-xxxxxx"))


def new_physical_cluster_id(choice: Choice) -> PhysicalClusterId:
    return PhysicalClusterId("pkc-" + _random_tail(choice))


def new_logical_cluster_id(choice: Choice) -> LogicalClusterId:
    return LogicalClusterId("lkc-" + _random_tail(choice))


def new_service_account_id(choice: Choice) -> ServiceAccountId:
    return ServiceAccountId("sa-" + _random_tail(choice))


def tenant_prefix(tenant: LogicalClusterId) -> str:
    """What every topic, group and transactional id of this tenant begins with inside Kafka."""
    return f"{tenant}_"


def kafka_user(tenant: LogicalClusterId, account: ServiceAccountId) -> str:
    """The SCRAM user a gateway logs in as for this service account."""
    return f"{tenant}_{account}"


def _checked(value: str, kind: str, expected: str) -> str:
    if not _PATTERNS[kind].fullmatch(value):
        raise NameInvalid(value=value, kind=kind, expected=expected)
    return value


def _random_tail(choice: Choice) -> str:
    return "".join(choice(ID_ALPHABET) for _ in range(ID_LENGTH))
