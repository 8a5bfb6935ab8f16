"""Proven bounds on the largest α-entmax probability of a class, from one input: no solver.

With a = α − 1, k = 1/a and s_i = β(z_i − z_t), t has p_t ≥ θᵏ at x exactly where
Σ_i [a s_i + θ]₊ᵏ ≤ 1 (the term of t itself is θᵏ). So a θ with that sum at most 1 proves the lower
bound. For k ≥ 1 and any c ≥ 0,

    [v]₊ᵏ ≥ c v − h(c),    h(c) = (k − 1)(c/k)^(k/(k−1))    (k = 1: h = 0 for c ≤ 1),

so that for every input of the domain 1 ≥ Σ c_i (a s_i + θ) − Σ h(c_i), that is

    θ ≤ (1 + Σ h(c_i))/Σ c_i − a min over x of Σ c_i s_i / Σ c_i.

The last sum is affine in x: the certifier bounds it over the domain. Where the right-hand side is
zero or less, t is never in the support. For α > 2, where k < 1, [v]₊ᵏ ≥ [v]₊ on what can occur (no
p_i is above one): the upper bound with k = 1 in its place holds, and need not be met.

Rounding: of the machine's `pow` no more is asked than a relative error of 2⁻⁴⁰; the rest is bounded
as in `bounds.probability`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.proofs.verdict import Mixture
from uncork.core.rigour import UNIT, gamma
from uncork.reach.bounds.probability import FUNCTIONS, logit_error, logits, weighted_sums

_INPUTS = 32  # inputs in one product: all their logits are held
_HEAVIEST = 4.0  # no class has more than this share of the bulk, times 1/C: nudges are below ½
_TRIES = 8
_ROOT = 60  # Newton steps on θ
_SMALLEST = 2.0**-1021  # no power is trusted that would be smaller: twice the least normal float


def sparse_bounds(
    certifier: Certifier,
    classes: np.ndarray,
    u: np.ndarray,
    epsilon: np.ndarray,
    alpha: float,
    temperature: float = 1.0,
    bulk: float = 0.0,
    weights: Sequence[Mixture | None] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Proven: lower ≤ sup p_t ≤ upper for each (class, u), and whether p_t = 1 at u: (n,) each.

    `u` (n, latent) as in `probability_bounds`; `epsilon` (n,) says how the weights of the upper
    bound's proof are made from it, where they are not given as `weights`.
    """
    given = [None] * len(classes) if weights is None else list(weights)
    count = len(classes)
    low, high, whole = np.zeros(count), np.ones(count), np.zeros(count, dtype=bool)
    sound = 0 <= bulk < 1 and 0 < temperature < np.inf and 1 < alpha < np.inf
    if not sound or not (epsilon > 0).all():
        return low, high, whole
    with np.errstate(all="ignore"):  # what overflows proves nothing
        for start in range(0, count, _INPUTS):
            part = slice(start, start + _INPUTS)
            low[part], high[part], whole[part] = _block(
                certifier, np.asarray(classes[part]), u[part], epsilon[part], alpha, temperature,
                bulk, given[part],
            )  # fmt: skip
    return low, high, whole


