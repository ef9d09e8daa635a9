"""API keys saved on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.fleet.layout import Layout
from penstock.model.errors.control import KeyNotStored
from penstock.model.errors.settings import UsageInvalid
from penstock.platform.keyring import SavedKey, save_key, saved_key

if TYPE_CHECKING:
    from pathlib import Path


def test_a_key_is_chosen_by_name_or_as_the_only_one(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with pytest.raises(KeyNotStored):
        saved_key(layout, None)
    save_key(layout, SavedKey("lkc-000001", "one", "b:1", "K", "S"))
    assert saved_key(layout, None).name == "one"
    path = save_key(layout, SavedKey("lkc-000002", "two", "b:1", "K", "S"))

    assert saved_key(layout, "two").cluster == "lkc-000002"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageInvalid):
        saved_key(layout, None)
    with pytest.raises(KeyNotStored):
        saved_key(layout, "three")
