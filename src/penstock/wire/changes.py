"""What changed between two Kafka versions, as far as the wire is concerned.

    python -m penstock.wire.changes OLD [NEW]

OLD and NEW are folders of Kafka's jars or packed definitions; NEW defaults to this installation's.
Of most interest are new fields that look like names: each needs a rule before a gateway may pass
the message on (`docs/wire.md`).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.model.errors import PenstockError
from penstock.wire.definitions import Definitions, compile_jars, load, read, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.wire.definitions import Field, Message

NAMING_ENTITIES: Final = frozenset(("topicName", "groupId", "transactionalId", "brokerId"))
_NAME_LIKE: Final = re.compile(
    r"Topic(Id|Name|s|Regex)?$|TopicNames$|Group(Id|Name|s)?$|Groups?Ids?$|GroupsNames$|Transactional"
    r"|Host|Port$|Client(Id|InstanceId)|ClusterId|Resource(Name|Pattern)|Principal|Owner|User|Regex|Pattern"
    r"|EntityName|CoordinatorKeys?$|^Key$|^Match$|ErrorMessage|StatusDetail|NodeId|BrokerId|LeaderId"
)
_TEXT: Final = frozenset(("string", "uuid", "bytes"))


@dataclass(frozen=True, slots=True)
class NamedField:
    """A field that may carry a name, and where."""

    message: str
    path: str
    entity_type: str | None
    versions: str

    def __str__(self) -> str:
        mark = f" ({self.entity_type})" if self.entity_type else ""
        return f"{self.message} {self.path} {self.versions}{mark}"


@dataclass(frozen=True, slots=True)
class Changes:
    old: str
    new: str
    apis_added: tuple[str, ...]
    apis_removed: tuple[str, ...]
    messages_added: tuple[str, ...]  # other than requests and responses
    messages_removed: tuple[str, ...]
    versions: tuple[str, ...]  # `FetchRequest 4-17 → 4-18`
    names_added: tuple[NamedField, ...]
    names_removed: tuple[NamedField, ...]

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__ if name not in ("old", "new"))


def is_name_like(field: Field) -> bool:
    """Whether a field carries a name, by its declared entity or by how it is called and typed."""
    if field.entity_type in NAMING_ENTITIES:
        return True
    numeric = field.name.endswith(("Port", "NodeId", "BrokerId", "LeaderId"))
    return (field.kind in _TEXT or numeric) and bool(_NAME_LIKE.search(field.name))


def name_like_fields(message: Message) -> Iterator[NamedField]:
    for path, field in _walk(message.fields, ""):
        if is_name_like(field):
            yield NamedField(message.name, path, field.entity_type, str(field.versions))


def changes(old: Definitions, new: Definitions) -> Changes:
    old_apis, new_apis = set(old.apis().values()), set(new.apis().values())
    names = {side: _others(definitions) for side, definitions in (("old", old), ("new", new))}
    both = sorted(set(old.names()) & set(new.names()))
    versions = [
        f"{name} {before} → {after}"
        for name in both
        if (before := old.message(name).valid_versions) != (after := new.message(name).valid_versions)
    ]
    old_names, new_names = _names(old), _names(new)
    return Changes(
        old=old.kafka_version,
        new=new.kafka_version,
        apis_added=tuple(sorted(new_apis - old_apis)),
        apis_removed=tuple(sorted(old_apis - new_apis)),
        messages_added=tuple(sorted(names["new"] - names["old"])),
        messages_removed=tuple(sorted(names["old"] - names["new"])),
        versions=tuple(versions),
        names_added=tuple(sorted(new_names - old_names, key=str)),
        names_removed=tuple(sorted(old_names - new_names, key=str)),
    )


def report(found: Changes) -> str:
    lines = [f"Kafka {found.old} → {found.new}"]
    sections = {
        "new APIs": found.apis_added,
        "APIs gone": found.apis_removed,
        "new records and other messages": found.messages_added,
        "records and other messages gone": found.messages_removed,
        "versions": found.versions,
        "new fields that look like names": found.names_added,
        "fields that looked like names and are gone": found.names_removed,
    }
    for title, entries in sections.items():
        if entries:
            lines += ["", f"{title}:", *(f"  {entry}" for entry in entries)]
    return "\n".join(lines if found else [*lines, "", "no difference on the wire"]) + "\n"


def open_definitions(place: str) -> Definitions:
    """From a folder of jars, or from a packed file."""
    path = Path(place)
    return unpack(compile_jars(path), place) if path.is_dir() else read(path)


def main(arguments: Sequence[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write("usage: python -m penstock.wire.changes OLD [NEW]\n")
        return 2
    try:
        old = open_definitions(arguments[0])
        new = open_definitions(arguments[1]) if len(arguments) == 2 else load()
    except PenstockError as error:
        sys.stderr.write(f"error: {error}\n  {error.advice}\n")
        return int(error.exit_code)
    sys.stdout.write(report(changes(old, new)))
    return 0


def _others(definitions: Definitions) -> set[str]:
    apis = {*definitions.names("request"), *definitions.names("response")}
    return set(definitions.names()) - apis


def _names(definitions: Definitions) -> set[NamedField]:
    return {
        named
        for name in definitions.names()
        if (message := definitions.message(name)).valid_versions
        for named in name_like_fields(message)
    }


def _walk(fields: tuple[Field, ...], above: str) -> Iterator[tuple[str, Field]]:
    for field in fields:
        path = f"{above}{field.name}"
        yield path, field
        yield from _walk(field.fields, path + ".")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
