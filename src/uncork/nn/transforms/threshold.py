"""The one number per row that α-entmax needs: S with Σ exp_α(z − S) = 1.

Newton's method on the q-norm of the row, q = 1/(α−1). With w = [1 + (α−1)(v − s)]₊ the sum
A = Σ w^q is what must become 1, and A^{1/q} is a norm of a convex function of s: convex and nearly
straight. Newton from below is then monotone, exact in one step for α = 1 (it is logsumexp) and
for one class, and is Michelot's finite algorithm for α = 2. For α > 2 the sum has vertical
tangents and a bracket with bisection keeps the iteration safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from uncork.nn import kernels
from uncork.nn._rows import Alpha, runs_eagerly_on_cpu
from uncork.nn._torch import torch
from uncork.nn.transforms.deformed import LEAST_ALPHA_BY_POWER, exp_alpha, positive_power
from uncork.nn.transforms.operator import Bracket, as_operator

Tensor = torch.Tensor

# Enough for the bracket alone to close in the worst case: a halving every other step.
MOST_STEPS = {torch.float32: 56, torch.float64: 116}


class Exchange(NamedTuple):
    """Rows of which every process has a part."""

    entries: int  #: of a whole row
    add_up: Callable[[Tensor], Tensor]  #: a tensor summed over all processes


def shifted(z: Tensor, *, in_place: bool = False) -> tuple[Tensor, Tensor]:
    """(z − max, max) along the last dimension, perhaps in the place of z. A row that is all −inf
    keeps its −inf: its maximum is taken as 0, so no −inf − (−inf) arises. That of a row with +inf
    is NaN, and so is the row."""
    top = z.amax(-1, keepdim=True)
    top = torch.where(top == -math.inf, torch.zeros_like(top), top)
    top = torch.where(top == math.inf, math.nan, top)
    return z.sub_(top) if in_place else z - top, top


def entmax_shift(
    v: Tensor,
    alpha: Alpha,
    floor: Tensor | None = None,
    guess: Tensor | None = None,
    copies: float = 1.0,
    scratch: Tensor | None = None,
) -> Tensor:
    """s ≥ 0 per row with Σ exp_α(v − s) = 1.  v (..., n), largest entry 0  →  s (..., 1).

    Each row stops by its own error. On CPU the loop ends when all rows have, on CUDA a kernel takes
    every row by itself; elsewhere, and in float64, the loop runs to the proven bound with finished
    rows frozen, since asking would make the host wait.

    `floor` is a known lower bound; `guess` may lie on either side of the solution; `copies` counts
    every entry that many times, which is how a sample of a row stands for the whole of it;
    `scratch` is a buffer shaped like v.
    """
    if floor is None:
        if (
            guess is None
            and copies == 1
            and v.dtype == torch.float32
            and (isinstance(alpha, Tensor) or alpha >= 1)
            and kernels.usable(v)
        ):
            from uncork.nn.kernels.entmax import entmax_shift as entmax_shift_kernel

            return entmax_shift_kernel(v, alpha)
        floor = _lower_bound(v, alpha)
    may_look = v.device.type == "cpu"
    if scratch is None and may_look:
        scratch = torch.empty_like(v)
    if not isinstance(alpha, Tensor) and 1 <= alpha <= 2 and runs_eagerly_on_cpu(v, floor):
        return _newton_on_cpu(v, alpha, floor, guess, copies, scratch)
    return _newton(v, alpha, floor, guess, copies, scratch, may_look)


def _lower_bound(v: Tensor, alpha: Alpha) -> Tensor:
    """Jensen's bound: for α ≤ 2 exp_α is convex, so Σ exp_α(v − s) ≥ n exp_α(mean(v) − s), which
    is 1 at s = mean(v) + (1 − n^{1−α})/(α−1). And s ≥ 0, since the largest entry alone gives 1."""
    mean = v.mean(-1, keepdim=True)
    bound = mean + _upper_bound(v, alpha)
    if not isinstance(alpha, Tensor) and runs_eagerly_on_cpu(v) and bool((mean == -math.inf).any()):
        # As if the masked entries were not there: so they hardly change a digit of the result.
        known = v > -math.inf
        count = known.sum(-1, keepdim=True).clamp(min=1)
        mean = torch.where(known, v, 0.0).sum(-1, keepdim=True) / count
        log_n = count.double().log()
        flat = log_n if alpha == 1 else -torch.expm1((1 - alpha) * log_n) / (alpha - 1)
        bound = mean + flat.to(v.dtype)
    bound = torch.where(bound > 0, bound, torch.zeros_like(bound))
    if isinstance(alpha, Tensor):
        return torch.where(alpha <= 2, bound, torch.zeros_like(bound))
    return bound if alpha <= 2 else torch.zeros_like(bound)


def _upper_bound(v: Tensor, alpha: Alpha) -> Tensor:
    """(1 − n^{1−α})/(α−1), log n at α = 1: n entries all equal to the largest."""
    log_n = _log_size(v)
    if isinstance(log_n, Tensor) and not isinstance(alpha, Tensor):
        alpha = v.new_full((), alpha)
    if isinstance(alpha, Tensor):
        eps = alpha - 1
        safe = torch.where(eps == 0, torch.ones_like(eps), eps)
        bound = torch.where(eps == 0, log_n, -torch.expm1(-safe * log_n) / safe)
        return bound.expand((*v.shape[:-1], 1))
    assert not isinstance(log_n, Tensor)
    value = log_n if alpha == 1 else -math.expm1(-(alpha - 1) * log_n) / (alpha - 1)
    return v.new_full((*v.shape[:-1], 1), value)


def _log_size(v: Tensor) -> Alpha:
    """log n of rows v (..., n), a tensor where n is any number, as an export may have it."""
    n = v.shape[-1]
    return math.log(max(n, 1)) if isinstance(n, int) else v.new_full((), n).log()


def _newton(
    v: Tensor,
    alpha: Alpha,
    floor: Tensor,
    guess: Tensor | None,
    copies: float,
    scratch: Tensor | None,
    may_look: bool,
) -> Tensor:
    tiny = torch.finfo(v.dtype).eps
    bracketed = isinstance(alpha, Tensor) or not 1 <= alpha <= 2
    s, low = floor if guess is None else guess, floor
    high = (_upper_bound(v, alpha) + math.log(copies)) * (1 + 4 * tiny)
    done = torch.zeros_like(floor, dtype=torch.bool)
    before = torch.full_like(floor, math.inf)
    for step in range(MOST_STEPS[v.dtype]):
        total, slope = _sums(v, s, alpha, scratch)
        if copies != 1:
            total, slope = total * copies, slope * copies
        excess = total - 1
        proposal = s + _step(total, slope, alpha)
        if bracketed:
            low = torch.where(excess >= 0, s, low)
            high = torch.where(excess <= 0, s, high)
            outside = ~((proposal > low) & (proposal < high))
            slow = excess.abs() > 0.5 * before
            proposal = torch.where(outside | slow, 0.5 * (low + high), proposal)
            before = excess.abs()
            done = done | (excess.abs() <= 4 * tiny) | (high - low <= tiny * high)
        elif step == 0 and guess is not None:
            # From above, a convex function's tangent leads below its root; not below the floor.
            proposal = torch.where(proposal > floor, proposal, floor)
            done = excess.abs() <= 4 * tiny
        else:
            # From below the sum falls towards 1 and s only rises: a step that does neither is
            # rounding, and the row is finished. (NaN compares false and finishes too.)
            done = done | ~((excess > 4 * tiny) & (proposal > s))
        s = torch.where(done, s, proposal)
        if not bracketed and alpha == 1.5:
            # d²A/ds² ≤ n/2, so what this step leaves is at most n (step)²/4: no need to look.
            done = done | ((excess > 0) & (v.shape[-1] * (excess / slope).square() <= 8 * tiny))
        if may_look and bool(done.all()):
            break
    return s


def _newton_on_cpu(
    v: Tensor,
    alpha: float,
    floor: Tensor,
    guess: Tensor | None,
    copies: float,
    scratch: Tensor | None,
) -> Tensor:
    """`_newton` for 1 ≤ α ≤ 2, with a row's own numbers in NumPy: a step has twenty operations on
    them, each a fraction of what calling torch takes, and threads take turns at calling it."""
    tiny = float(torch.finfo(v.dtype).eps)
    low = floor.detach().numpy()
    s = (floor if guess is None else guess).detach().numpy().copy()
    done = np.zeros(s.shape, dtype=bool)
    with np.errstate(all="ignore"):
        for step in range(MOST_STEPS[v.dtype]):
            total, slope = _sums_on_cpu(v, s, alpha, scratch)
            if copies != 1:
                total, slope = total * copies, slope * copies
            total, slope = total.astype(np.float64), slope.astype(np.float64)
            excess = total - 1
            proposal = (s + _step_on_cpu(total, slope, alpha)).astype(s.dtype)
            if step == 0 and guess is not None:
                proposal = np.where(proposal > low, proposal, low)
                done = np.abs(excess) <= 4 * tiny
            else:
                done |= ~((excess > 4 * tiny) & (proposal > s))
            np.copyto(s, proposal, where=~done)
            if alpha == 1.5:
                done |= (excess > 0) & (v.shape[-1] * (excess / slope) ** 2 <= 8 * tiny)
            if done.all():
                break
    return torch.from_numpy(s)


def _sums_on_cpu(v: Tensor, s: Any, alpha: float, scratch: Tensor | None) -> tuple[Any, Any]:
    """`_sums` with s, A and B in NumPy, (..., 1)."""
    if alpha == 1.5:
        w = torch.sub(v, torch.from_numpy(s - 2), out=scratch).relu_()
        norm = torch.linalg.vector_norm(w, dim=-1, keepdim=True).numpy()
        return norm * norm * 0.25, w.sum(-1, keepdim=True).numpy() * 0.5
    if alpha == 2:
        w = torch.sub(v, torch.from_numpy(s - 1), out=scratch).relu_()
        total = w.sum(-1, keepdim=True).numpy()
        return total, w.sign_().sum(-1, keepdim=True).numpy()
    sums = _sums(v, torch.from_numpy(s), alpha, scratch)
    return sums[0].numpy(), sums[1].numpy()


def _step_on_cpu(total: Any, slope: Any, alpha: float) -> Any:
    """`_step` of NumPy arrays."""
    if alpha == 2:
        return (total - 1) / slope
    if alpha == 1.5:
        return 2 * (total - np.sqrt(total)) / slope
    if alpha == 1:
        return np.log(total) * (total / slope)
    return -np.expm1(-(alpha - 1) * np.log(total)) / (alpha - 1) * (total / slope)


def _sums(v: Tensor, s: Tensor, alpha: Alpha, scratch: Tensor | None) -> tuple[Tensor, Tensor]:
    """A = Σ w^q and B = Σ w^{q−1} = −dA/ds, each (..., 1)."""
    if not isinstance(alpha, Tensor):
        if alpha == 2:
            w = torch.sub(v, s - 1, out=scratch).relu_()
            total = w.sum(-1, keepdim=True)
            return total, w.sign_().sum(-1, keepdim=True)
        if alpha == 1.5:  # w here is twice the w of the formula
            w = torch.sub(v, s - 2, out=scratch).relu_()
            slope = w.sum(-1, keepdim=True) * 0.5
            return torch.linalg.vector_norm(w, dim=-1, keepdim=True).square() * 0.25, slope
        if alpha >= LEAST_ALPHA_BY_POWER and alpha < 2:
            w = _base(v, s, alpha, scratch)
            power = positive_power(w, 1 / (alpha - 1) - 1)
            return torch.linalg.vecdot(power, w).unsqueeze(-1), power.sum(-1, keepdim=True)
    p = exp_alpha(v - s, alpha)
    w = torch.addcmul(torch.ones_like(s), v - s, _less_one(alpha, s)).relu_()
    slope = torch.where(w > 0, p / w, torch.zeros_like(p))
    return p.sum(-1, keepdim=True), slope.sum(-1, keepdim=True)


def _base(v: Tensor, s: Tensor, alpha: float, scratch: Tensor | None) -> Tensor:
    """w = [1 + (α−1)(v − s)]₊."""
    return torch.add(1 - (alpha - 1) * s, v, alpha=alpha - 1, out=scratch).relu_()


def _less_one(alpha: Alpha, like: Tensor) -> Tensor:
    return alpha - 1 if isinstance(alpha, Tensor) else torch.full_like(like, alpha - 1)


def _step(total: Tensor, slope: Tensor, alpha: Alpha) -> Tensor:
    """Newton's step for A^{α−1} = 1: (A/B)(1 − A^{1−α})/(α−1), log A · A/B at α = 1."""
    if isinstance(alpha, Tensor):
        eps = alpha - 1
        safe = torch.where(eps == 0, torch.ones_like(eps), eps)
        log = total.log()
        gain = torch.where(eps == 0, log, -torch.expm1(-safe * log) / safe)
        return gain * (total / slope)
    if alpha == 2:
        return (total - 1) / slope
    if alpha == 1.5:
        return 2 * (total - total.sqrt()) / slope
    return -torch.expm1(-(alpha - 1) * total.log()) / (alpha - 1) * (total / slope)


