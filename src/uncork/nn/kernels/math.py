"""The mathematics the kernels share: exp_α, its sums, and the Newton steps to the threshold.

With v = z − max(z), a row is p = f(v + c). The shift c is the one unknown, in a form that loses no
precision:
    SPARSEMAX   f(x) = [x]₊                    c = 1 − s, from 1 down
    ENTMAX15    f(x) = ([x]₊/2)²               c = 2 − s, from 2 down
    POWER       f(x) = [(α−1) x]₊^{1/(α−1)}    c = 1/(α−1) − s, from 1/(α−1) down
    SOFTMAX     f(x) = e^x                     c = −s, from 0 down
    GENERAL     f(x) = exp_α(x)                c = −s, from 0 down: α near 1
where s ≥ 0 is the S of `uncork.nn.threshold`, less max(z). Σ f(v + c) falls with c, and Newton's
method on its q-norm comes down monotonically from a c that is too large (see there).
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn._torch import torch

SPARSEMAX = tl.constexpr(2)
ENTMAX15 = tl.constexpr(15)
POWER = tl.constexpr(3)
SOFTMAX = tl.constexpr(1)
GENERAL = tl.constexpr(0)

# |f| of a row's largest logit up to which exponentials are taken of f itself: e⁴⁰ times any number
# of classes is in float32's range, and what is e⁻⁴⁷ of the largest may vanish.
NEAR = tl.constexpr(40.0)

STEPS = 56  # of a search: a bracket that is halved every other step closes within these


def kind_of(alpha: float) -> int:
    """Which of the forms above a float α takes."""
    if alpha == 2:
        return SPARSEMAX.value
    if alpha == 1:
        return SOFTMAX.value
    if alpha == 1.5:
        return ENTMAX15.value
    return POWER.value if alpha > 1.02 else GENERAL.value


def offset_of(alpha: float) -> float:
    """c + s."""
    return 0.0 if kind_of(alpha) in (SOFTMAX.value, GENERAL.value) else 1 / (alpha - 1)


def tolerance_of(dtype: torch.dtype) -> float:
    """How far Σp may be from 1 for a result of this type: a few units of float32, or well under
    half a unit of 16 bits."""
    return 4 * 2.0**-23 if dtype == torch.float32 else 2.0**-14


@triton.jit
def positive(x):
    """[x]₊ that keeps NaN."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def finite(top):
    """The largest entry of a row, 0 where all are −inf, NaN where one is +inf."""
    top = tl.where(top == -float("inf"), 0.0, top)
    return tl.where(top == float("inf"), float("nan"), top)


@triton.jit
def log1p(x):
    """log(1 + x), as accurate as log itself: it puts back what rounding took from 1 + x."""
    u = 1.0 + x
    away = u - 1.0
    return tl.where(away == 0.0, x, tl.log(u) * (x / tl.where(away == 0.0, 1.0, away)))


@triton.jit
def expm1(x):
    """e^x − 1 without cancellation near 0."""
    series = x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x / 720)))))
    return tl.where(tl.abs(x) < 0.25, series, tl.exp(x) - 1.0)


@triton.jit
def largest_shift(alpha, KIND: tl.constexpr):
    """c at s = 0."""
    if KIND == SPARSEMAX:
        return alpha * 0.0 + 1.0
    elif KIND == ENTMAX15:
        return alpha * 0.0 + 2.0
    elif KIND == POWER:
        return 1.0 / (alpha - 1.0)
    else:
        return alpha * 0.0


@triton.jit
def reach(alpha, KIND: tl.constexpr):
    """p > 0 exactly where v + c > −reach."""
    if KIND == SOFTMAX or KIND == GENERAL:  # noqa: SIM109
        return 1.0 / tl.maximum(alpha - 1.0, 1e-30)
    else:
        return 0.0


@triton.jit
def largest_zero(top, c, alpha, KIND: tl.constexpr):
    """Logits at or below this have p = 0, whatever rounding did."""
    length = reach(alpha, KIND)
    return top - c - length - 1e-6 * (tl.abs(top) + tl.abs(c) + length)


@triton.jit
def rounded_reach(top, c, alpha, slack, KIND: tl.constexpr):
    """p > 0 only where v + c > −rounded_reach, if each logit may be off by `slack` of its size."""
    length = reach(alpha, KIND)
    return length + slack * (tl.abs(top) + tl.abs(c) + length)


