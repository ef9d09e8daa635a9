"""Profiles: platforms on other machines that commands connect to, in the user's configuration directory.

    ~/.config/penstock/current                     name of the current profile
    ~/.config/penstock/profiles/NAME/profile.json  addresses, and whether they use TLS
                                    /ca.pem        the CA that signed their certificates
                                    /secrets/      operator token and API keys, readable by this user alone

Below a profile's directory the secrets are named as below a local home, so the same commands read both.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.atomic_files import write_atomically
from penstock.control.physical.addresses import TOKEN_FILE
from penstock.fleet.layout import SECRET_DIRECTORY_MODE, SECRET_FILE_MODE, Layout, make_directory
from penstock.model.errors.control import ProfileLacks, ProfileMissing
from penstock.model.errors.settings import SettingInvalid, SettingsUnreadable, UsageInvalid
from penstock.platform.keyring import SavedKey, save_key

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCAL: Final = "local"  # the platform of the working directory: no profile
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_FILE: Final = "profile.json"
_CA: Final = "ca.pem"


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    url: str = ""  # of the control plane; several, separated by commas
    bootstrap: str = ""  # of one logical cluster, with an API key for it
    tls: bool = False  # to the gateways

    @property
    def layout(self) -> Layout:
        return Layout(_directory(self.name))

    @property
    def ca(self) -> Path | None:
        """The CA of its servers; None: the system's CAs."""
        path = _directory(self.name) / _CA
        return path if path.exists() else None

    @property
    def token(self) -> str:
        path = self.layout.secrets / TOKEN_FILE
        return path.read_text().strip() if path.exists() else ""

    def control_url(self) -> str:
        if not self.url:
            raise ProfileLacks(name=self.name, what="control plane", flags="--url URL --token-file FILE")
        return self.url


def configuration_directory(environment: Mapping[str, str] = os.environ) -> Path:
    base = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser().absolute() / "penstock"


def save_profile(
    profile: Profile,
    *,
    ca: Path | None = None,
    token: str = "",
    key: SavedKey | None = None,
    keep_keys: bool = False,
) -> None:
    """Write a profile with its secrets; an earlier one of this name is replaced. Its API keys can be kept:
    their secrets are nowhere else.
    """
    if not _NAME.fullmatch(profile.name) or profile.name == LOCAL:
        expected = f"expected lower-case letters, digits, `.`, `_` and `-`, and not {LOCAL!r}"
        raise SettingInvalid(where="profile", key="name", value=profile.name, expected=expected)
    authority = _read(ca) if ca is not None else None
    directory = _directory(profile.name)
    if directory.exists() and not keep_keys:
        shutil.rmtree(directory)
    make_directory(directory, mode=SECRET_DIRECTORY_MODE)
    layout = profile.layout
    make_directory(layout.secrets, mode=SECRET_DIRECTORY_MODE)
    if authority is not None:
        write_atomically(directory / _CA, authority)
    else:
        (directory / _CA).unlink(missing_ok=True)
    if token:
        write_atomically(layout.secrets / TOKEN_FILE, token, mode=SECRET_FILE_MODE)
    if key is not None:
        save_key(layout, key)
    write_atomically(directory / _FILE, json.dumps(asdict(profile), indent=2))  # last: now it exists


def read_profile(name: str) -> Profile:
    path = _directory(name) / _FILE
    if not _NAME.fullmatch(name) or not path.exists():
        raise ProfileMissing(name=name)
    try:
        return Profile(**json.loads(path.read_text()))
    except (ValueError, TypeError) as failure:
        raise SettingsUnreadable(path=path, reason=failure) from failure


def has_profile(name: str) -> bool:
    return name in [each.name for each in profiles()]


def profiles() -> list[Profile]:
    paths = sorted((configuration_directory() / "profiles").glob(f"*/{_FILE}"))
    return [read_profile(path.parent.name) for path in paths]


def delete_profile(name: str) -> None:
    read_profile(name)
    shutil.rmtree(_directory(name))
    if current_profile() == name:
        use_profile(LOCAL)


def use_profile(name: str) -> None:
    """Make a profile the current one; `local` makes it none."""
    path = configuration_directory() / "current"
    if name == LOCAL:
        path.unlink(missing_ok=True)
        return
    read_profile(name)
    write_atomically(path, name)


def current_profile() -> str:
    """The name of the current profile; empty if it is the local platform."""
    path = configuration_directory() / "current"
    return path.read_text().strip() if path.exists() else ""


def _directory(name: str) -> Path:
    return configuration_directory() / "profiles" / name


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise UsageInvalid(
            reason=f"{path} cannot be read: {failure}", way_out="Name a PEM file with the CA's certificate."
        ) from failure
