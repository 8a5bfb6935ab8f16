"""What an edit of a head costs: the share of hidden states whose prediction changes."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.loading.source import open_source

_BYTES = 64 << 20
_NAME = "inputs"  # what `uncork activations --sample` calls them


@dataclass(frozen=True)
class Price:
    """Predictions (lowest class first where logits are equal) before and after, in float64."""

    inputs: int
    changed: int
    to_freed: int  # of those changed: the new prediction is a class that was lost

    @property
    def share(self) -> float:
        return self.changed / self.inputs


def price(before: Head, after: Head, inputs: np.ndarray, freed: np.ndarray) -> Price:
    """How many predictions at inputs (n, d) differ between two heads of one shape."""
    is_freed = np.zeros(before.classes, dtype=bool)
    is_freed[freed] = True
    step = max(1, _BYTES // (8 * before.classes))
    changed = to_freed = 0
    for start in range(0, len(inputs), step):
        x = np.asarray(inputs[start : start + step], dtype=np.float64)
        was, now = (predictions(head, x) for head in (before, after))
        changed += int((was != now).sum())
        to_freed += int(((was != now) & is_freed[now]).sum())
    return Price(len(inputs), changed, to_freed)


def predictions(head: Head, x: np.ndarray) -> np.ndarray:
    """The first class of largest logit at each input: (n, d) → (n,)."""
    best = np.full(len(x), -np.inf)
    who = np.zeros(len(x), dtype=np.int64)
    for start, block in head.blocks(8192):
        z = x @ block.T + head.offsets[start : start + len(block)]
        first = z.argmax(axis=1)
        value = z[np.arange(len(x)), first]
        better = value > best
        best[better], who[better] = value[better], first[better] + start
    return who


def read_inputs(path: str | os.PathLike[str], features: int) -> np.ndarray:
    """Hidden states (n, d) from an .npy file, or from an .npz file that calls them `inputs` or
    holds nothing else."""
    tensors = open_source(path).tensors
    name = _NAME if _NAME in tensors else next(iter(tensors))
    if name != _NAME and len(tensors) > 1:
        raise UncorkError(
            f"{path} holds {', '.join(sorted(tensors)[:6])}: expected hidden states named "
            f"{_NAME!r}, as uncork activations --sample writes them"
        )
    stored = tensors[name]
    shape = tuple(stored.shape)
    if len(shape) != 2 or shape[1] != features or not shape[0]:
        raise UncorkError(
            f"{path}: {name} has shape {shape}: expected hidden states, (any number, {features})"
        )
    values = np.asarray(stored.read())
    if values.dtype.kind != "f" or not np.isfinite(values).all():
        raise UncorkError(f"{path}: {name} holds values that are no finite floats")
    return values
