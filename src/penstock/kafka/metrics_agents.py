"""Which metrics agent belongs to which broker: by the node id that the agent exports, or as declared.

An agent is written as `host:port`, or as `2=host:port` if it does not export the node id. The order of a list
means nothing: metrics of a wrong broker would relieve the wrong cell.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kafka.metrics_scrape import scrape
from penstock.kafka.routing import Address
from penstock.model.errors.fleet import AgentMismatch, AgentTwice, AgentUnidentified

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Agent:
    address: Address
    declared: int | None = None  # the broker that an operator assigned it to

    @classmethod
    def parse(cls, text: str) -> Agent:
        broker, equals, address = text.strip().rpartition("=")
        return cls(Address.parse(address), int(broker) if equals and broker.isdecimal() else None)


async def identify(texts: Sequence[str], brokers: Collection[int]) -> tuple[tuple[int, str, int], ...]:
    """Broker, host and port of each agent. Raises if one cannot be scraped or assigned."""
    agents = [Agent.parse(text) for text in texts]
    scraped = await asyncio.gather(*(scrape(agent.address.host, agent.address.port) for agent in agents))
    exported = {agent: metrics.node_id for agent, metrics in zip(agents, scraped, strict=True)}
    return tuple((broker, a.address.host, a.address.port) for broker, a in assign(exported, brokers).items())


def assign(exported: Mapping[Agent, int | None], brokers: Collection[int]) -> dict[int, Agent]:
    """The agent of each broker, given the node id that each agent exports."""
    assigned: dict[int, Agent] = {}
    known = ", ".join(map(str, sorted(brokers)))
    for agent, actual in exported.items():
        broker = agent.declared if actual is None else actual
        if broker is None:
            raise AgentUnidentified(address=agent.address)
        if agent.declared not in (None, broker):
            expected = f"broker {agent.declared}"
            raise AgentMismatch(address=agent.address, actual=broker, expected=expected, known=known)
        if broker not in brokers:
            expected = "any broker of this cluster"
            raise AgentMismatch(address=agent.address, actual=broker, expected=expected, known=known)
        if broker in assigned:
            raise AgentTwice(first=assigned[broker].address, second=agent.address, broker=broker)
        assigned[broker] = agent
    return dict(sorted(assigned.items()))
