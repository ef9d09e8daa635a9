"""Which metrics agent belongs to which broker: by the node id that the agent exports, or as declared.

An agent is written as `host:port`, or as `2=host:port` if it does not export the node id. The order of a list
means nothing: metrics of a wrong broker would relieve the wrong cell.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.kafka.metrics_scrape import scrape
from penstock.kafka.routing import Address
from penstock.model.errors.fleet import AgentMismatch, AgentTwice, AgentUnidentified, MetricsUnreachable

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


class Identified(NamedTuple):
    agents: tuple[tuple[int, str, int], ...]  # broker, host and port
    unreachable: tuple[MetricsUnreachable, ...]


async def identify(texts: Sequence[str], brokers: Collection[int]) -> Identified:
    """The agents of these brokers. Raises if one that responds cannot be assigned.

    One that does not respond is left out, unless an operator assigned it."""
    agents = [Agent.parse(text) for text in texts]
    scraped = await asyncio.gather(*(_node_id(agent) for agent in agents))
    unreachable = tuple(each for each in scraped if isinstance(each, MetricsUnreachable))
    exported: dict[Agent, int | None] = {}
    for agent, actual in zip(agents, scraped, strict=True):
        if not isinstance(actual, MetricsUnreachable):
            exported[agent] = actual
        elif agent.declared is not None:
            exported[agent] = None
    assigned = assign(exported, brokers)
    return Identified(
        tuple((broker, a.address.host, a.address.port) for broker, a in assigned.items()), unreachable
    )


async def _node_id(agent: Agent) -> int | MetricsUnreachable | None:
    try:
        return (await scrape(agent.address.host, agent.address.port)).node_id
    except MetricsUnreachable as failure:
        return failure


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
