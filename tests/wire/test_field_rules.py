"""Every field that could carry a name has a rule, and the build fails on a new one without."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.model.errors.plans import RuleMissing
from penstock.wire.definitions import Definitions, load
from penstock.wire.field_rules import Kind, rule_of, unruled, unused, walk
from penstock.wire.plans import Direction, compile_plan


def definitions_with(**field: Any) -> Definitions:
    """Definitions of one API whose request has this one field."""
    message = {"artifact": "kafka-clients", "apiKey": 900, "validVersions": "0", "flexibleVersions": "0+"}
    request = {"name": "NewRequest", "type": "request", "fields": [{"versions": "0+", **field}]}
    response = {"name": "NewResponse", "type": "response", "fields": []}
    embedded = ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment")
    raw: dict[str, dict[str, Any]] = {
        "NewRequest": {**message, **request},
        "NewResponse": {**message, **response},
    }
    for name in embedded:
        raw[name] = {"name": name, "type": "data", "artifact": "", "validVersions": "0", "fields": []}
    return Definitions("test", raw)


def test_every_name_like_field_of_the_installed_definitions_has_a_rule() -> None:
    assert unruled(load()) == []


def test_every_rule_is_needed_by_some_field() -> None:
    assert unused(load()) == []


@pytest.mark.parametrize(
    "field",
    [
        {"name": "Nickname", "type": "string"},
        {"name": "Nicknames", "type": "[]string"},
        {"name": "Blob", "type": "bytes"},
        {"name": "ThingId", "type": "uuid"},
        {"name": "Owner", "type": "int32", "entityType": "userId"},
        {
            "name": "Inner",
            "type": "Inner",
            "fields": [{"name": "Nickname", "type": "string", "versions": "0+"}],
        },
        {"name": "Tagged", "type": "string", "taggedVersions": "0+", "tag": 0},
    ],
    ids=lambda field: field["name"],
)
def test_a_new_name_like_field_without_a_rule_fails_the_build(field: dict[str, Any]) -> None:
    definitions = definitions_with(**field)

    holes = unruled(definitions)

    assert len(holes) == 1
    with pytest.raises(RuleMissing) as missing:
        compile_plan(definitions, 900, 0, Direction.REQUEST)
    assert missing.value.facts["path"] == holes[0]


def test_a_number_without_an_entity_type_needs_no_rule() -> None:
    assert unruled(definitions_with(name="Count", type="int32")) == []


def test_the_entity_type_of_a_definition_wins_over_a_rule_for_the_bare_name() -> None:
    (field,) = definitions_with(name="TopicId", type="string", entityType="topicName").request("New").fields

    rule = rule_of("NewRequest.TopicId", field)

    assert rule is not None
    assert rule.kind is Kind.TOPIC


def test_a_rule_for_the_very_field_wins_over_the_entity_type() -> None:
    fetch = {path: rule for path, _, rule in walk(load().request("Fetch"))}

    rule = fetch["FetchRequest.ReplicaState.ReplicaId"]

    assert rule is not None
    assert rule.kind is Kind.REPLICA_ID
