"""Ids, and the form of a tenant's names inside Kafka.

An id is a prefix and six characters from an alphabet without look-alikes. `NewType` keeps a logical
cluster's id from being passed as a physical one's. Randomness is passed in.
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
KAFKA_NAME_LENGTH_MAX = 249  # characters of a topic name, Kafka's limit

_TAIL = re.compile(f"[{ID_ALPHABET}]{{{ID_LENGTH}}}")
TENANT_NAME = re.compile(f"(lkc-{_TAIL.pattern})_")


def physical_cluster_id(value: str) -> PhysicalClusterId:
    return PhysicalClusterId(_checked(value, "pkc-", "physical cluster id"))


def logical_cluster_id(value: str) -> LogicalClusterId:
    return LogicalClusterId(_checked(value, "lkc-", "logical cluster id"))


def service_account_id(value: str) -> ServiceAccountId:
    return ServiceAccountId(_checked(value, "sa-", "service account id"))


def new_physical_cluster_id(choice: Choice) -> PhysicalClusterId:
    return PhysicalClusterId("pkc-" + _random_tail(choice))


def new_logical_cluster_id(choice: Choice) -> LogicalClusterId:
    return LogicalClusterId("lkc-" + _random_tail(choice))


def new_service_account_id(choice: Choice) -> ServiceAccountId:
    return ServiceAccountId("sa-" + _random_tail(choice))


def tenant_prefix(tenant: LogicalClusterId) -> str:
    """The prefix of this tenant's topics, groups and transactional ids inside Kafka."""
    return f"{tenant}_"


def tenant_of(name: str) -> str:
    """The tenant of a name inside Kafka; empty for one of the platform or of Kafka."""
    match = TENANT_NAME.match(name)
    return "" if match is None else match[1]


def kafka_user(tenant: LogicalClusterId, account: ServiceAccountId) -> str:
    """The SCRAM user a gateway logs in as for this service account."""
    return f"{tenant}_{account}"


def _checked(value: str, prefix: str, kind: str) -> str:
    if not value.startswith(prefix) or not _TAIL.fullmatch(value, len(prefix)):
        raise NameInvalid(value=value, kind=kind, expected=f"{prefix}xxxxxx")
    return value


def _random_tail(choice: Choice) -> str:
    return "".join(choice(ID_ALPHABET) for _ in range(ID_LENGTH))
