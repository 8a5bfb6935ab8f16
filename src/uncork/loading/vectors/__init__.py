"""Vectors of items: files of vectors, indices over them, and the factors of recommenders."""

from __future__ import annotations

from typing import Any

__all__ = ["load_items"]


def __getattr__(name: str) -> Any:
    # Readers of single formats import from here before sources can be opened.
    if name == "load_items":
        from uncork.loading.vectors.items import load_items

        return load_items
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
