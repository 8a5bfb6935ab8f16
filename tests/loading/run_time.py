"""Holding a head to the scores that the real run-time computes, where its inputs are not shown."""

from __future__ import annotations

import numpy as np

from uncork.domain import Box
from uncork.loading import Found


def holds(found: Found, scores: np.ndarray, tolerance: float) -> None:
    """Scores (n, classes) are W x + b of inputs that lie in the domain, up to rounding.

    With more classes than features only the model's own W and b allow that. Classes that a run-time
    forbids, by a score near minus infinity, are left out.
    """
    free = scores[0] > -1e30
    bias = np.zeros(len(free)) if found.head.bias is None else found.head.bias
    weight, bias = (np.asarray(a, np.float64)[free] for a in (found.head.weight, bias))
    scores = scores[:, free]
    assert weight.shape[0] > weight.shape[1] < len(scores)
    x = np.linalg.lstsq(weight, (scores - bias).T, rcond=None)[0].T
    np.testing.assert_allclose(x @ weight.T + bias, scores, atol=tolerance, rtol=0)
    domain = found.head.domain
    if isinstance(domain, Box):  # whose tolerance is relative, and none at all at zero
        x = np.where(np.abs(np.clip(x, domain.lower, domain.upper) - x) <= 10 * tolerance,
                     np.clip(x, domain.lower, domain.upper), x)  # fmt: skip
    assert all(domain.contains(one, 100 * tolerance) for one in x)
