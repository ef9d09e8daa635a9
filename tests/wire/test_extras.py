"""Without the packages of the `platform` extra, reading batches says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest

from penstock.model.errors.settings import ExtraMissing


@pytest.mark.parametrize(
    ("package", "module"), [("cramjam", "penstock.wire.compression"), ("crc32c", "penstock.wire.records")]
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, module: str
) -> None:
    importlib.import_module(module)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module)

    with pytest.raises(ExtraMissing) as missing:
        importlib.import_module(module)

    assert package in missing.value.message
    assert "penstock[platform]" in missing.value.advice
