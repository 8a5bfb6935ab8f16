"""A head with one row moved: its bias raised or lowered, its row made longer or shorter.

The numbers are rounded to the type that the head is stored in, so that the verdict is about a head
that a file could hold.
"""

from __future__ import annotations

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.head import Head

MOST_BYTES = 1 << 30  # of weights: to change a row, all are copied
MOST_WORK = 1e12  # multiplications before a search begins: some seconds


def moved_head(head: Head, class_id: int, raised: float, stretched: float) -> Head:
    """The head with `raised` added to a class's bias and its row `stretched` times as long."""
    if head.classes * head.features**2 > MOST_WORK:
        raise UncorkError(
            f"a head of {head.classes:,} × {head.features:,} takes too long to be decided while "
            "you wait: `uncork repair` moves rows of a copy"
        )
    changes = {}
    if raised:
        changes["bias"] = _bias(head, class_id, raised)
    if stretched != 1:
        changes["weight"] = _weight(head, class_id, stretched)
    return head.replace(**changes) if changes else head


def _bias(head: Head, class_id: int, raised: float) -> np.ndarray:
    kind = np.dtype(np.float32) if head.bias is None else head.bias.dtype
    bias = head.offsets.astype(_real(kind))
    with np.errstate(over="ignore"):
        bias[class_id] = head.offsets[class_id] + raised
    if not np.isfinite(bias[class_id].astype(np.float64)):
        raise UncorkError(f"a bias of that size is beyond what {bias.dtype} holds")
    return bias


def _weight(head: Head, class_id: int, stretched: float) -> np.ndarray:
    if head.weight.nbytes > MOST_BYTES:
        raise UncorkError(
            f"the weights are {head.weight.nbytes / 2**30:.1f} GiB, too many to copy for a moved "
            "row: its bias can be moved"
        )
    weight = np.array(head.weight, dtype=_real(head.weight.dtype))
    with np.errstate(over="ignore"):
        weight[class_id] = head.take(np.array([class_id]))[0] * stretched
    if not np.isfinite(weight[class_id].astype(np.float64)).all():
        raise UncorkError(f"a row of that length is beyond what {weight.dtype} holds")
    return weight


def _real(kind: np.dtype) -> np.dtype:
    """A type for moved numbers: whole numbers have no place for them."""
    return np.dtype(np.float64) if kind.kind in "iub" else kind
