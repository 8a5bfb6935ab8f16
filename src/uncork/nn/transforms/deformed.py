"""The deformed exponential exp_α(x) = [1 + (α−1) x]₊^{1/(α−1)}, and its kin, accurate at α → 1.

α-entmax is p = exp_α(z − S) with one number S per row; α = 1 gives exp, so softmax. With
S = (τ + 1)/(α−1) it is the usual p = [(α−1) z − τ]₊^{1/(α−1)}, but nothing cancels near α = 1.
"""

from __future__ import annotations

import math

from uncork.nn._rows import Alpha, blocks, runs_eagerly_on_cpu
from uncork.nn._torch import torch

Tensor = torch.Tensor


# From here on [1 + (α−1) x]₊^{1/(α−1)} may be taken as it is written: the rounding of the base is
# multiplied by the exponent, at most 8. Nearer to 1 it goes through log1p.
LEAST_ALPHA_BY_POWER = 1.125


def positive_power(w: Tensor, exponent: float) -> Tensor:
    """w^exponent for w ≥ 0, exponent > 0; whole exponents by multiplying, several times faster."""
    whole = round(exponent)
    if exponent != whole or whole > 8:
        return w.pow(exponent)
    result: Tensor | None = None
    square = w
    while whole:
        if whole & 1:
            result = square if result is None else result * square
        whole >>= 1
        square = square * square if whole else square
    assert result is not None
    return result


def exp_alpha(x: Tensor, alpha: Alpha, out: Tensor | None = None) -> Tensor:
    """exp_α(x), elementwise; `alpha` a float > 0 or a tensor that broadcasts.

    `out` (may be `x` itself) receives the result where `alpha` is a float.
    """
    if isinstance(alpha, Tensor):
        eps = alpha - 1
        safe = torch.where(eps == 0, torch.ones_like(eps), eps)
        power = log1p((safe * x).clamp(min=-1)) / safe
        return torch.where(eps == 0, x, power).exp()
    if out is None:
        return _exp_alpha_new(x, alpha)
    if alpha == 1:
        return torch.exp(x, out=out)
    if alpha == 2:
        return torch.add(x, 1, out=out).relu_()
    if alpha == 1.5:
        return torch.add(x, 2, out=out).relu_().mul_(0.5).square_()
    if LEAST_ALPHA_BY_POWER <= alpha < 2:
        w = torch.mul(x, alpha - 1, out=out).add_(1).relu_()
        return out.copy_(positive_power(w, 1 / (alpha - 1)))
    return torch.mul(x, alpha - 1, out=out).clamp_(min=-1).log1p_().div_(alpha - 1).exp_()


def _exp_alpha_new(x: Tensor, alpha: float) -> Tensor:
    """The same without writing in place, which vmap and torch.compile prefer."""
    if alpha == 1:
        return x.exp()
    if alpha == 2:
        return (x + 1).relu()
    if alpha == 1.5:
        return ((x + 2).relu() * 0.5).square()
    if LEAST_ALPHA_BY_POWER <= alpha < 2:
        return positive_power((x * (alpha - 1) + 1).relu(), 1 / (alpha - 1))
    return (log1p((x * (alpha - 1)).clamp(min=-1)) / (alpha - 1)).exp()


def log1p(x: Tensor) -> Tensor:
    """log(1 + x). ONNX has but that: written out, what rounding took from 1 + x is put back."""
    if not torch.onnx.is_in_onnx_export():
        return torch.log1p(x)
    u = 1 + x
    away = u - 1
    one = torch.ones_like(x)
    share = torch.where(away == x, one, x / torch.where(away == 0, one, away))  # no inf / inf
    return torch.where(away == 0, x, u.log() * share)


def log_alpha(log_p: Tensor, alpha: Alpha) -> Tensor:
    """x of p = exp_α(x), from log p: (p^{α−1} − 1)/(α−1), accurate and differentiable at α → 1."""
    if isinstance(alpha, Tensor):
        return log_p * _chi((alpha - 1) * log_p)
    return log_p if alpha == 1 else torch.expm1((alpha - 1) * log_p) / (alpha - 1)


