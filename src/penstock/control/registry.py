"""The registry in memory: a fold of the records of its topic, with indexes for lookups.

Any process can rebuild it from the topic. A record of an unknown kind is kept as it is, so that an export
by an older control plane is complete. Changes are checked against versions before they become records.
The writer decides on a copy that is ahead of the commits, and discards it when a commit fails.
"""

from __future__ import annotations

import json
from bisect import bisect_right, insort
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from penstock.model.entities import (
    ENTITIES,
    ApiKey,
    BrokerState,
    Entity,
    LogicalCluster,
    Operation,
    OperatorToken,
    PhysicalCluster,
    ServiceAccount,
    broker_state_id,
)
from penstock.model.errors.control import EntityMissing, ImportRefused, VersionConflict
from penstock.model.events import RegistryRecord, entity_of, registry_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.model.ids import BrokerId, LogicalClusterId

EXPORT_FORMAT: Final = "penstock-registry/1"
NOT_EXPORTED: Final = frozenset({"active-control-plane"})  # valid for one run only

E = TypeVar("E", bound=Entity)


@dataclass(frozen=True, slots=True)
class _EntityChange:
    entity: Entity

    @property
    def key(self) -> bytes:
        return registry_key(self.entity.kind, self.entity.id)


@dataclass(frozen=True, slots=True)
class Put(_EntityChange):
    """Write this entity, one version above the one it was derived from."""

    @property
    def value(self) -> bytes | None:
        return self.entity.to_record().to_bytes()


@dataclass(frozen=True, slots=True)
class Drop(_EntityChange):
    """Delete an entity at the version it was read at."""

    @property
    def value(self) -> bytes | None:
        return None


Change = Put | Drop


