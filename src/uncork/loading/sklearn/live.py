"""scikit-learn estimators that are already in memory: a classifier, or a pipeline around one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.contents import Contents, Tensor
from uncork.loading.sklearn.head import Estimator, contents_of


def read_estimator(model: Any) -> Contents:
    """What a fitted scikit-learn classifier predicts by; nothing of it is called."""
    if isinstance(model, type):
        raise UncorkError(f"{model.__name__} is a class, not a fitted estimator: fit one first")
    return contents_of(Path(type(model).__name__), "scikit-learn", _estimator(model))


def _estimator(model: Any) -> Estimator:
    # A subclass of a scikit-learn class predicts as that class does, as far as anyone can tell.
    kinds = [kind for kind in type(model).__mro__ if kind.__module__.split(".")[0] == "sklearn"]
    names = tuple(name for name in vars(model) if name.endswith("_") and not name.startswith("_"))
    return Estimator(
        kinds[0].__name__ if kinds else type(model).__name__,
        lambda name: _value(name, getattr(model, name, None)),
        names,
    )


def _value(name: str, value: Any) -> Any:
    if hasattr(value, "toarray") and hasattr(value, "nnz"):  # after sparsify()
        return Tensor(name, tuple(value.shape), str(value.dtype), value.toarray)
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return value.item()
        return Tensor(name, value.shape, str(value.dtype), lambda: value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_value(name, item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return _estimator(value) if hasattr(value, "get_params") else None
