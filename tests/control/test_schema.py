"""The HTTP API against its OpenAPI document: every response is a documented one."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.control.api.app import make_api
from tests.control.in_memory_plane import ROOT, InMemoryPlane

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
plane = InMemoryPlane()
schema = schemathesis.openapi.from_asgi("/v1/openapi.json", make_api(plane))
quick = settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate], derandomize=True,
                 suppress_health_check=list(HealthCheck))  # fmt: skip
long = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))


@schema.parametrize()
@quick
def test_every_response_is_documented(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {ROOT}"}, checks=CHECKS)


@pytest.mark.soak
@schema.parametrize()
@long
def test_every_response_is_documented_at_length(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {ROOT}"}, checks=CHECKS)


def test_no_schema_is_named_by_the_module_of_its_class() -> None:
    """As happens to two classes with the same name."""
    assert [name for name in make_api().openapi()["components"]["schemas"] if "__" in name] == []