def power_level(v: Tensor, alpha: Alpha, exchange: Exchange | None = None) -> Tensor:
    """c per row with Σ [(α−1)(v + c)]₊^{1/(α−1)} = 1, α > 2.  v as in `entmax_shift` → (..., 1).

    c is 1/(α−1) − s. In nearly flat rows it is far smaller than s is rounded by, and the powers
    are steep there: so it is found by itself. (Rows of a tensor α ≤ 2 are taken as α = 2.)
    `exchange`: v is a part of the row, and others have the rest.
    """
    if exchange is None and v.dtype == torch.float32 and kernels.usable(v):
        from uncork.nn.kernels.entmax import power_level as power_level_kernel

        return power_level_kernel(v, alpha.clamp(min=2) if isinstance(alpha, Tensor) else alpha)
    entries = v.shape[-1] if exchange is None else exchange.entries
    may_look = v.device.type == "cpu" or exchange is not None
    tiny = torch.finfo(v.dtype).eps
    less = (alpha - 1).clamp(min=1) if isinstance(alpha, Tensor) else v.new_full((), alpha - 1)
    least = torch.finfo(v.dtype).tiny
    high = (1 / less).expand((*v.shape[:-1], 1))
    low = ((-less * math.log(entries)).exp() / less * (1 - 8 * tiny)).clamp(min=least)
    low = low.expand(high.shape)
    c, before = high, torch.full_like(high, math.inf)
    done = torch.zeros_like(high, dtype=torch.bool)
    for _ in range(2 * MOST_STEPS[v.dtype]):
        w = (less * (v + c)).relu()
        p = w.pow(1 / less)
        total = p.sum(-1, keepdim=True)
        slope = torch.where(w > 0, p / w, torch.zeros_like(p)).sum(-1, keepdim=True)
        if exchange is not None:
            total, slope = exchange.add_up(torch.stack([total, slope]))
        excess = total - 1
        # A share of c leaves every term that share's power at most: exact where all are equal.
        below = (-less * total.log()).exp() * c * (1 - 8 * tiny)
        low = torch.where(excess > 0, torch.maximum(low, below), c)
        high = torch.where(excess >= 0, c, high)
        proposal = c + torch.expm1(-less * total.log()) / less * (total / slope)
        middle = torch.where(high > 4 * low, low.sqrt() * high.sqrt(), 0.5 * (low + high))
        outside = ~((proposal > low) & (proposal < high))
        proposal = torch.where(outside, torch.where(excess > 0, low, middle), proposal)
        proposal = torch.where(excess.abs() > 0.5 * before, middle, proposal)
        before = excess.abs()
        done = done | (before <= 4 * tiny) | (high - low <= tiny * high) | excess.isnan()
        c = torch.where(done, c, proposal)
        if may_look and bool(done.all()):
            break
    return c


