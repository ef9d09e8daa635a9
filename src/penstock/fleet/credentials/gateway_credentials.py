"""What a gateway on another host may know: the tenants' key of one physical cluster, in a file.

The key derives from the platform key. Passwords of the cluster's tenants and of its gateways derive from it,
and so does the gateway's token for the control plane. It is of no use on another cluster, and the platform's
own user has another password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import yaml

from penstock.atomic_files import write_atomically
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.fleet.layout import SECRET_FILE_MODE
from penstock.model.errors.gateway import CredentialsUnusable
from penstock.model.errors.settings import SettingsUnreadable
from penstock.model.ids import PhysicalClusterId, physical_cluster_id
from penstock.model.settings_reader import Section, read_mapping

if TYPE_CHECKING:
    from pathlib import Path

KEY_BYTES: Final = 32
TOKEN_SCHEME: Final = "gateway"  # noqa: S105 - how such a token begins
_KEYS: Final = ("cluster", "kafka_id", "generation", "tenants_key")
_NOTE: Final = "# Allows to log in as every tenant of this cluster. Only its gateways may read this file.\n"


def tenants_key(platform_key: PlatformKey, kafka_id: str, generation: int = 1) -> PlatformKey:
    """The key of the tenants of one Kafka cluster. A higher generation replaces a key that was stolen."""
    suffix = f"\0{generation}" if generation > 1 else ""
    return PlatformKey(
        hmac.digest(platform_key.secret, f"cluster\0{kafka_id}{suffix}".encode(), hashlib.sha256)
    )


def gateway_token(cluster: str, gateway: str, key: PlatformKey) -> str:
    """The bearer token with which a gateway calls the control plane."""
    return f"{TOKEN_SCHEME}/{cluster}/{gateway}/{key.password(f'_penstock.control/{gateway}')}"


def parse_gateway_token(token: str) -> tuple[str, str] | None:
    """The cluster and gateway that a token names, unchecked; None if it is an operator's."""
    parts = token.split("/")
    return (parts[1], parts[2]) if len(parts) == 4 and parts[0] == TOKEN_SCHEME else None


@dataclass(frozen=True, slots=True)
class GatewayCredentials:
    cluster: PhysicalClusterId
    kafka_id: str
    key: PlatformKey = field(repr=False)
    generation: int = 1

    def write(self, path: Path) -> None:
        document = {
            "cluster": str(self.cluster),
            "kafka_id": self.kafka_id,
            "generation": self.generation,
            "tenants_key": base64.b64encode(self.key.secret).decode(),
        }
        write_atomically(path, _NOTE + yaml.safe_dump(document, sort_keys=False), mode=SECRET_FILE_MODE)

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            section = Section(str(path), read_mapping(path), _KEYS)
            secret = base64.b64decode(section.text("tenants_key"), validate=True)
        except SettingsUnreadable as failure:
            # Not the parser's text: it may quote the key.
            raise CredentialsUnusable(path=path, reason="it cannot be read as YAML") from failure
        except binascii.Error as failure:
            raise CredentialsUnusable(path=path, reason="its key is no base64") from failure
        if len(secret) != KEY_BYTES:
            raise CredentialsUnusable(path=path, reason=f"its key has {len(secret)} bytes, not {KEY_BYTES}")
        cluster = physical_cluster_id(section.text("cluster"))
        generation = section.integer("generation", 1, at_least=1, at_most=2**31 - 1)
        return cls(cluster, section.text("kafka_id"), PlatformKey(secret), generation)
