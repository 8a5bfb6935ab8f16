"""τ for α-ReLU from the head's shape alone, for any α. NumPy and SciPy only.

An untrained head with Xavier weights (variance 2/(d+V)) over layer-normalised features (Σx² = d)
has logits ~ N(0, 2d/(d+V)), so u = (α−1) z has standard deviation σ = (α−1) √(2d/(d+V)). Let a
share p of the V classes be the support. Their smallest u lies at the threshold, τ = σ c with
c = Φ⁻¹(1−p); their largest is about σ Φ⁻¹(1−1/V); and between the two they are distributed as a
truncated normal. The probabilities of these k = pV classes must sum to one:

    p V · σ^q · E[(x − c)^q | c < x < Φ⁻¹(1−1/V)] = 1,    q = 1/(α−1),    τ = σ c.

For α = 1.5 this is the closed form of 1.5-entmax, τ = M − √(1/k − S) with M and S the mean and the
variance of the k largest u (Peters et al. 2019, Prop. 3), with the truncated normal's moments put
in: (M − τ)² + S = 1/k is E[(u − τ)²] = 1/k. There the expectation is in closed form; for other α
it is integrated. τ̂ = σ Φ⁻¹(1−p*) is Eq. 3 of Tezekbayev et al. 2022, and the equation for p* is
that of their App. B.2, solved for c = Φ⁻¹(1−p):

    Φ⁻¹(1−p) = m(p) − √(4ε/(σ_z² p) − s(p)),    ε = 1/V,    σ_z² = 2d/(d+V),

with m and s the mean and the variance of Φ⁻¹(1−x) over x in (ε, p): (m − c)² + s = 4ε/(σ_z² p). It
gives the published p* and τ̂ of three heads to their last digit, but for one: p* = .0170 where the
paper has .0169 (tests/nn/test_tau.py). Simulated normal logits have a slightly higher threshold.
"""

from __future__ import annotations

import math

from scipy import integrate, optimize, special

from uncork.core.errors import UncorkError


def tau_from_shape(
    features: int, classes: int, alpha: float = 1.5, *, logit_std: float | None = None
) -> float:
    """τ for an untrained head of `classes` × `features`, as Tezekbayev et al. 2022 have it.

    For α = 1.5 it is their τ̂ = (σ/2) Φ⁻¹(1−p*), where p*, the share of the classes that have
    support, solves the equation of their Appendix B.2:

        Φ⁻¹(1−p) = m(p) − √(4ε/(σ² p) − s(p)),    ε = 1/V,    σ² = 2d/(d+V),

    with m and s the mean and the variance of Φ⁻¹(1−x) over x in (ε, p). Other α solve what this is
    a case of: the probabilities of a truncated normal's u = (α−1) z sum to one.

    Use it when no batch is at hand; it holds for a head with Xavier initialisation after a layer
    norm. For another initialisation give the standard deviation its logits have.

    Args:
        features: d, the width of the last hidden layer.
        classes: V, the number of classes.
        alpha: > 1.
        logit_std: standard deviation of the logits, √(2d/(d+V)) if not given.
    """
    sigma, c = _solve(features, classes, alpha, logit_std)
    return sigma * c


def support_share_from_shape(
    features: int, classes: int, alpha: float = 1.5, *, logit_std: float | None = None
) -> float:
    """p*: the share of the classes that such a head gives a probability above zero."""
    _, c = _solve(features, classes, alpha, logit_std)
    return float(special.ndtr(-c))


def _solve(
    features: int, classes: int, alpha: float, logit_std: float | None
) -> tuple[float, float]:
    """(σ, c) of the equation above."""
    if features < 1 or classes < 2:
        raise UncorkError(f"a head needs features >= 1, classes >= 2, got {features}, {classes}")
    if not 1 < alpha < math.inf:
        raise UncorkError(f"alpha must be finite and > 1, got {alpha!r}")
    std = math.sqrt(2 * features / (features + classes)) if logit_std is None else logit_std
    if not 0 < std < math.inf:
        raise UncorkError(f"logit_std must be finite and > 0, got {logit_std!r}")
    sigma, power = (alpha - 1) * std, 1 / (alpha - 1)
    largest = float(-special.ndtri(1 / classes))

    def surplus(c: float) -> float:
        """log of the sum of the probabilities: decreasing in c."""
        share = special.ndtr(-c)
        between = share - 1 / classes
        moment = math.log(share / between) + _log_moment(c, largest, power)
        return math.log(classes) + power * math.log(sigma) + moment

    # Below `low` even a row without spread would sum to more than 1; at `largest` nothing is left.
    low = -(classes ** (-1 / power)) / sigma - 10
    return sigma, float(optimize.brentq(surplus, low, largest - 1e-9, xtol=1e-13))


def _log_moment(c: float, largest: float, power: float) -> float:
    """log ∫ (x − c)^power φ(x) dx from c to `largest`."""
    if power == 2 and largest - c > 0.1:  # where the closed form does not cancel
        mass = special.ndtr(-c) - special.ndtr(-largest)
        first = _density(c) - _density(largest)
        second = mass + c * _density(c) - largest * _density(largest)
        return math.log(second - 2 * c * first + c * c * mass)
    end = largest - c
    peak = min((math.sqrt(c * c + 4 * power) - c) / 2, end)

    def log_integrand(u: float) -> float:
        return power * math.log(u) - 0.5 * (c + u) ** 2

    height = log_integrand(peak)
    # Twelve standard deviations around the peak, whose curvature is 1 + power/peak².
    width = 12 / math.sqrt(1 + power / (peak * peak))
    area, _ = integrate.quad(
        lambda u: math.exp(log_integrand(u) - height),
        max(peak - width, 1e-12 * end),
        min(peak + width, end),
        limit=200,
    )
    return height + math.log(area) - 0.5 * math.log(2 * math.pi)


def _density(c: float) -> float:
    return math.exp(-0.5 * c * c) / math.sqrt(2 * math.pi)
