"""Where results are kept unless a store is named."""

from __future__ import annotations

import os
from pathlib import Path


def default_store(*, create: bool = True) -> str:
    """Where `--save` puts results: $UNCORK_STORE, or a file in the user's data folder, which is
    made unless `create` is false."""
    named = os.environ.get("UNCORK_STORE")
    if named:
        return named
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    folder = (data if data.is_absolute() else Path.home() / ".local" / "share") / "uncork"
    if create:
        folder.mkdir(parents=True, exist_ok=True)
    return str(folder / "uncork.db")
