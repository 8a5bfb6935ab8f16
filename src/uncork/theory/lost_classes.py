"""How many classes a random head loses: simulated by auditing, and in closed form where known.

Without a bias the argmaxable classes of a random head are the vertices of a random polytope. For
normal weights that is a Gaussian polytope, whose expected number of vertices Affentranger and
Schneider (1992) gave through the angles of regular simplices. With a normal bias and unbounded
inputs the argmaxable classes are the vertices of the upper hull one dimension up; a vertex seen
from above and from below is one of the shadow, so their expected number is the mean of the two
polytopes' vertices. For uniform weights there is the simulation alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from uncork.core.errors import UncorkError
from uncork.domain import Domain, Unbounded
from uncork.theory.random_heads import random_head

MOST_FEATURES_IN_CLOSED_FORM = 18  # beyond, the angles are lost in rounding


@dataclass(frozen=True)
class LostClasses:
    """The number of unargmaxable classes over several random heads."""

    classes: int
    features: int
    init: str
    bias: bool
    heads: int
    mean: float
    standard_error: float  # of the mean; NaN for a single head
    undecided: int  # classes the audits left open, not counted as lost

    @property
    def share(self) -> float:
        return self.mean / self.classes


def simulate_lost(
    classes: int,
    features: int,
    init: str = "normal",
    bias: bool = False,
    *,
    heads: int = 20,
    seed: int = 0,
    domain: Domain | None = None,
) -> LostClasses:
    """Audit `heads` random heads and average how many classes they lose.

    The domain is unbounded unless given; it matters only with a bias. Heads are those of
    `uncork random` with seeds `seed`, `seed` + 1, …
    """
    from uncork.auditing import audit

    if heads < 1:
        raise UncorkError(f"{heads} heads: there is at least one to average over")
    domain = Unbounded() if domain is None else domain
    lost, undecided = [], 0
    for k in range(heads):
        head = random_head(classes, features, init, bias, seed + k, domain)
        result = audit(head, device="cpu")  # too small for a GPU to be worth its start
        lost.append(len(result.unargmaxable))
        undecided += len(result.undecided)
    error = float(np.std(lost, ddof=1)) / math.sqrt(heads) if heads > 1 else math.nan
    return LostClasses(classes, features, init, bias, heads, float(np.mean(lost)), error, undecided)


def expected_lost(classes: int, features: int, *, bias: bool = False) -> float:
    """The expected number of unargmaxable classes of a normal head, inputs unbounded."""
    if classes < 2 or features < 1:
        raise UncorkError(f"{classes} classes and {features} features: at least 2 and 1")
    if features + bias > MOST_FEATURES_IN_CLOSED_FORM:
        raise UncorkError(
            f"the closed form is computed up to {MOST_FEATURES_IN_CLOSED_FORM} dimensions (a bias "
            "is one more): simulate instead"
        )
    vertices = _vertices(classes, features)
    if bias:
        vertices = (vertices + _vertices(classes, features + 1)) / 2
    return max(0.0, classes - vertices)


def _vertices(points: int, dimensions: int) -> float:
    """Expected vertices of the hull of standard normal points: twice a sum over odd steps."""
    if points <= dimensions + 1:
        return float(points)
    total = 0.0
    for corners in range(dimensions, 0, -2):  # of the simplices G through the vertex
        outer = math.comb(points - 1, corners - 1) * _angle(points - corners, 1 / corners)
        total += outer * _angle(corners - 1, -1 / corners)
    return 2 * points * total


def _angle(count: int, r: float) -> float:
    """P(η_1 < 0, …, η_count < 0) for normal η with covariance δ_ij + r, r ≥ −1/count.

    ∫ Φ(√r x)^count φ(x) dx; for negative r the argument is imaginary and the real part is meant.
    At r = 1/m an outer, at r = −1/m an inner angle of a regular simplex.
    """
    from scipy.integrate import quad
    from scipy.special import dawsn, ndtr

    if count == 0:
        return 1.0

    def outer(x: float) -> float:
        return float(ndtr(math.sqrt(r) * x)) ** count * math.exp(-x * x / 2)

    def inner(x: float) -> float:
        # Φ(iy) = ½ + (i/√π) e^{y²/2} D(y/√2), with e^{y²/2} taken out of the power: y² = −r x².
        y = math.sqrt(-r) * x
        turned = complex(
            math.exp(-y * y / 2) / 2, float(dawsn(y / math.sqrt(2))) / math.sqrt(math.pi)
        )
        return float((turned**count).real) * math.exp((count * y * y - x * x) / 2)

    if r > 0:
        # The integrand peaks where Φ(√r x)^count begins to be 1.
        peak = math.sqrt(2 * math.log(count + 1) / r)
        area, _ = quad(outer, -12, peak + 12 + 12 / math.sqrt(r), limit=500, epsabs=0, epsrel=1e-11,
                       points=(0.0, peak))  # fmt: skip
    else:
        area = 2 * quad(inner, 0, 9 * math.sqrt(2 / max(1 + r * count, 1e-3)), limit=500,
                        epsabs=1e-15, epsrel=1e-12)[0]  # fmt: skip
    return float(area) / math.sqrt(2 * math.pi)
