from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from penstock.model.errors.scale import (
    ScalerMetadataConflict,
    ScalerMetadataInvalid,
    ScalerMetadataMissing,
    ScalerMetadataUnknown,
)
from penstock.scale.decision.policy import PARAMETERS, Policy, metadata_hash, policy_of


def read(**metadata: str) -> Policy:
    return policy_of({"group": "billing", **metadata}, scaled_object="shop/billing")


def test_the_papers_metadata_is_valid() -> None:
    given = {
        "scalerAddress": "lag-scaler.default.svc.cluster.local:8080",
        "group": "billing",
        "topic": "orders, refunds",
        "lagThreshold": "500",
        "sustainSeconds": "120",
    }

    policy = policy_of(given, scaled_object="shop/billing")

    assert (policy.topics, policy.lag_threshold, policy.sustain) == (("orders", "refunds"), 500, 120)


def test_the_defaults_of_table_and_policy_match() -> None:
    table: dict[str, Any] = {each.field: each.default for each in PARAMETERS if each.default is not None}
    percent = {each.field for each in PARAMETERS if each.unit.startswith("%")}

    defaults = {field.name: field.default for field in fields(Policy) if field.name != "group"}
    assert {name: value / 100 if name in percent else value for name, value in table.items()} == defaults


def test_values_that_keda_resolved_from_the_environment_are_used() -> None:
    assert policy_of({"groupFromEnv": "billing"}, scaled_object="x").group == "billing"


def test_an_empty_value_is_the_default() -> None:
    assert read(sustainSeconds="", topic=" ").sustain == 120


def test_a_missing_group_is_named() -> None:
    with pytest.raises(ScalerMetadataMissing) as caught:
        policy_of({"lagThreshold": "5"}, scaled_object="shop/billing")

    assert str(caught.value) == "shop/billing: trigger metadata lacks `group` (PEN-6501)"


def test_a_misspelt_key_gets_a_suggestion() -> None:
    with pytest.raises(
        ScalerMetadataUnknown, match=r"unknown key `lagTreshold`, did you mean `lagThreshold`\?"
    ):
        read(lagTreshold="5")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lagThreshold", "many", "expected a number from 0"),
        ("lagThreshold", "-1", "expected from 0"),
        ("lagThreshold", "nan", "expected from 0"),
        ("sustainSeconds", "2 minutes", "expected a number from 0 to 86400"),
        ("minReplicas", "1.5", "expected a whole number from 0"),
        ("maxReplicas", "0", "expected from 1"),
        ("smoothing", "mode", "expected one of median, mean"),
        ("topic", "orders,,refunds", "expected names with commas"),
        ("topic", "orders,orders", "each once"),
        ("objectiveSeconds", "inf", "expected from 1"),
    ],
)
def test_an_invalid_value_is_refused_by_name(key: str, value: str, message: str) -> None:
    with pytest.raises(ScalerMetadataInvalid) as caught:
        read(**{key: value})

    assert f"`{key}` is '{value}'" in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "metadata",
    [
        {"lagThreshold": "0"},
        {"minReplicas": "5", "maxReplicas": "4"},
        {"lagSecondsThreshold": "300", "objectiveSeconds": "60"},
        {"groupType": "share"},
    ],
)
def test_conflicting_values_are_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(ScalerMetadataConflict):
        read(**metadata)


def test_the_hash_depends_on_parameters_and_not_on_addresses() -> None:
    one = metadata_hash({"group": "a", "lagThreshold": "5", "scalerAddress": "x:1"})

    assert one == metadata_hash({"lagThreshold": "5", "group": "a", "scalerAddress": "y:2"})
    assert one != metadata_hash({"lagThreshold": "6", "group": "a"})
