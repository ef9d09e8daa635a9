"""Platform calls of a gateway without the platform key: the control plane checks and executes them.

Any control plane of the list may execute a call; they are tried in order, starting with the one that executed
the last. One that is behind refuses what another executes, so a refusal counts if all refuse. While none
responds, the call fails with a retriable error.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from penstock.fleet.credentials.gateway_credentials import gateway_token
from penstock.gateway.limits.platform_turns import PlatformTurns
from penstock.gateway.tenancy.platform_client import CALL_SECONDS, CALLS_AT_ONCE
from penstock.gateway.tenancy.tenant_acls import ENTRIES_MAX
from penstock.http_calls import open_url
from penstock.kafka.admin.acls import acl_entry, acl_of
from penstock.kafka.security import tls_context
from penstock.model.errors.gateway import PlatformCallRefused, PlatformCallUnavailable
from penstock.model.tenant_acls import AclEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.gateway.config import Tenant
    from penstock.gateway.settings import GatewaySettings
    from penstock.kafka.admin.acls import Acl
    from penstock.model.errors import PenstockError
    from penstock.model.ids import ServiceAccountId

PATH: Final = "/v1/gateway-calls"
RESPONSE_BYTES_MAX: Final = 16 << 20
REASON_CHARACTERS_MAX: Final = 200


class ControlPlaneCalls:
    """The gateway's `PlatformCalls`."""

    def __init__(self, settings: GatewaySettings) -> None:
        assert settings.credentials is not None
        control = settings.control
        self._urls = [] if control is None else list(control.urls)
        secure = any(url.startswith("https") for url in self._urls)
        self._tls = tls_context(control.ca) if control is not None and secure else None
        credentials = settings.credentials
        self._token = gateway_token(credentials.cluster, settings.gateway, credentials.key)
        self.additions = PlatformTurns(1)
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="control-plane-calls")

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def acls_of(self, tenant: Tenant, accounts: Iterable[ServiceAccountId]) -> list[Acl]:
        entries = await self._call(tenant, "acls_of", accounts=list(accounts))
        with _understood():
            return [acl_of(AclEntry(**entry)) for entry in entries]

    async def create(self, tenant: Tenant, bindings: Sequence[Acl]) -> dict[Acl, PenstockError | None]:
        return await self._change(tenant, "create_acls", bindings)

    async def delete(self, tenant: Tenant, bindings: Sequence[Acl]) -> dict[Acl, PenstockError | None]:
        return await self._change(tenant, "delete_acls", bindings)

    async def log_dirs(
        self, tenant: Tenant, broker: int, partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, Any]:
        named = {name: list(numbers) for name, numbers in partitions.items()}
        result = await self._call(tenant, "log_dirs", broker=broker, partitions=named)
        with _understood():
            return dict(result)

    async def partitions_of(self, broker: int, tenant: Tenant) -> dict[str, tuple[int, int]]:
        counts = await self._call(tenant, "partitions_of", broker=broker)
        with _understood():
            return {name: (int(partitions), int(copies)) for name, (partitions, copies) in counts.items()}

    async def groups_with_configs(self, tenant: Tenant) -> list[str]:
        groups = await self._call(tenant, "groups_with_configs")
        with _understood():
            return list(groups)

    async def broker_configs(self, tenant: Tenant, broker: int, names: Sequence[str]) -> list[dict[str, Any]]:
        entries = await self._call(tenant, "broker_configs", broker=broker, names=list(names))
        with _understood():
            return list(entries)

    async def _change(
        self, tenant: Tenant, call: str, bindings: Sequence[Acl]
    ) -> dict[Acl, PenstockError | None]:
        outcomes: dict[Acl, PenstockError | None] = {}
        for start in range(0, len(bindings), ENTRIES_MAX):
            batch = bindings[start : start + ENTRIES_MAX]
            codes = await self._call(tenant, call, acls=[asdict(acl_entry(acl)) for acl in batch])
            with _understood():
                for acl, code in zip(batch, codes, strict=True):
                    refused = PlatformCallRefused(reason=f"Kafka's error {code}", error_code=code)
                    outcomes[acl] = None if code is None else refused
        return outcomes

    async def _call(self, tenant: Tenant, call: str, **arguments: Any) -> Any:
        body = json.dumps({"tenant": tenant.id, "call": call, "arguments": arguments}).encode()
        try:
            async with asyncio.timeout(2 * CALL_SECONDS):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, self._try_each, body)
        except TimeoutError:
            raise PlatformCallUnavailable(reason="no response in time") from None

    def _try_each(self, body: bytes) -> Any:
        unavailable = refused = None
        for url in tuple(self._urls):
            try:
                result = self._once(url, body)
            except PlatformCallUnavailable as failure:
                unavailable = failure
            except PlatformCallRefused as refusal:
                refused = refusal
            else:
                self._urls.sort(key=lambda each: each != url)
                return result
        raise unavailable or refused or PlatformCallUnavailable(reason="`control.urls` is not set")

    def _once(self, url: str, body: bytes) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(url + PATH, body, headers, method="POST")  # noqa: S310 - checked
        try:
            with open_url(request, timeout=CALL_SECONDS, tls=self._tls) as response:
                return json.loads(response.read(RESPONSE_BYTES_MAX))["result"]
        except urllib.error.HTTPError as refusal:
            with refusal:
                reason = _detail(refusal)
            kind = PlatformCallUnavailable if refusal.code >= 500 else PlatformCallRefused
            raise kind(reason=f"{url}: {reason}") from None
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as failure:
            raise PlatformCallUnavailable(reason=f"{url}: {getattr(failure, 'reason', failure)}") from failure


@contextmanager
def _understood() -> Iterator[None]:
    """Around what reads a result: one of another form is a control plane of another version."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as failure:
        raise PlatformCallUnavailable(reason=f"its result is not understood: {failure}") from failure


def _detail(refusal: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(refusal.read(RESPONSE_BYTES_MAX))["detail"])[:REASON_CHARACTERS_MAX]
    except (ValueError, KeyError, TypeError, OSError):
        return f"status {refusal.code}"
