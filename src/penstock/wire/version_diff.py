"""Print what changed in Kafka's protocol between two versions.

    python -m penstock.wire.version_diff OLD [NEW]

OLD and NEW are folders of Kafka's jars or packed definitions; NEW defaults to this installation's. Look
first at new fields that look like names: each needs a rule before the gateway may forward the message
(docs/wire-plans.md).
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
    """A field that may carry a name."""

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
    """Whether a field carries a name, judged by its entity type, or by its name and type."""
    if field.entity_type in NAMING_ENTITIES:
        return True
    is_numeric = field.name.endswith(("Port", "NodeId", "BrokerId", "LeaderId"))
    return (field.kind in _TEXT or is_numeric) and bool(_NAME_LIKE.search(field.name))


def name_like_fields(message: Message) -> Iterator[NamedField]:
    for path, field in _walk(message.fields, ""):
        if is_name_like(field):
            yield NamedField(message.name, path, field.entity_type, str(field.versions))


def compare(old: Definitions, new: Definitions) -> Changes:
    old_apis, new_apis = set(old.apis().values()), set(new.apis().values())
    old_others, new_others = _others(old), _others(new)
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
        messages_added=tuple(sorted(new_others - old_others)),
        messages_removed=tuple(sorted(old_others - new_others)),
        versions=tuple(versions),
        names_added=tuple(sorted(new_names - old_names, key=str)),
        names_removed=tuple(sorted(old_names - new_names, key=str)),
    )


def report(changes: Changes) -> str:
    lines = [f"Kafka {changes.old} → {changes.new}"]
    sections = {
        "new APIs": changes.apis_added,
        "removed APIs": changes.apis_removed,
        "new records and other messages": changes.messages_added,
        "removed records and other messages": changes.messages_removed,
        "versions": changes.versions,
        "new fields that look like names": changes.names_added,
        "removed fields that looked like names": changes.names_removed,
    }
    for title, entries in sections.items():
        if entries:
            lines += ["", f"{title}:", *(f"  {entry}" for entry in entries)]
    return "\n".join(lines if changes else [*lines, "", "no difference in the protocol"]) + "\n"


def open_definitions(location: str) -> Definitions:
    """The definitions in a folder of jars or in a packed file."""
    path = Path(location)
    return unpack(compile_jars(path), location) if path.is_dir() else read(path)


def main(arguments: Sequence[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write("usage: python -m penstock.wire.version_diff OLD [NEW]\n")
        return 2
    try:
        old = open_definitions(arguments[0])
        new = open_definitions(arguments[1]) if len(arguments) == 2 else load()
    except PenstockError as error:
        sys.stderr.write(f"error: {error}\n  {error.advice}\n")
        return int(error.exit_code)
    sys.stdout.write(report(compare(old, new)))
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
