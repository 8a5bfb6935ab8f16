"""Proven bounds on the highest probability of a class, from one input: no solver, no trust.

For every input x of the domain and every p on the simplex (Gibbs' inequality)

    log Σ_i exp β(z_i − z_t)  ≥  H(p) + β Σ p_i (z_i − z_t),

and the last sum is affine in x, so the certifier bounds it from below over the whole domain. With p
the softmax at one x the bound meets the value at that x as x nears the optimum: so one x proves
both what is reached and what cannot be.

Rounding: p is whatever floats come out of `exp`, normalised by their true sum, so only H(p) needs
`exp` to be right. All that is asked of the machine's `exp` and `log` is a relative (for `log` also
absolute) error below 2⁻⁴⁰, where the result is a normal float; they do a few thousand times better.
Everything else is bounded as in `auditing.certify`. A share ε of the mixture may be spread over all
classes, to absorb a residual where the domain is infinite: H is concave, so
H((1−ε)p + εq) ≥ (1−ε)H(p).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.products import Tilted
from uncork.core.rigour import UNIT, gamma, row_norms

FUNCTIONS = 2.0**-40  # how far exp and log are trusted
_SMALLEST = 708.0  # exp(−708) is a normal float: of what exp makes below, nothing is trusted
_LOWEST = -600.0  # exponents below count as −∞: no subnormals, no underflow
_INPUTS = 64  # inputs in one product: all their logits are held


@dataclass(frozen=True)
class ProbabilityBounds:
    """For each class, proven: lower ≤ the highest probability ≤ upper."""

    classes: np.ndarray  # (n,)
    lower: np.ndarray  # (n,)
    upper: np.ndarray  # (n,)

    @property
    def gap(self) -> np.ndarray:
        """(upper − lower)/lower, infinite where only the lower one is zero: (n,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.upper > 0, (self.upper - self.lower) / self.lower, 0.0)


