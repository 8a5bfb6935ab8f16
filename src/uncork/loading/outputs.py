"""A matrix of logits, log-probabilities or hidden states from a file: one row for each context."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.contents import Tensor, listing
from uncork.loading.source import open_source


def read_outputs(path: Path, tensor: str | None = None) -> np.ndarray:
    """A matrix (contexts, classes) from .npy, .npz or .safetensors, memory-mapped where possible.

    More than two dimensions (batch, time, classes) count as contexts, all but the last.
    """
    contents = open_source(path)
    if tensor is not None:
        chosen = contents.tensor(tensor, "--tensor")
    else:
        fitting = [t for t in contents.tensors.values() if _is_matrix(t)]
        if len(fitting) != 1:
            raise UncorkError(
                f"{path} does not show which array it is about: name one with --tensor; there are "
                f"{listing(contents.tensors.values())}"
            )
        chosen = fitting[0]
    if len(chosen.shape) < 2:
        raise UncorkError(f"{path}: {chosen} is not a matrix of contexts × classes")
    if 0 in chosen.shape:
        raise UncorkError(f"{path}: {chosen} is empty: the rank needs two contexts or more")
    return chosen.read().reshape(-1, chosen.shape[-1])


def _is_matrix(tensor: Tensor) -> bool:
    return len(tensor.shape) >= 2 and "float" in tensor.dtype.lower()


def read_targets(path: Path) -> np.ndarray:
    """Class ids (contexts,) from .npy, .npz or .safetensors: the one array of whole numbers."""
    contents = open_source(path)
    fitting = [t for t in contents.tensors.values() if "int" in t.dtype.lower()]
    if len(fitting) != 1:
        raise UncorkError(
            f"{path} does not show which array holds the targets: expected one of whole numbers; "
            f"there are {listing(contents.tensors.values())}"
        )
    return fitting[0].read().reshape(-1)
