"""Without the packages of the `platform` extra, reading batches fails with what to install."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from penstock.model.errors.settings import ExtraMissing


def assert_named(missing: ExtraMissing, package: str) -> None:
    assert package in missing.message
    assert "penstock[platform]" in missing.advice


def test_a_missing_checksum_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "penstock.wire.records"
    importlib.import_module(module)
    monkeypatch.setitem(sys.modules, "crc32c", None)
    monkeypatch.delitem(sys.modules, module)

    with pytest.raises(ExtraMissing) as missing:
        importlib.import_module(module)

    assert_named(missing.value, "crc32c")


def test_a_missing_compression_package_is_named_with_its_extra_on_first_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    spec = importlib.util.find_spec("penstock.wire.compression")
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)  # a copy that no other test uses
    spec.loader.exec_module(fresh)
    assert fresh.decompress(b"plain", fresh.Compression.NONE, size_max=5) == b"plain"

    with pytest.raises(ExtraMissing) as missing:
        fresh.decompress(b"", fresh.Compression.ZSTD, size_max=1)

    assert_named(missing.value, "cramjam")