@triton.jit
def probability(x, alpha, KIND: tl.constexpr):
    """p = f(x)."""
    if KIND == SPARSEMAX:
        return positive(x)
    elif KIND == ENTMAX15:
        half = positive(x) * 0.5
        return half * half
    elif KIND == SOFTMAX:
        return tl.exp(x)
    elif KIND == POWER:
        w = positive((alpha - 1.0) * x)
        return tl.where(w > 0, tl.exp(tl.log(tl.where(w > 0, w, 1.0)) / (alpha - 1.0)), w)
    else:
        less = alpha - 1.0
        safe = tl.where(less == 0.0, 1.0, less)
        inside = tl.maximum(safe * x, -1.0, propagate_nan=tl.PropagateNan.ALL)
        return tl.exp(tl.where(less == 0.0, x, log1p(inside) / safe))


@triton.jit
def log_probability(x, alpha, KIND: tl.constexpr):
    """log f(x), −inf off the support."""
    if KIND == SOFTMAX:
        return x
    elif KIND == GENERAL:
        less = alpha - 1.0
        safe = tl.where(less == 0.0, 1.0, less)
        inside = positive(1.0 + safe * x)
        value = log1p(tl.where(inside > 0, safe * x, 0.0)) / safe
        value = tl.where(inside > 0, value, inside - float("inf"))
        return tl.where(less == 0.0, x, value)
    else:
        w = positive(_base(x, alpha, KIND))
        value = tl.log(tl.where(w > 0, w, 1.0))
        if KIND == ENTMAX15:
            value *= 2.0
        elif KIND == POWER:
            value /= alpha - 1.0
        return tl.where(w > 0, value, w - float("inf"))  # or NaN


@triton.jit
def _base(x, alpha, KIND: tl.constexpr):
    """What [·]₊ is raised to the power 1/(α−1)."""
    if KIND == SPARSEMAX:
        return x
    elif KIND == ENTMAX15:
        return 0.5 * x
    else:
        return (alpha - 1.0) * x


@triton.jit
def slope_of(p, alpha, KIND: tl.constexpr):
    """dp/dx = p^{2−α} on the support, 0 off it."""
    if KIND == SPARSEMAX:
        return tl.where(p > 0, 1.0, 0.0)
    elif KIND == ENTMAX15:
        return tl.sqrt(p)
    elif KIND == SOFTMAX:
        return p
    else:
        safe = tl.where(p > 0, p, 1.0)
        return tl.where(p > 0, tl.exp((2.0 - alpha) * tl.log(safe)), 0.0)


@triton.jit
def terms(x, alpha, KIND: tl.constexpr):
    """(p, dp/dx) of every entry: the terms of the two sums that a Newton step needs.

    For ENTMAX15 both are left unscaled (4p and 2 dp/dx): `scaled` corrects the sums, once a row.
    """
    if KIND == SPARSEMAX:
        w = positive(x)
        return w, tl.where(x > 0, 1.0, 0.0)
    elif KIND == ENTMAX15:
        w = positive(x)
        return w * w, w
    elif KIND == SOFTMAX:
        p = tl.exp(x)
        return p, p
    elif KIND == POWER:
        p = probability(x, alpha, KIND)
        w = (alpha - 1.0) * x
        return p, tl.where(w > 0, p / tl.where(w > 0, w, 1.0), 0.0)
    else:
        p = probability(x, alpha, KIND)
        w = positive(1.0 + (alpha - 1.0) * x)
        return p, tl.where(w > 0, p / tl.where(w > 0, w, 1.0), 0.0)


@triton.jit
def scaled(total, slope, KIND: tl.constexpr):
    """The true sums of p and dp/dx, from the sums of `terms`."""
    if KIND == ENTMAX15:
        total = total * 0.25
        slope = slope * 0.5
    return total, slope


@triton.jit
def newton_step(total, slope, alpha, KIND: tl.constexpr):
    """How far c goes down from where the true sums of p and dp/dx are `total` and `slope`.

    It follows the tangent of the q-norm: exact for α = 1, and from either side of the root it leads
    to a c that is too large.
    """
    if KIND == SPARSEMAX:
        return (total - 1.0) / slope
    elif KIND == ENTMAX15:
        return 2.0 * (total - tl.sqrt(total)) / slope
    elif KIND == SOFTMAX:
        return tl.log(total)
    else:
        less = alpha - 1.0
        safe = tl.where(less == 0.0, 1.0, less)
        log = tl.log(total)
        return tl.where(less == 0.0, log, -expm1(-safe * log) / safe) * (total / slope)


