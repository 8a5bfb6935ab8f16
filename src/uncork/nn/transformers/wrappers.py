"""Models and layers in another's hands: torch.compile's, PEFT's, DistributedDataParallel's."""

from __future__ import annotations

from typing import Any

from uncork.core.errors import UncorkError


def check_unwrapped(model: Any, what: str) -> None:
    """Raise where a model is in another's hands; `what` is done, "fuse the loss" say."""
    kind = type(model).__name__
    for inside in ("module", "_orig_mod"):
        if inside in getattr(model, "_modules", ()):
            raise UncorkError(f"this is a {kind} around a model: {what} of its .{inside}")
    if hasattr(model, "get_base_model"):  # PEFT
        raise UncorkError(f"this is a {kind} around a model: {what} of its .get_base_model()")


def in_use(layer: Any) -> Any:
    """The layer itself behind torch.compile, and of PEFT's copies of it, which `modules_to_save`
    makes, the one that is active."""
    inside = getattr(layer, "_modules", {}).get("_orig_mod")
    if inside is not None:
        return in_use(inside)
    if not hasattr(layer, "original_module") or not hasattr(layer, "modules_to_save"):
        return layer
    copies = layer.modules_to_save
    active = next((copies[name] for name in layer.active_adapters if name in copies), None)
    return in_use(layer.original_module if layer.disable_adapters or active is None else active)
