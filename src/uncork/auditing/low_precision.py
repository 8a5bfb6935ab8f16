"""Low precision, apart from the proofs: does a witness still win in the model's own type?

A verdict is about real numbers. A model computes its logits in bf16, f16 or f32, where a narrow
win can become a tie or a loss. This counts how the proven witnesses fare there.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from uncork.auditing.backend import Backend
from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.verdict import Verdict
from uncork.core.head import Head
from uncork.domain import Domain

_LOW = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_QUICK = 2e11  # multiplications: a second or two on two cores


def is_quick(head: Head) -> bool:
    """Whether one more product of all inputs with all rows takes no more than seconds."""
    return head.classes**2 * head.features <= _QUICK


def low_precision(
    head: Head, proofs: Proofs, backend: Backend, domain: Domain | None = None
) -> dict[str, Any] | None:
    """How many argmaxable classes still win, and which tie or lose; None for other types.

    Logits are computed as accelerators do it: inputs and weights in the head's type, products
    summed in float32, the bias added, and the logits rounded to the head's type.
    """
    if head.dtype not in _LOW:
        return None
    dtype = _LOW[head.dtype]
    affine = (domain or head.domain).affine(head.features)
    classes = proofs.ids(Verdict.ARGMAXABLE)
    classes = classes[proofs.has_input(classes)]
    step = backend.inputs
    parts = [classes[start : start + step] for start in range(0, len(classes), step)]

    def lead(part: np.ndarray) -> np.ndarray:
        stored = backend.get(proofs.stored_inputs(head, part, affine.latent, backend))
        inputs = affine.image(stored).astype(dtype)
        return _lead(head, part, inputs, dtype, backend)

    with backend.threads() as over:
        leads = np.concatenate([np.empty(0), *over(lead, parts)])
    ties, loses = classes[leads == 0], classes[~(leads >= 0)]
    return {
        "dtype": head.dtype,
        "wins": int((leads > 0).sum()),
        "ties": len(ties),
        "loses": len(loses),
        "tying": ties.tolist(),
        "losing": loses.tolist(),
    }


def leads_in_own_type(
    head: Head, classes: np.ndarray, inputs: np.ndarray, backend: Backend
) -> np.ndarray:
    """z_t − max z_i of each class at its own input x (n, d), with logits in the head's type (in
    float32 where that is not a float of at most 32 bits): (n,)."""
    dtype = _LOW.get(head.dtype, np.float32)
    return _lead(head, classes, inputs.astype(dtype), dtype, backend)


def _lead(
    head: Head, classes: np.ndarray, inputs: np.ndarray, dtype: Any, backend: Backend
) -> np.ndarray:
    """z_t − max z_i in the low precision: (n,)."""
    xp, put = backend.xp, backend.put
    x = put(inputs.astype(np.float32))
    own = np.zeros(len(classes), dtype=np.float32)
    best = np.full(len(classes), -np.inf, dtype=np.float32)
    for start, block in backend.blocks(head):
        stop = start + block.shape[0]
        bias = put(head.offsets[start:stop].astype(np.float32))
        scores = backend.get(x @ xp.astype(block, xp.float32).T + bias[None, :])
        scores = scores.astype(dtype).astype(np.float32)
        here = np.flatnonzero((classes >= start) & (classes < stop))
        own[here] = scores[here, classes[here] - start]
        scores[here, classes[here] - start] = -np.inf
        best = np.maximum(best, scores.max(axis=1))
    return own - best