def by_power(v: Tensor, alpha: Alpha, c: Tensor, exchange: Exchange | None = None) -> Tensor:
    """p of rows v with their c, α > 2.

    The last bit of c moves p by far more than a rounding error where v + c is nearly 0: p is
    taken between those of c and of its neighbour, so that it sums to 1.
    """
    less = (alpha - 1).clamp(min=1) if isinstance(alpha, Tensor) else alpha - 1

    def at(c: Tensor) -> tuple[Tensor, Tensor]:
        p = (less * (v + c)).relu().pow(1 / less)
        total = p.sum(-1, keepdim=True)
        return p, total if exchange is None else exchange.add_up(total)

    p, total = at(c)
    if torch.onnx.is_in_onnx_export():  # which knows no neighbours of a float
        return p / torch.where(total == 0, torch.ones_like(total), total)
    there = torch.where(total > 1, torch.zeros_like(c), torch.full_like(c, math.inf))
    q, other = at(torch.nextafter(c, there))
    apart = other - total
    share = torch.where(apart == 0, 0.0, (1 - total) / torch.where(apart == 0, 1.0, apart))
    share = share.clamp(0, 1)
    p = p + share * (q - p)
    total = total + share * apart
    return p / torch.where(total == 0, torch.ones_like(total), total)


