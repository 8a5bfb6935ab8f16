"""A head as the named tensors of a file: which arrays take the place of which. For npz and co."""

from __future__ import annotations

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.contents import Tensor, bias_names
from uncork.loading.source import Found
from uncork.save.write import rounded


def replaced_tensors(
    found: Found, weight: np.ndarray, bias: np.ndarray | None
) -> dict[str, np.ndarray]:
    """The tensors that change, by name, in the types and shapes that the file has them in."""
    tensors, path = found.contents.tensors, found.contents.path
    stored = tensors[found.weight_name]
    if stored.slice_of:
        raise UncorkError(
            f"{path}: {found.weight_name} is a part of {stored.slice_of}, which cannot be replaced "
            "in part: write .npz instead"
        )
    raw = stored.read()
    changed = {} if stored.folded else {found.weight_name: _laid_out(found, stored, raw, weight)}
    if stored.folded and not np.array_equal(weight, found.head.weight):
        raise UncorkError(
            f"{path}: {found.weight_name} is stored as codes, which cannot hold a new weight: "
            "write .npz instead"
        )
    if found.bias_name is not None:
        old = tensors[found.bias_name].read()
        values = np.zeros(old.shape) if bias is None else bias.reshape(old.shape)
        changed[found.bias_name] = rounded(values, old.dtype, f"{path}: {found.bias_name}")
    elif bias is not None:
        names = bias_names(found.weight_name)
        name = next((n for n in names if n not in tensors), None)
        if name is None:
            raise UncorkError(
                f"{path}: no bias would be found by a name that goes with {found.weight_name!r}: "
                "store the weight under the name 'weight', and its bias will be 'bias'"
            )
        changed[name] = rounded(bias, raw.dtype, f"{path}: {name}")
    return changed


def _laid_out(found: Found, stored: Tensor, raw: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The new weight with its classes on the side, and in the type, that the stored one has."""
    path, matrix = found.contents.path, raw.reshape(stored.matrix_shape or raw.shape)
    new = rounded(weight, raw.dtype, f"{path}: {found.weight_name}")
    if _same(matrix, found.head.weight):
        laid_out = new
    elif _same(matrix.T, found.head.weight):
        laid_out = new.T
    else:
        raise UncorkError(
            f"{path}: {found.weight_name} is not used as it is stored, so it cannot be replaced: "
            "write .npz instead"
        )
    return np.ascontiguousarray(laid_out).reshape(raw.shape)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a, b))
