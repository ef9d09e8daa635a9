"""`python -m tools.chromium`: a Chromium for the browser tests, without root.

The npm package `@sparticuz/chromium` brings a headless Chromium for Linux on x86-64 with the libraries and
fonts it needs. npm fetches the package, this tool checks its digest and unpacks it into the cache that
Kafka's jars live in. Elsewhere, and without npm, it prints what to do instead and changes nothing.
"""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import cramjam

from penstock.fleet.jars import cache_directory

VERSION: Final = "147.0.0"
DIGEST: Final = (
    "e1929e01041af2ea769adebbe6a4a2b73b4b75b42b95ff0129d0b99da79aa7ee"
    "4cbf5395d4e94974fa14f84242fe9e6c414254426378afeab9f8485a68e507a5"
)
# What is inside the package, and where it goes: the libraries are used where the system has none.
BINARY: Final = "chromium"
ARCHIVES: Final = ("al2023.tar.br", "fonts.tar.br", "swiftshader.tar.br")
FONTS: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{directory}/fonts</dir><cachedir>{directory}/font-cache</cachedir></fontconfig>
"""
OTHERWISE: Final = "install one (Debian: apt install chromium), or set CHROMIUM to its path"


def directory() -> Path:
    return cache_directory() / f"chromium-{VERSION}"


def executable() -> Path | None:
    """The Chromium that this tool has unpacked; None before."""
    path = directory() / BINARY
    return path if path.is_file() else None


def environment() -> dict[str, str]:
    """The variables that Chromium needs to find its libraries and fonts."""
    return {
        "LD_LIBRARY_PATH": str(directory() / "lib"),
        "FONTCONFIG_FILE": str(directory() / "fonts.conf"),
    }


def main() -> int:
    if executable() is not None:
        return 0
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        print(f"browser tests need a Chromium: {OTHERWISE}")
        return 0
    if shutil.which("npm") is None:
        print(f"browser tests need a Chromium; npm, which would fetch one, is not here: {OTHERWISE}")
        return 0
    print(f"fetching Chromium {VERSION} with npm (65 MB), once", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = ["npm", "pack", "--silent", f"@sparticuz/chromium@{VERSION}"]
        fetched = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        packages = list(Path(scratch).glob("*.tgz"))
        if fetched.returncode or not packages:
            print(f"npm could not fetch Chromium; browser tests are skipped, or {OTHERWISE}")
            print(fetched.stderr.strip())
            return 0
        unpack(packages[0].read_bytes(), directory())
    return 0


def unpack(package: bytes, target: Path) -> None:
    """The package's Chromium in `target`: whole, or not at all."""
    digest = hashlib.sha512(package).hexdigest()
    if digest != DIGEST:
        raise SystemExit(f"error: @sparticuz/chromium {VERSION} has the digest {digest}, expected {DIGEST}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        place = Path(scratch) / "chromium"
        place.mkdir()
        with tarfile.open(fileobj=io.BytesIO(package)) as files:
            _decompressed(files, f"{BINARY}.br", place / BINARY).chmod(0o755)
            for name in ARCHIVES:
                archive = _decompressed(files, name, place / name)
                with tarfile.open(archive) as inner:
                    inner.extractall(place, filter="data")
                archive.unlink()
        (place / "fonts.conf").write_text(FONTS.format(directory=target))
        shutil.rmtree(target, ignore_errors=True)
        place.rename(target)


def _decompressed(files: tarfile.TarFile, name: str, target: Path) -> Path:
    member = files.extractfile(f"package/bin/{name}")
    assert member is not None, name
    target.write_bytes(bytes(cramjam.brotli.decompress(member.read())))
    return target


if __name__ == "__main__":
    sys.exit(main())
