"""The registry as a fold: records in, entities out, with the few indexes that questions need.

It is a plain value in memory, rebuilt from its topic by anybody. A record of a kind that is not
known here is kept as it is, so that an export made by an older control plane is still whole.
Changes are checked against versions before they become records; whoever writes them decides on a
copy that is ahead of what was committed, and throws it away when a commit fails.
"""

from __future__ import annotations

import json
from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from penstock.model.entities import (
    ENTITIES,
    ApiKey,
    Entity,
    LogicalCluster,
    Operation,
    OperatorToken,
    ServiceAccount,
)
from penstock.model.errors.control import EntityMissing, ImportRefused, VersionConflict
from penstock.model.events import RegistryRecord, entity_of, registry_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.model.ids import LogicalClusterId

EXPORT_FORMAT: Final = "penstock-registry/1"
EXPORTED_NOT: Final = frozenset({"holder"})  # of one run only

E = TypeVar("E", bound=Entity)


@dataclass(frozen=True, slots=True)
class Put:
    """Write this entity, which is one version above what it was made from."""

    entity: Entity

    @property
    def key(self) -> bytes:
        return registry_key(self.entity.kind, self.entity.id)

    @property
    def value(self) -> bytes | None:
        return self.entity.to_record().to_bytes()


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete an entity at the version it was seen at."""

    entity: Entity

    @property
    def key(self) -> bytes:
        return registry_key(self.entity.kind, self.entity.id)

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
        self._accounts: dict[str, set[str]] = {}  # by tenant
        self._keys: dict[str, set[str]] = {}  # by tenant
        self._running: set[str] = set()  # operations
        self._requests: dict[str, str] = {}  # idempotency hash → operation
        self._tokens: dict[str, str] = {}  # hash → token

    # Taking records

    def apply(self, key: bytes, value: bytes | None) -> None:
        """One record of the topic. One that cannot be understood raises: to skip it would be to lose it."""
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
        """Changes that were decided on this very registry; all of them or none."""
        made = list(changes)
        for change in made:
            self.check(change)
        for change in made:
            if isinstance(change, Put):
                self._set(change.entity)
            else:
                self._remove(change.entity.kind, change.entity.id)

    def check(self, change: Change) -> None:
        entity = change.entity
        expected = entity.version - 1 if isinstance(change, Put) else entity.version
        current = self._by_kind[entity.kind].get(entity.id)
        found = 0 if current is None else current.version
        if found != expected:
            raise VersionConflict(kind=entity.kind, id=entity.id, found=found, expected=expected)

    # Questions

    def get(self, kind: type[E], entity_id: str) -> E | None:
        found = self._by_kind[kind.kind].get(entity_id)
        assert found is None or isinstance(found, kind)
        return found

    def need(self, kind: type[E], entity_id: str) -> E:
        found = self.get(kind, entity_id)
        if found is None:
            raise EntityMissing(kind=kind.kind.replace("-", " "), id=entity_id)
        return found

    def all(self, kind: type[E]) -> Iterator[E]:
        """In order of their ids."""
        for entity_id in self._sorted[kind.kind]:
            yield self._by_kind[kind.kind][entity_id]  # type: ignore[misc] # kept by kind

    def count(self, kind: type[Entity]) -> int:
        return len(self._sorted[kind.kind])

    def after(self, kind: type[E], after: str) -> Iterator[E]:
        """Those behind an id, which need not be there any more, in order of their ids."""
        ids = self._sorted[kind.kind]
        found = self._by_kind[kind.kind]
        for number in range(bisect_right(ids, after) if after else 0, len(ids)):
            yield cast("E", found[ids[number]])

    def cluster_named(self, name: str) -> LogicalCluster | None:
        found = self._names.get(name)
        return None if found is None else self.get(LogicalCluster, found)

    def cluster(self, name_or_id: str) -> LogicalCluster:
        found = self.get(LogicalCluster, name_or_id) or self.cluster_named(name_or_id)
        if found is None:
            raise EntityMissing(kind="logical cluster", id=name_or_id)
        return found

    def accounts(self, tenant: LogicalClusterId | str) -> list[ServiceAccount]:
        return [self.need(ServiceAccount, entity_id) for entity_id in sorted(self._accounts.get(tenant, ()))]

    def keys(self, tenant: LogicalClusterId | str) -> list[ApiKey]:
        return [self.need(ApiKey, entity_id) for entity_id in sorted(self._keys.get(tenant, ()))]

    def running(self) -> list[Operation]:
        """Operations that have not ended, the oldest first."""
        found = [self.need(Operation, entity_id) for entity_id in self._running]
        return sorted(found, key=lambda operation: (operation.made_ms, operation.id))

    def operation_of(self, request: str) -> Operation | None:
        found = self._requests.get(request)
        return None if found is None else self.get(Operation, found)

    def token(self, secret_sha256: str) -> OperatorToken | None:
        found = self._tokens.get(secret_sha256)
        return None if found is None else self.get(OperatorToken, found)

    def copy(self) -> Registry:
        """Another registry with the same entities, which are values and may be shared."""
        other = Registry()
        for by_id in self._by_kind.values():
            for entity in by_id.values():
                other._set(entity)
        other._foreign = dict(self._foreign)
        return other

    # Export and import

    def export(self) -> str:
        """Every entity, one record a line behind a head; secrets are in none of them."""
        records = [
            entity.to_record()
            for kind, by_id in sorted(self._by_kind.items())
            if kind not in EXPORTED_NOT
            for _, entity in sorted(by_id.items())
        ]
        records += [record for _, record in sorted(self._foreign.items())]
        head = json.dumps({"format": EXPORT_FORMAT, "records": len(records)})
        return "\n".join([head, *(record.to_bytes().decode() for record in records)]) + "\n"

    # Within

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
            case ServiceAccount():
                self._accounts.setdefault(entity.tenant, set()).add(entity.id)
            case ApiKey():
                self._keys.setdefault(entity.tenant, set()).add(entity.id)
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
            case ServiceAccount():
                _discard(self._accounts, entity.tenant, entity.id)
            case ApiKey():
                _discard(self._keys, entity.tenant, entity.id)
            case Operation():
                self._running.discard(entity.id)
                self._requests.pop(entity.request, None)
            case OperatorToken():
                self._tokens.pop(entity.secret_sha256, None)
            case _:
                pass


def _discard(index: dict[str, set[str]], owner: str, entity_id: str) -> None:
    members = index.get(owner, set())
    members.discard(entity_id)
    if not members:
        index.pop(owner, None)


def read_export(text: str) -> list[RegistryRecord]:
    """The records of an export, checked: a file that was cut off is refused as a whole."""
    head, _, body = text.partition("\n")
    try:
        facts: dict[str, Any] = json.loads(head)
        wanted, form = facts["records"], facts["format"]
    except (ValueError, KeyError, TypeError):
        raise ImportRefused(reason="it does not begin with the head of an export") from None
    if form != EXPORT_FORMAT:
        raise ImportRefused(reason=f"its format is {form!r}, expected {EXPORT_FORMAT!r}")
    lines = body.splitlines()
    if len(lines) != wanted:
        raise ImportRefused(reason=f"it has {len(lines)} records, and was written with {wanted}")
    return [RegistryRecord.from_bytes(line.encode()) for line in lines]


def records_of(changes: Sequence[Change]) -> list[tuple[bytes, bytes | None]]:
    return [(change.key, change.value) for change in changes]
