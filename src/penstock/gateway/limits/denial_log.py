"""Which denials are logged: a few a second for each tenant, so that one cannot hide another's.

A denial before login counts for its address, since its tenant is only claimed. Every denial is counted as a
metric, logged or not.
"""

from __future__ import annotations

from typing import Final

TENANT_LINES_MAX: Final = 20  # a second
ADDRESS_LINES_MAX: Final = 5  # a second
ADDRESSES_MAX: Final = 50  # a second; further ones share the lines of one


class DenialLog:
    """Counts the lines of the current second. Memory is bounded by the tenants and `ADDRESSES_MAX`."""

    __slots__ = ("_addresses", "_second", "_tenants")

    def __init__(self) -> None:
        self._second = 0
        self._tenants: dict[str, int] = {}
        self._addresses: dict[str, int] = {}

    def admits(self, tenant: str | None, address: str, now: float) -> bool:
        """Whether there is room for one more line; `tenant` if the connection has logged in."""
        if int(now) != self._second:
            self._second = int(now)
            self._tenants.clear()
            self._addresses.clear()
        if tenant is not None:
            lines = self._tenants[tenant] = self._tenants.get(tenant, 0) + 1
            return lines <= TENANT_LINES_MAX
        if address not in self._addresses and len(self._addresses) >= ADDRESSES_MAX:
            address = ""
        lines = self._addresses[address] = self._addresses.get(address, 0) + 1
        return lines <= ADDRESS_LINES_MAX