def _power_level_excess(v: Tensor, t: Tensor, alpha: Alpha) -> Tensor:
    """Σ [(α−1)(v + c)]₊^{1/(α−1)} − 1 with c = e^{−t}."""
    less = (alpha - 1).clamp(min=1) if isinstance(alpha, Tensor) else alpha - 1
    return (less * (v + (-t).exp())).relu().pow(1 / less).sum(-1, keepdim=True) - 1


def _power_level_ends(v: Tensor, alpha: Alpha) -> tuple[Alpha, Alpha]:
    log_n = _log_size(v)
    if isinstance(alpha, Tensor):
        less = (alpha - 1).clamp(min=1)
        return less.log(), less.log() + less * log_n
    return math.log(alpha - 1), math.log(alpha - 1) + (alpha - 1) * log_n


power_level_anywhere = as_operator(
    "entmax_power_level",
    power_level,
    Bracket(_power_level_excess, _power_level_ends, lambda t: (-t).exp()),
)
"""`power_level` likewise."""

entmax_shift_anywhere = as_operator(
    "entmax_shift",
    entmax_shift,
    Bracket(
        lambda v, s, alpha: exp_alpha(v - s, alpha).sum(-1, keepdim=True) - 1,
        lambda v, alpha: (0.0, _upper_bound(v, alpha)),
    ),
)
"""`entmax_shift` for traced, batched or device tensors. v (..., n), alpha → s (..., 1)."""