def log_exp_alpha(x: Tensor, alpha: Alpha) -> Tensor:
    """log exp_α(x) = log(1 + (α−1) x)/(α−1) on the support, likewise."""
    if isinstance(alpha, Tensor):
        return x * _lambda((alpha - 1) * x)
    return x if alpha == 1 else log1p((alpha - 1) * x) / (alpha - 1)


def on_support(p: Tensor) -> tuple[Tensor, Tensor]:
    """(p > 0, p with its zeros replaced by 1), so that powers and logarithms of the second have
    finite derivatives everywhere and the first selects what counts."""
    support = p > 0
    return support, torch.where(support, p, torch.ones_like(p))


def log_on_support(p: Tensor) -> Tensor:
    """log p: −inf where p is zero, with gradient zero there; NaN stays NaN."""
    if runs_eagerly_on_cpu(p) and not p.requires_grad:
        return log_in_place(p.clone())
    support, safe = on_support(p)
    return torch.where(support, safe.log(), p.detach() - torch.inf)


def log_in_place(p: Tensor) -> Tensor:
    """p becomes log p. The vector library's logarithm is many times slower where it meets zeros."""
    zero = p == 0
    return p.masked_fill_(zero, 1).log_().masked_fill_(zero, -torch.inf)


def slopes(p: Tensor, alpha: Alpha) -> Tensor:
    """dp/dx of p = exp_α(x), which is p^{2−α} on the support and 0 off it."""
    if not isinstance(alpha, Tensor) and alpha == 1:
        return p
    support, safe = on_support(p)
    if not isinstance(alpha, Tensor):
        if alpha == 2:
            return support.to(p.dtype)
        if alpha == 1.5:
            return torch.where(support, safe.sqrt(), torch.zeros_like(p))
    return torch.where(support, safe.pow(2 - alpha), torch.zeros_like(p))


def along_simplex(p: Tensor, along: Tensor, alpha: Alpha) -> Tensor:
    """s∘(a − ⟨s, a⟩/Σs), s = p^{2−α} on the support: it sums to 0.  p, along (..., n) → (..., n).

    For α > 2 s grows without bound as p falls to 0. The entry with the largest s takes what the
    others leave: by itself it would be a difference of numbers that rounding makes, or overflow.
    """
    if not p.numel():
        return torch.zeros_like(p)
    if not _may_exceed_2(alpha):
        slope = slopes(p, alpha)
        pushed = slope * along
        total = slope.sum(-1, keepdim=True)
        total = torch.where(total == 0, torch.ones_like(total), total)  # masked rows
        return pushed - slope * (pushed.sum(-1, keepdim=True) / total)
    support, safe = on_support(p)
    # The largest p for α < 2, the smallest beyond.
    first = torch.where(support, (2 - alpha) * p.detach(), -torch.inf).argmax(-1, keepdim=True)
    share = torch.where(support, (safe / safe.detach().gather(-1, first)).pow(2 - alpha), 0.0)
    total = share.sum(-1, keepdim=True)
    mean = (share * along).sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total)  # masked
    others = support & (torch.arange(p.shape[-1], device=p.device) != first)
    slope = torch.where(others, torch.where(others, safe, torch.ones_like(p)).pow(2 - alpha), 0.0)
    moved = slope * (along - mean)
    return torch.where(others, moved, torch.where(support, -moved.sum(-1, keepdim=True), 0.0))


def _may_exceed_2(alpha: Alpha) -> bool:
    """Whether α does, or one of many may: their values are looked at where that costs nothing."""
    if not isinstance(alpha, Tensor):
        return alpha > 2
    return not runs_eagerly_on_cpu(alpha) or bool((alpha > 2).any())


