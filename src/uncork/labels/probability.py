"""The highest joint probability of a label set: how near an infeasible one comes.

With independent sigmoids, log P(set | x) = −Σ log(1 + exp(−s_i z_i)), which is concave in x. Any
input bounds the highest from below. From above: for every p_i in [0, 1],

    −log(1 + exp(−v)) ≤ p v − H(p),   so   log P ≤ max_x Σ p_i s_i z_i(x) − Σ H(p_i)

with H the entropy of a coin, and equality at the best input for p_i = sigmoid(−s_i z_i). So any p
is a proof, and the certifier's bound on a sum of logits checks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.core.head import Head
from uncork.core.rigour import gamma
from uncork.domain import Domain
from uncork.labels.certify import LabelCertifier
from uncork.labels.search import LabelSearch
from uncork.labels.sets import LabelSets

_FUNCTION = 64  # roundings that an exponential or logarithm of the system is charged with
_STEPS = 2000


@dataclass(frozen=True)
class JointProbability:
    """Bounds on the highest joint probability of sets, both proven: (n,), (n,)."""

    lower: np.ndarray
    upper: np.ndarray
    inputs: np.ndarray  # (n, latent), where the lower bounds are reached


def highest_joint_probability(
    head: Head, sets: LabelSets, *, domain: Domain | None = None
) -> JointProbability:
    """Bound max over the domain of Π sigmoid(s_i z_i) for each set, one after the other.

    Thresholds play no part: this is the probability that the sigmoids themselves give.
    """
    from uncork.auditing.backend import Backend

    domain = head.domain if domain is None else domain
    zero = np.zeros(head.classes)
    search = LabelSearch(head, zero, domain, Backend(1, np.float64))
    certifier = LabelCertifier(head, zero, domain)
    inputs = np.array([_best(search, signs.astype(np.float64)) for signs in sets.signs()])
    lower, upper = np.empty(len(sets)), np.empty(len(sets))
    for k in range(len(sets)):
        signs = sets.signs(np.array([k]))
        lower[k], upper[k] = _bounds(certifier, signs, inputs[k : k + 1])
    return JointProbability(lower, upper, inputs)


def _best(search: LabelSearch, signs: np.ndarray) -> np.ndarray:
    """The input that makes one set most probable, as far as floats find it: (latent,)."""
    from scipy.optimize import minimize

    rows = search.sharp.rows[signs != 0] * signs[signs != 0, None]
    offsets = search.offsets[signs != 0] * signs[signs != 0]
    # Steps in coordinates where rows are round; in a box, in those of the box.
    boxed = search.outline.has_sides
    root = np.eye(search.width) if boxed else _root(rows)
    turned = rows @ root

    def away(y: np.ndarray) -> tuple[float, np.ndarray]:
        v = turned @ y + offsets
        value = float(np.logaddexp(0.0, -v).sum())
        slope = -(_sigmoid(-v) @ turned)
        if search.outline.is_round:
            u = root @ y
            out = u - search.inside(u[None])[0]
            weight = 100 * len(rows) * float(np.square(rows).mean())
            value += weight / 2 * float(out @ out)
            slope = slope + weight * (root.T @ out)
        return value, slope

    bounds = None
    if boxed:
        bounds = list(zip(search.lower.tolist(), search.upper.tolist(), strict=True))
    start = search.inside(np.zeros((1, search.width)))[0] if boxed else np.zeros(root.shape[1])
    options: dict[str, Any] = {
        "maxiter": _STEPS, "maxfun": 2 * _STEPS, "ftol": 1e-15, "gtol": 1e-12, "maxcor": 30,
    }  # fmt: skip
    found = minimize(away, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.asarray(root @ found.x)


def _root(rows: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    kept = values > values[-1] * 1e-12
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))


def _sigmoid(v: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-np.logaddexp(0.0, -v)))


def _bounds(certifier: LabelCertifier, signs: np.ndarray, u: np.ndarray) -> tuple[float, float]:
    """Proven bounds from one input, and from the weights that belong to it."""
    count = certifier.head.classes
    paid = gamma(count + _FUNCTION)
    inside = u if certifier.base.contains(u)[0] else _nearest(certifier, u)
    low = certifier.lowest(signs, inside)[0]
    asked = signs[0] != 0
    lower = 0.0
    if np.isfinite(low[asked]).all():
        lost = float(np.logaddexp(0.0, -low[asked]).sum()) * (1 + paid)
        lower = float(np.exp(-lost)) * (1 - paid)
    weights = certifier.weights_at(signs, u, np.zeros(1))  # max(0, −s z): only for its sign
    z = np.where(weights[0] > 0, -weights[0], certifier.weights_at(-signs, u, np.zeros(1))[0])
    p = np.where(asked, np.clip(_sigmoid(-z), 0.0, 1.0), 0.0)
    inner = p[(p > 0) & (p < 1)]
    entropy = float(-(inner * np.log(inner) + (1 - inner) * np.log1p(-inner)).sum()) * (1 - paid)
    ceiling = float(certifier.ceilings(signs, p[None])[0])
    if np.isinf(ceiling):
        return lower, 1.0
    highest = ceiling - entropy
    highest += 4 * 2.0**-53 * (abs(ceiling) + entropy)
    return lower, min(1.0, float(np.exp(highest)) * (1 + paid))


def _nearest(certifier: LabelCertifier, u: np.ndarray) -> np.ndarray:
    return certifier.base.pulled_in(u)
