"""Which gateway has which name on a physical cluster, as a fold over the heartbeats in `_penstock.gateways`.

A name belongs to the first instance that registers it, as long as its heartbeats are less than `LEASE_MS`
apart; an instance is a host and a settings file, so a successor on the same host keeps the name. Hosts that
share a name differ by the boot of their kernel. Times are those at which the broker appended the records:
every reader comes to the same result, whatever its clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.model.errors.events import EventUnreadable
from penstock.model.events import GatewayHeartbeat

if TYPE_CHECKING:
    from collections.abc import Iterable

HEARTBEAT_SECONDS: Final = 2.0
LEASE_MS: Final = 10_000  # without a heartbeat, until the gateway counts as gone
NAMES_MAX: Final = 1_000  # of one cluster; further ones replace those that are gone, or are not listed
HEARTBEAT_BYTES_MAX: Final = 64 * 1024  # with the addresses of a thousand brokers; longer ones do not count
BOOTSTRAP_ADDRESSES_MAX: Final = 9  # that a tenant is given


def read_heartbeat(value: bytes) -> GatewayHeartbeat:
    """From the topic. A stolen gateway credential can write there, so the length is bounded."""
    if len(value) > HEARTBEAT_BYTES_MAX:
        reason = f"{len(value)} bytes, at most {HEARTBEAT_BYTES_MAX}"
        raise EventUnreadable(kind=GatewayHeartbeat.kind, reason=reason)
    return GatewayHeartbeat.from_bytes(value)


@dataclass(frozen=True, slots=True)
class Holder:
    """The gateway that has a name, and when the broker appended its latest heartbeat."""

    heartbeat: GatewayHeartbeat
    appended_ms: int

    def lives(self, now_ms: int) -> bool:
        return not self.heartbeat.stopped and now_ms - self.appended_ms <= LEASE_MS


class GatewayNames:
    def __init__(self) -> None:
        self.holders: dict[str, Holder] = {}

    def apply(self, heartbeat: GatewayHeartbeat, appended_ms: int) -> None:
        name, holder = heartbeat.gateway, self.holders.get(heartbeat.gateway)
        if holder is None and len(self.holders) >= NAMES_MAX and not self._forget_one_gone(appended_ms):
            return
        if holder is not None:
            same = _same_instance(holder.heartbeat, heartbeat)
            if not same and (holder.lives(appended_ms) or heartbeat.stopped):
                return  # refused: the name is taken
            predecessor = holder.heartbeat.incarnation != heartbeat.incarnation
            if same and predecessor and heartbeat.started_ms < holder.heartbeat.started_ms:
                return  # a predecessor on the same host, which drains
        self.holders[name] = Holder(heartbeat, appended_ms)

    def _forget_one_gone(self, now_ms: int) -> bool:
        """Makes room: gateways with random names leave one behind at every restart."""
        oldest = min(self.holders, key=lambda name: self.holders[name].appended_ms)
        gone = next((n for n, each in self.holders.items() if each.heartbeat.stopped), oldest)
        if self.holders[gone].lives(now_ms):
            return False
        del self.holders[gone]
        return True

    def forget(self, name: str) -> None:
        self.holders.pop(name, None)

    def contender(self, heartbeat: GatewayHeartbeat) -> GatewayHeartbeat | None:
        """The gateway that has the name instead of this one."""
        holder = self.holders.get(heartbeat.gateway)
        if holder is None or _same_instance(holder.heartbeat, heartbeat):
            return None
        return holder.heartbeat


def _same_instance(one: GatewayHeartbeat, other: GatewayHeartbeat) -> bool:
    same_boot = one.boot == other.boot or not (one.boot and other.boot)
    return one.instance == other.instance and same_boot


def bootstrap_for(tenant: str, gateways: Iterable[GatewayHeartbeat]) -> str:
    """The bootstrap addresses of a tenant. Gateways behind one load balancer share an address, listed once.

    Every gateway contributes before any contributes twice, so that a tenant can reach each of them.
    """
    lists = [
        [f"{tenant}.{one.domain}:{one.port}"] if one.domain else one.bootstrap.split(",")
        for one in gateways
        if one.domain or one.bootstrap
    ]
    in_turn = (each[n] for n in range(max(map(len, lists), default=0)) for each in lists if n < len(each))
    return ",".join(list(dict.fromkeys(in_turn))[:BOOTSTRAP_ADDRESSES_MAX])