@triton.jit
def advance(
    total, slope, c, low, high, before, size, alpha, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr,
):  # fmt: skip
    """One step from c: (c, low, high, before, done).

    total, slope are the sums of `terms` at c, and `size` is at least the number of positive ones.
    For α ≤ 2 the steps are monotone from above; one that does not go down is rounding, and ends the
    search. BRACKET (α > 2, or unknown to the compiler): the root stays between low and high, and
    bisection takes over where Newton's method is slow.
    """
    total, slope = scaled(total, slope, KIND)
    excess = total - 1.0
    step = newton_step(total, slope, alpha, KIND)
    proposal = c - step
    if BRACKET:
        high = tl.where(excess >= 0, c, high)
        low = tl.where(excess <= 0, c, low)
        middle = 0.5 * (low + high)
        if KIND == POWER:
            # At share · c every term is at most share^{1/(α−1)} times as large: a bound from below,
            # and the root where all entries are equal. There c − step cancels, and halving takes
            # too long.
            share = tl.exp((1.0 - alpha) * tl.log(tl.maximum(total, 1.0)))
            low = tl.where(excess > 0, tl.maximum(low, 0.9999 * share * c), low)
            far = tl.sqrt(tl.maximum(low, 1e-37)) * tl.sqrt(high)
            middle = tl.where(high > 1e3 * low, far, 0.5 * (low + high))
            proposal = tl.where((excess > 0) & (proposal < low), low, proposal)
            outside = (proposal < low) | (proposal >= high) | (proposal != proposal)
        else:
            outside = (proposal <= low) | (proposal >= high) | (proposal != proposal)
        slow = tl.abs(excess) > 0.5 * before
        proposal = tl.where(outside | slow, middle, proposal)
        closed = high - low <= 6e-8 * tl.abs(low)
        done = (tl.abs(excess) <= tolerance) | closed | (excess != excess)
        before = tl.abs(excess)
        c = tl.where(done, c, proposal)
    else:
        # After a long step, rounding can put c below the root: then take one step back up. A row of
        # −inf alone has no root.
        up = (excess < -tolerance) & (before > 0) & (total > 0)
        goes_on = ((excess > tolerance) & (proposal < c)) | (up & (proposal > c))
        before = tl.where(up, 0.0, before)
        done = goes_on == 0
        if KIND == ENTMAX15:
            # d²(total)/dc² ≤ size/2 bounds what this step leaves: small enough, with c near enough
            # that its own rounding is small too.
            done = done | ((size * step * step * 0.25 <= tolerance) & (c <= 2.0 * proposal))
        c = tl.where(goes_on, proposal, c)
    c = tl.where(excess != excess, excess, c)  # NaN in, NaN out
    return c, low, high, before, done


@triton.jit
def lowest_shift(size, alpha, KIND: tl.constexpr):
    """c of `size` entries that all equal the largest: no row of that size has a smaller c."""
    if KIND == SPARSEMAX:
        return 1.0 / size
    elif KIND == ENTMAX15:
        return 2.0 / tl.sqrt(size)
    elif KIND == POWER:
        return tl.exp((1.0 - alpha) * tl.log(size)) / (alpha - 1.0) * 0.9999
    else:
        less = alpha - 1.0
        safe = tl.where(less == 0.0, 1.0, less)
        log = tl.log(size)
        # A little lower for rounding: it only has to be a bound.
        return -tl.where(less == 0.0, log, -expm1(-safe * log) / safe) * 1.00001


@triton.jit
def solve(
    v, c, size, alpha, tolerance,
    KIND: tl.constexpr, BRACKET: tl.constexpr, STEPS: tl.constexpr, copies=1.0,
):  # fmt: skip
    """c of the entries v (of any shape, −inf where there is none), from a c that is too large.

    Every entry counts `copies` times, where v is a sample that stands for the whole row.
    """
    low = lowest_shift(size, alpha, KIND)
    high = c
    before = float("inf")
    done = False
    step = 0
    while (step < STEPS) & (done == 0):
        mass, rate = terms(v + c, alpha, KIND)
        total = tl.sum(mass) * copies
        slope = tl.sum(rate) * copies
        c, low, high, before, done = advance(
            total, slope, c, low, high, before, size, alpha, tolerance, KIND, BRACKET
        )
        step += 1
    return c


@triton.jit
def power_term(x, p, alpha, KIND: tl.constexpr):
    """p^α of p = f(x)."""
    if KIND == SPARSEMAX:
        return p * p
    elif KIND == ENTMAX15:
        return p * (positive(x) * 0.5)
    elif KIND == SOFTMAX:
        return p
    elif KIND == POWER:
        return p * positive((alpha - 1.0) * x)
    else:
        return p * positive(1.0 + (alpha - 1.0) * x)


@triton.jit
def fenchel_young(c, power, at_target, alpha, KIND: tl.constexpr):
    """Ω*(v) − v_target of a row whose largest entry is 0: s + (Σp^α − 1)/α − v_target."""
    loss = (largest_shift(alpha, KIND) - c) + (power - 1.0) / alpha - at_target
    return positive(loss)  # Ω*(v) ≥ v_c: less is rounding