def probability_bounds(
    certifier: Certifier,
    classes: np.ndarray,
    u: np.ndarray,
    temperature: float = 1.0,
    bulk: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Proven bounds on sup over the domain of P(t | x), one pair for each (class, u): (n,), (n,).

    `u` (n, latent) is an input, or stands for one where the domain is an image. The lower bound is
    P at that input, rounded down (0 where it is outside the domain). `bulk`, in [0, 1), is the
    share of the mixture spread over all classes.
    """
    low, high = np.zeros(len(classes)), np.ones(len(classes))
    if not (0 <= bulk < 1 and temperature > 0 and np.isfinite(temperature)):
        return low, high
    with np.errstate(all="ignore"):  # what overflows proves nothing
        for start in range(0, len(classes), _INPUTS):
            part = slice(start, start + _INPUTS)
            low[part], high[part] = _block(
                certifier, np.asarray(classes[part]), u[part], 1 / temperature, temperature, bulk
            )
    return low, high


def _block(
    certifier: Certifier,
    classes: np.ndarray,
    u: np.ndarray,
    beta: float,
    temperature: float,
    bulk: float,
) -> tuple[np.ndarray, np.ndarray]:
    device, xp = certifier.device, certifier.device.xp
    inputs = device.put(np.asarray(u, dtype=np.float64))
    x, drift, inside = certifier.seen(inputs)
    z = logits(certifier, x)  # (n, C)
    here, own_at = device.put(np.arange(len(classes))), device.put(classes)
    own = z[here, own_at]
    s = (z - own[:, None]) * beta
    off = logit_error(certifier, device.get(x), drift, z, own_at, beta)
    peak = xp.max(s, axis=1)
    s -= peak[:, None]
    # What is that far down for certain, a masked class say, may be off by as much as it likes.
    off = device.get(xp.max(xp.where(s + off <= _LOWEST, xp.zeros_like(off), off), axis=1))
    counted = s > _LOWEST
    s = xp.where(counted, s, xp.full_like(s, _LOWEST))
    weights = xp.where(counted, xp.exp(s), xp.zeros_like(s))
    total, entropy, wrong = _entropy(device, weights, s)
    # What was dropped weighs less than this share of the peak's own weight of one.
    dropped = certifier.head.classes * 2.0**-800
    spread = np.log(total) + FUNCTIONS * (1 + np.log(total)) + gamma(certifier.head.classes + 8)
    value = device.get(peak) + spread + FUNCTIONS + dropped + off
    value = value + 8 * UNIT * np.abs(value)
    low = np.where(inside & (value < _SMALLEST), np.exp(-value) * (1 - 2 * FUNCTIONS), 0.0)
    sums = weighted_sums(certifier, weights)
    leads = certifier.leads(classes, sums, _bulk(sums, bulk))
    certain = (1 - bulk) * (entropy - wrong) * (1 - 8 * UNIT)
    scaled = leads / temperature - 8 * UNIT * np.abs(leads / temperature)
    least = np.maximum(certain, 0.0) + scaled
    least = least - 8 * UNIT * np.abs(least)
    # A probability is never 0: beyond exp(−708) the bound stays there, and does not underflow.
    high = np.exp(-np.where(np.isnan(least), 0.0, np.clip(least, 0.0, _SMALLEST)))
    high = np.where(least > 0, np.minimum(high * (1 + 2 * FUNCTIONS), 1.0), 1.0)
    return np.where(np.isnan(low), 0.0, np.clip(low, 0.0, 1.0)), high


def _bulk(sums: Tilted, share: float) -> np.ndarray:
    """The weight spread over all classes that makes up at most `share` of everything: (n,)."""
    least = np.maximum(sums.mass - sums.mass_error, 0.0)
    return np.asarray(least * share / (1 - share) * (1 - 2.0**-40))


def logits(certifier: Certifier, x: Any) -> Any:
    device, head = certifier.device, certifier.head
    parts = [
        x @ block.T + device.put(head.offsets[start : start + block.shape[0]])
        for start, block in device.blocks(head)
    ]
    return device.xp.concat(parts, axis=1)


def logit_error(
    certifier: Certifier, x: np.ndarray, drift: np.ndarray, z: Any, own_at: Any, beta: float
) -> Any:
    """How far each s_i = β(z_i − z_t), or s_i − max s, as computed, may be from the true one:
    (n, C), from logits z (n, C) and the classes t (n,)."""
    products, device, xp = certifier.products, certifier.device, certifier.device.xp
    norms, offsets = device.put(products.norms)[None, :], device.put(np.abs(products.offsets))
    logit = products.kappa * (device.put(row_norms(x))[:, None] * norms + offsets[None, :])
    logit = logit + 1.04 * (device.put(drift)[:, None] * norms) + products.slop
    here = device.put(np.arange(len(x)))
    size = xp.abs(z) + logit
    logit = logit + logit[here, own_at][:, None]
    size = size + (size[here, own_at] + xp.abs(xp.max(z, axis=1)))[:, None]
    return beta * (logit + 16 * UNIT * size) * (1 + 16 * UNIT)


def _entropy(device: Any, weights: Any, s: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """L = Σ l, H(l/L) = log L − Σ l log l / L, and how far the latter may be off; each (n,)."""
    xp, get = device.xp, device.get
    total = get(xp.sum(weights, axis=1))
    inner = get(xp.sum(weights * -s, axis=1))  # ≥ 0 term by term
    count = weights.shape[1] + 8
    entropy = np.log(total) + inner / total
    # log l is s up to 2·FUNCTIONS: l is exp(s) up to that share.
    wrong = 4 * FUNCTIONS * (1 + np.log(total)) + 4 * gamma(count) * (1 + inner / total)
    return total, entropy, wrong * (1 + 16 * UNIT)


def weighted_sums(certifier: Certifier, weights: Any) -> Tilted:
    """Sums over all classes with given non-negative weights (n, C), bounded as the certifier's."""
    return certifier.products.weighted(
        lambda start, block: weights[:, start : start + block.shape[0]]
    )
