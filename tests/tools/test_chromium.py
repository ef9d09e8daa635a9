"""The browser for tests is unpacked whole, and only if it is the package that was pinned."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import TYPE_CHECKING

import cramjam
import pytest

from tools import chromium

if TYPE_CHECKING:
    from pathlib import Path


def archive(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def package() -> bytes:
    """A package in the shape of npm's, with a program that is none."""
    inner = bytes(cramjam.brotli.compress(archive({"lib/libnss3.so": b"library"})))
    binaries = {f"package/bin/{name}": inner for name in chromium.ARCHIVES}
    binary = bytes(cramjam.brotli.compress(b"program"))
    return archive({f"package/bin/{chromium.BINARY}.br": binary} | binaries)


def test_a_package_is_unpacked_with_its_libraries_and_its_fonts(
    package: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chromium, "DIGEST", hashlib.sha512(package).hexdigest())
    target = tmp_path / "cache" / "chromium"

    chromium.unpack(package, target)

    assert (target / chromium.BINARY).stat().st_mode & 0o777 == 0o755
    assert (target / "lib" / "libnss3.so").read_bytes() == b"library"
    assert f"<dir>{target}/fonts</dir>" in (target / "fonts.conf").read_text()


def test_another_package_is_refused_and_nothing_is_unpacked(package: bytes, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="expected"):
        chromium.unpack(package, tmp_path / "chromium")

    assert not (tmp_path / "chromium").exists()