def inner_product(p: Tensor, v: Tensor) -> Tensor:
    """Σ p v over the support (masked v = −inf has p = 0 and counts nothing): (..., 1)."""
    if runs_eagerly_on_cpu(p, v) and not torch.is_grad_enabled() and p.numel():
        n = p.shape[-1]
        p, rows = p.reshape(-1, n), v.reshape(-1, n)
        out = p.new_empty(len(p), 1)
        lowest = torch.finfo(p.dtype).min
        for block in blocks(*p.shape):
            # 0 · lowest is 0, where 0 · −inf would be NaN.
            product = rows[block].clamp(min=lowest).mul_(p[block])
            torch.sum(product, -1, keepdim=True, out=out[block])
        return out.reshape((*v.shape[:-1], 1))
    support = p > 0
    return (p * torch.where(support, v, torch.zeros_like(v))).sum(-1, keepdim=True)


def power_sum(p: Tensor, alpha: Alpha) -> Tensor:
    """Σ p^α over the last dimension: (..., 1)."""
    if not isinstance(alpha, Tensor):
        if alpha == 2:
            return p.square().sum(-1, keepdim=True)
        if alpha == 1.5:  # p^{3/2} without the square root of zeros, slow in vector libraries
            tiny = torch.finfo(p.dtype).tiny
            return (p * p * p.clamp(min=tiny).rsqrt()).sum(-1, keepdim=True)
    support, safe = on_support(p)
    return torch.where(support, safe.pow(alpha), p).sum(-1, keepdim=True)  # 0, or NaN


def alpha_rates(p: Tensor, alpha: Alpha) -> Tensor:
    """∂/∂α of exp_α(x) at fixed x, divided by dp/dx, as a function of p = exp_α(x).

    With L = log p and t = (α−1) L it is L² (e^t (1 − t) − 1)/t² (Correia et al. 2019, Prop. 1,
    rearranged so that α = 1 is not a 0/0: there it is −L²/2).
    """
    log = on_support(p)[1].log()
    return log.square() * _psi((alpha - 1) * log)


def tsallis_terms(p: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor]:
    """Σp (p^{α−1} − 1)/(α−1) and its derivative with respect to α, over the last dimension.

    The Tsallis entropy is H_α = −(first)/α. Each keeps the last dimension: (..., 1).
    """
    support, safe = on_support(p)
    log = safe.log()
    t = (alpha - 1) * log
    weight = torch.where(support, safe, torch.zeros_like(p)) * log
    first = (weight * _chi(t)).sum(-1, keepdim=True)
    second = (weight * log * _chi_slope(t)).sum(-1, keepdim=True)
    return first, second


def _series(t: Tensor, coefficients: list[float], exact: Tensor) -> Tensor:
    """The power series where |t| is small, the closed form elsewhere."""
    total = torch.full_like(t, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * t + coefficient
    return torch.where(t.abs() < _SMALL, total, exact)


_SMALL = 0.25  # the terms of each series are exact to float64 below this


def _away(t: Tensor) -> Tensor:
    """t with the small values replaced, so that the closed form never divides by zero."""
    return torch.where(t.abs() < _SMALL, torch.ones_like(t), t)


def _psi(t: Tensor) -> Tensor:
    """(e^t (1 − t) − 1)/t², −1/2 at 0."""
    far = _away(t)
    exact = (torch.expm1(far) - far * far.exp()) / far.square()
    return _series(t, [-(j + 1) / math.factorial(j + 2) for j in range(12)], exact)


def _chi(t: Tensor) -> Tensor:
    """(e^t − 1)/t, 1 at 0."""
    far = _away(t)
    return _series(t, [1 / math.factorial(j + 1) for j in range(12)], torch.expm1(far) / far)


def _lambda(t: Tensor) -> Tensor:
    """log(1 + t)/t, 1 at 0."""
    far = _away(t)
    return _series(t, [(-1.0) ** j / (j + 1) for j in range(26)], log1p(far) / far)


def _chi_slope(t: Tensor) -> Tensor:
    """d/dt of (e^t − 1)/t, 1/2 at 0."""
    far = _away(t)
    exact = (far * far.exp() - torch.expm1(far)) / far.square()
    return _series(t, [(j + 1) / math.factorial(j + 2) for j in range(12)], exact)