class Registry:
    def __init__(self) -> None:
        self._by_kind: dict[str, dict[str, Entity]] = {kind: {} for kind in ENTITIES}
        self._sorted: dict[str, list[str]] = {kind: [] for kind in ENTITIES}
        self._foreign: dict[bytes, RegistryRecord] = {}
        self._names: dict[str, str] = {}  # of logical clusters
        self._of_tenant: dict[tuple[str, str], set[str]] = {}  # kind, tenant → accounts or keys
        self._running: set[str] = set()  # operations
        self._requests: dict[str, str] = {}  # idempotency hash → operation
        self._tokens: dict[str, str] = {}  # hash → token

    # Applying records

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Applies one record of the topic. An unreadable one raises: skipping it would lose it."""
        kind, entity_id = entity_of(key)
        known = ENTITIES.get(kind)
        if known is None:
            if value is None:
                self._foreign.pop(key, None)
            else:
                self._foreign[key] = RegistryRecord.from_bytes(value)
        elif value is None:
            self._remove(kind, entity_id)
        else:
            self._set(known.from_record(RegistryRecord.from_bytes(value)))

    def accept(self, changes: Iterable[Change]) -> None:
        """Applies changes that were decided on this registry; all of them or none."""
        checked = list(changes)
        for change in checked:
            self.check(change)
        for change in checked:
            if isinstance(change, Put):
                self._set(change.entity)
            else:
                self._remove(change.entity.kind, change.entity.id)

    def check(self, change: Change) -> None:
        entity = change.entity
        expected = entity.version - 1 if isinstance(change, Put) else entity.version
        current = self._by_kind[entity.kind].get(entity.id)
        actual = 0 if current is None else current.version
        if actual != expected:
            raise VersionConflict(kind=entity.kind, id=entity.id, actual=actual, expected=expected)

    # Lookups

    def get(self, kind: type[E], entity_id: str) -> E | None:
        entity = self._by_kind[kind.kind].get(entity_id)
        assert entity is None or isinstance(entity, kind)
        return entity

    def need(self, kind: type[E], entity_id: str) -> E:
        entity = self.get(kind, entity_id)
        if entity is None:
            raise EntityMissing(kind=kind.kind.replace("-", " "), id=entity_id)
        return entity

    def all(self, kind: type[E]) -> Iterator[E]:
        """In order of ids."""
        for entity_id in self._sorted[kind.kind]:
            yield self._by_kind[kind.kind][entity_id]  # type: ignore[misc] # kept by kind

    def count(self, kind: type[Entity]) -> int:
        return len(self._sorted[kind.kind])

    def after(self, kind: type[E], after: str) -> Iterator[E]:
        """The entities after an id, which need not exist any more, in order of ids."""
        ids = self._sorted[kind.kind]
        entities = self._by_kind[kind.kind]
        for number in range(bisect_right(ids, after) if after else 0, len(ids)):
            yield cast("E", entities[ids[number]])

    def cluster_named(self, name: str) -> LogicalCluster | None:
        return self.get(LogicalCluster, self._names.get(name, ""))

    def cluster(self, name_or_id: str) -> LogicalCluster:
        cluster = self.get(LogicalCluster, name_or_id) or self.cluster_named(name_or_id)
        if cluster is None:
            raise EntityMissing(kind="logical cluster", id=name_or_id)
        return cluster

    def accounts(self, tenant: LogicalClusterId | str) -> list[ServiceAccount]:
        ids = self._of_tenant.get((ServiceAccount.kind, tenant), ())
        return [self.need(ServiceAccount, entity_id) for entity_id in sorted(ids)]

    def keys(self, tenant: LogicalClusterId | str) -> list[ApiKey]:
        ids = self._of_tenant.get((ApiKey.kind, tenant), ())
        return [self.need(ApiKey, entity_id) for entity_id in sorted(ids)]

    def broker_states(self, physical: str) -> dict[BrokerId, BrokerState]:
        """The states of a physical cluster's brokers; those without one are normal."""
        prefix = broker_state_id(physical, 0)[:-1]
        states = takewhile(lambda state: state.id.startswith(prefix), self.after(BrokerState, prefix))
        return {state.broker: state for state in states}

    def running(self) -> list[Operation]:
        """Operations that have not ended, oldest first."""
        operations = [self.need(Operation, entity_id) for entity_id in self._running]
        return sorted(operations, key=lambda operation: (operation.created_ms, operation.id))

    def operation_of(self, request: str) -> Operation | None:
        return self.get(Operation, self._requests.get(request, ""))

    def token(self, secret_sha256: str) -> OperatorToken | None:
        return self.get(OperatorToken, self._tokens.get(secret_sha256, ""))

    def copy(self) -> Registry:
        """Another registry with the same entities; entities are values and may be shared."""
        other = Registry()
        for by_id in self._by_kind.values():
            for entity in by_id.values():
                other._set(entity)
        other._foreign = dict(self._foreign)
        return other

    # Export and import

    def export(self) -> str:
        """Every entity, one record per line after a header; none contains a secret."""
        records = [
            entity.to_record()
            for kind, by_id in sorted(self._by_kind.items())
            if kind not in NOT_EXPORTED
            for _, entity in sorted(by_id.items())
        ]
        records += [record for _, record in sorted(self._foreign.items())]
        header = json.dumps({"format": EXPORT_FORMAT, "records": len(records)})
        return "\n".join([header, *(record.to_bytes().decode() for record in records)]) + "\n"

    # Indexes

    def _set(self, entity: Entity) -> None:
        by_id = self._by_kind[entity.kind]
        if entity.id in by_id:
            self._unindex(by_id[entity.id])
        else:
            insort(self._sorted[entity.kind], entity.id)
        by_id[entity.id] = entity
        match entity:
            case LogicalCluster():
                self._names[entity.name] = entity.id
            case ServiceAccount() | ApiKey():
                self._of_tenant.setdefault((entity.kind, entity.tenant), set()).add(entity.id)
            case Operation():
                if not entity.ended:
                    self._running.add(entity.id)
                if entity.request:
                    self._requests[entity.request] = entity.id
            case OperatorToken():
                self._tokens[entity.secret_sha256] = entity.id
            case _:
                pass

    def _remove(self, kind: str, entity_id: str) -> None:
        entity = self._by_kind[kind].pop(entity_id, None)
        if entity is None:
            return
        ids = self._sorted[kind]
        ids.pop(bisect_right(ids, entity_id) - 1)
        self._unindex(entity)

    def _unindex(self, entity: Entity) -> None:
        match entity:
            case LogicalCluster():
                self._names.pop(entity.name, None)
            case ServiceAccount() | ApiKey():
                members = self._of_tenant[entity.kind, entity.tenant]
                members.discard(entity.id)
                if not members:
                    del self._of_tenant[entity.kind, entity.tenant]
            case Operation():
                self._running.discard(entity.id)
                self._requests.pop(entity.request, None)
            case OperatorToken():
                self._tokens.pop(entity.secret_sha256, None)
            case _:
                pass


def read_export(text: str) -> list[RegistryRecord]:
    """The records of an export; a truncated file is rejected as a whole."""
    header, _, body = text.partition("\n")
    try:
        facts: dict[str, Any] = json.loads(header)
        count, form = facts["records"], facts["format"]
    except (ValueError, KeyError, TypeError):
        raise ImportRefused(reason="it does not start with the header of an export") from None
    if form != EXPORT_FORMAT:
        raise ImportRefused(reason=f"its format is {form!r}, expected {EXPORT_FORMAT!r}")
    lines = body.splitlines()
    if len(lines) != count:
        raise ImportRefused(reason=f"it has {len(lines)} records, but its header declares {count}")
    return [RegistryRecord.from_bytes(line.encode()) for line in lines]


def tenants_of(key: bytes, value: bytes | None, registry: Registry) -> set[str]:
    """The tenants whose state a record may change."""
    kind, entity_id = entity_of(key)
    if kind == LogicalCluster.kind:
        return {entity_id}
    if kind == PhysicalCluster.kind:
        return {c.id for c in registry.all(LogicalCluster) if c.cluster == entity_id}
    if kind == BrokerState.kind:
        physical = entity_id.partition("/")[0]
        return {c.id for c in registry.all(LogicalCluster) if c.cluster == physical}
    if kind not in (ServiceAccount.kind, ApiKey.kind):
        return set()
    if value is not None:
        return {str(RegistryRecord.from_bytes(value).body["tenant"])}
    deleted = registry.get(ServiceAccount, entity_id) or registry.get(ApiKey, entity_id)
    return set() if deleted is None else {str(deleted.tenant)}
