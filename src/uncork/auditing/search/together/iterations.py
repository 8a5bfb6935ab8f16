"""How many reflections the paper's approximate algorithm needs for each class, all at once.

The same steps as `reference.braid_reflect`, in float64, with one product a step for every class
that has not finished. A product over many inputs is summed in another order than one over a
single input, so a class within rounding of a tie can take a different path.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.result import Audit
from uncork.auditing.search.reference import PATIENCE
from uncork.core.head import Head

_LIVE = 1024  # classes stepped together: bounds the logits held at once


def count_iterations(
    head: Head,
    classes: np.ndarray | None = None,
    patience: int = PATIENCE,
    advance: Callable[[int], None] = lambda finished: None,
) -> np.ndarray:
    """Reflections until each class is first, −1 where it was not within the patience: (C,).

    A class that is first outside the domain counts as not found, as in the paper's in-bounds
    check. Classes not asked for have −1 too: those proven unargmaxable need not be asked for, as
    no number of reflections finds them.
    """
    weight, bias = head.rows(0, head.classes), head.offsets
    counts = np.full(head.classes, -1, dtype=np.int64)
    asked = np.arange(head.classes) if classes is None else np.asarray(classes, dtype=np.int64)
    for start in range(0, len(asked), _LIVE):
        part = asked[start : start + _LIVE]
        counts[part] = _reflect_together(head, weight, bias, part, patience)
        advance(len(part))
    return counts


def _reflect_together(
    head: Head, weight: np.ndarray, bias: np.ndarray, classes: np.ndarray, patience: int
) -> np.ndarray:
    counts = np.full(len(classes), -1, dtype=np.int64)
    live = np.arange(len(classes))
    x = weight[classes].copy()  # (n, d)
    for reflections in range(patience + 1):
        own = classes[live]
        logits = x @ weight.T + bias  # (n, C)
        rows = np.arange(len(live))
        mine = logits[rows, own].copy()
        logits[rows, own] = -np.inf
        rival = logits.argmax(axis=1)
        first = mine - logits[rows, rival] > 0
        inside = head.domain.contains(x)
        counts[live[first & inside]] = reflections
        normal = weight[own] - weight[rival]
        length = np.einsum("nd,nd->n", normal, normal)
        going = ~first & (length > 0)  # an equal row leaves no hyperplane to reflect across
        if reflections == patience or not going.any():
            break
        live, x, normal, length = live[going], x[going], normal[going], length[going]
        gap = np.einsum("nd,nd->n", normal, x) + (bias[own] - bias[rival])[going]
        x = x - (2 * gap / length)[:, None] * normal
    return counts


def classes_to_count(audit: Audit) -> np.ndarray:
    """The classes of an audit that the algorithm might find."""
    every = np.arange(audit.classes) if audit.asked is None else audit.asked
    return np.setdiff1d(every, audit.proofs.ids(Verdict.UNARGMAXABLE))