def _block(
    certifier: Certifier,
    classes: np.ndarray,
    u: np.ndarray,
    epsilon: np.ndarray,
    alpha: float,
    temperature: float,
    bulk: float,
    given: Sequence[Mixture | None],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    device, beta, a = certifier.device, 1 / temperature, alpha - 1
    xp = device.xp
    x, drift, inside = certifier.seen(device.put(np.asarray(u, dtype=np.float64)))
    z = logits(certifier, x)  # (n, C)
    here, own_at = device.put(np.arange(len(classes))), device.put(classes)
    s = (z - z[here, own_at][:, None]) * beta
    off = logit_error(certifier, device.get(x), drift, z, own_at, beta)
    off = off + 4 * UNIT * xp.abs(s)  # of 1/temperature and the product
    v = a * (s + off)
    v[here, own_at] = 0.0
    low, whole = _reached(device, v, a)
    low, whole = np.where(inside, low, 0.0), whole & inside
    c = _weights(device, a * s, epsilon, max(1 / a, 1.0), given)
    high = _never_above(certifier, classes, c, a, beta, bulk)
    return np.where(np.isnan(low), 0.0, np.clip(low, 0, 1)), high, whole


def _reached(device: Any, v: Any, a: float) -> tuple[np.ndarray, np.ndarray]:
    """p_t from below where a s_i ≤ v_i, and whether it is one."""
    xp, get, k = device.xp, device.get, 1 / a
    # Rounding of a, of the products and of v + θ, where that can be positive: |v| ≤ 1 there.
    v = v + 32 * UNIT * (1 + xp.abs(v))
    whole = get(xp.sum(xp.astype(v > -1, xp.int64), axis=1)) == 1  # t itself, and no other
    theta = get(threshold(xp, v, k, 1e-300)) if k >= 1 else _bisected(device, v, k)
    theta = np.minimum(theta, 1.0)
    count = v.shape[1]
    safe = 1 - 2 * FUNCTIONS - 2 * gamma(count + 8)
    good = np.zeros(len(theta), dtype=bool)
    for attempt in range(_TRIES):
        tried = np.where(good, theta, theta - 2.0**-44 * 16**attempt)
        positive = xp.maximum(v + device.put(tried)[:, None], xp.zeros_like(v))
        total = get(xp.sum(positive**k, axis=1))
        good, theta = good | (total <= safe), np.where(good, theta, tried)
        if good.all():
            break
    power = np.maximum(theta, 0) ** k
    low = np.where(good & (power >= _SMALLEST), power * (1 - 2 * FUNCTIONS), 0.0)
    return np.where(whole, 1.0, low), whole


def _bisected(device: Any, v: Any, k: float) -> np.ndarray:
    """θ for k < 1, where Newton's steps do not converge."""
    xp, get = device.xp, device.get
    high = get(1 - xp.max(v, axis=1))
    low = high - 1
    for _ in range(52):
        middle = (low + high) / 2
        positive = xp.maximum(v + device.put(middle)[:, None], xp.zeros_like(v))
        above = get(xp.sum(positive**k, axis=1)) > 1
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return low


def _weights(
    device: Any, v: Any, epsilon: np.ndarray, k: float, given: Sequence[Mixture | None]
) -> Any:
    """The derivatives at one input, or what was given: (n, C). Any non-negative ones will do."""
    width = device.put(epsilon)[:, None]
    c = derivative(device.xp, v + threshold(device.xp, v, k, width)[:, None], k, width)
    for row, mixture in enumerate(given):
        if mixture is not None:
            named = np.zeros(v.shape[1])
            named[mixture.classes] = np.where(mixture.weights >= 0, mixture.weights, np.nan)
            c[row] = device.put(named)
    return c


def _never_above(
    certifier: Certifier,
    classes: np.ndarray,
    c: Any,
    a: float,
    beta: float,
    bulk: float,
) -> np.ndarray:
    """p_t from above, everywhere on the domain, with weights c ≥ 0 (n, C)."""
    xp, get = certifier.device.xp, certifier.device.get
    k, total_classes = max(1 / a, 1.0), certifier.head.classes
    # The least θ that these weights, scaled, can prove; for k = 1 none may exceed one.
    if k > 1:
        power = k / (k - 1)
        price = xp.sum((c / k) ** power, axis=1) * (k - 1)
        c = c * ((1 / ((power - 1) * price)) ** (1 / power))[:, None]
        spent = get(xp.sum((c / k) ** power, axis=1)) * (k - 1)
        spent = spent * (1 + 4 * power * FUNCTIONS + 2 * gamma(total_classes + 8))
    else:
        c = c / xp.max(c, axis=1)[:, None]
        c = xp.minimum(c, xp.ones_like(c))
        spent = np.zeros(len(classes))
    sums = weighted_sums(certifier, c)
    mass = sums.mass
    spread = mass if k > 1 else np.full(len(classes), total_classes / _HEAVIEST)
    share = bulk / (1 - bulk) * mass / spread
    share = share / (1 + share)  # η: c' = (1 − η) c + η d, and Σ d = spread
    if k > 1:
        heavy = (k - 1) * (_HEAVIEST * spread / total_classes / k) ** power * total_classes
        spent = (1 - share) * spent + share * heavy * (1 + 4 * power * FUNCTIONS)
    least = (1 - share) * (mass - sums.mass_error) + share * spread * (1 - 16 * UNIT)
    extra = share * spread / (1 - share)
    leads = certifier.leads(classes, sums, extra if bulk else np.zeros(len(classes)))
    first = (1 + spent) * (1 + 16 * UNIT) / (least * (1 - 16 * UNIT))
    scaled = a * beta * leads
    theta = first * (1 + 16 * UNIT) - scaled + 16 * UNIT * np.abs(scaled)
    theta = theta + 4 * UNIT * np.abs(theta)
    exponent = 1 / a
    # 0 is for classes that are left out, not for those whose power underflows.
    power = np.maximum(np.minimum(np.maximum(theta, 0.0), 1.0) ** exponent, _SMALLEST)
    high = power * (1 + 2 * FUNCTIONS)
    high = np.where(theta > 0, np.minimum(high, 1.0), 0.0)
    return np.where(np.isfinite(theta), high, 1.0)


def threshold(xp: Any, v: Any, k: float, epsilon: float) -> Any:
    """θ with Σ_i φ(v_i + θ) = 1, one for each row: (n, C) → (n,).

    From the right Newton's steps on the convex increasing sum never pass the root.
    """
    theta = 1 - xp.max(v, axis=1)
    for _ in range(_ROOT):
        positive, share = softplus(xp, v + theta[:, None], epsilon)
        powers = positive ** (k - 1)
        total = xp.sum(powers * positive, axis=1)
        step = (total - 1) / (k * xp.sum(powers * share, axis=1))
        theta = theta - step
        if bool(xp.all(~(step > 1e-15 * (1 + xp.abs(theta))))):
            break
    return theta


def derivative(xp: Any, v: Any, k: float, epsilon: float) -> Any:
    """φ' of the smoothed φ."""
    positive, share = softplus(xp, v, epsilon)
    return k * positive ** (k - 1) * share


def softplus(xp: Any, v: Any, epsilon: float) -> tuple[Any, Any]:
    """ε log(1 + exp(v/ε)) and its derivative."""
    small = xp.exp(-xp.abs(v) / epsilon)
    zero = xp.zeros_like(v)
    positive = xp.maximum(v, zero) + epsilon * xp.log1p(small)
    share = xp.where(v > 0, 1 / (1 + small), small / (1 + small))
    return positive, share
