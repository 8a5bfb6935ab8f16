"""Models that are objects in memory rather than files: torch modules, scikit-learn estimators."""

from __future__ import annotations

from typing import Any

from uncork.core.errors import UncorkError
from uncork.loading.contents import Contents


def open_live(model: Any) -> Contents:
    """The tensors of a live model, as the reader of its file would hand them back."""
    if hasattr(model, "state_dict") and hasattr(model, "named_modules"):
        from uncork.loading.live.torch_modules import read_module

        return read_module(model)
    if hasattr(model, "get_params") and hasattr(model, "predict"):
        from uncork.loading.sklearn.live import read_estimator

        return read_estimator(model)
    raise UncorkError(
        f"{type(model).__name__} is not a model that uncork reads: give a path, a hub id, a "
        "torch.nn.Module, a scikit-learn estimator, or build uncork.Head(weight, bias) yourself"
    )
