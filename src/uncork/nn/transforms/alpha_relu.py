"""α-ReLU: p = [(α−1) z − τ]₊^{1/(α−1)} with τ fixed. No search, no sum, not normalised."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, overload

from uncork.nn import kernels
from uncork.nn._autograd import apply, forward_mode
from uncork.nn._rows import (
    Alpha,
    blocks,
    check_floating,
    check_parameter,
    compute_dtype,
    output_dtype,
    rows_back,
    rows_last,
    runs_eagerly_on_cpu,
)
from uncork.nn._threads import over_rows
from uncork.nn._torch import torch
from uncork.nn.transforms.deformed import on_support
from uncork.nn.transforms.entmax import (
    LogTopK,
    SparseOutput,
    all_of,
    best_of,
    check_topk,
    decodes_by_kernels,
    topk_of,
)
from uncork.nn.transforms.grouped import GROUP, are_few, classes_at, gather, scatter, split
from uncork.nn.transforms.pages import empty_like
from uncork.nn.transforms.sharded import is_sharded, of_shards, refuse_support

Tensor = torch.Tensor


@forward_mode
class AlphaReLU(torch.autograd.Function):
    """z of any shape, alpha > 1 and tau floats or tensors that broadcast against z → p like z."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
        if kernels.launches(z) and alpha_relu_kernel_takes(alpha, tau):
            from uncork.nn.kernels.alpha_relu import alpha_relu_forward

            return alpha_relu_forward(z, float(alpha), tau, z.dtype)
        known = _numbers(z, alpha, tau)
        if known is not None:
            return _forward_blocks(z, *known)
        return _power((z * (alpha - 1) - tau).relu(), alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        z, alpha, tau = inputs
        tensors = [value for value in (alpha, tau) if isinstance(value, Tensor)]
        ctx.save_for_backward(z, *tensors)
        ctx.save_for_forward(z, *tensors)
        ctx.alpha = None if isinstance(alpha, Tensor) else alpha
        ctx.tau = None if isinstance(tau, Tensor) else tau

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, alpha, tau = _saved(ctx)
        dz = dalpha = dtau = None
        if ctx.needs_input_grad[0]:
            dz = _vjp(z, grad, alpha, tau)
        if any(ctx.needs_input_grad[1:]):
            z, grad = z.to(compute_dtype(z.dtype)), grad.to(compute_dtype(grad.dtype))
        if ctx.needs_input_grad[1]:
            dalpha = (grad * _alpha_slope(z, alpha, tau)).sum_to_size(alpha.shape)
        if ctx.needs_input_grad[2]:
            dtau = (-grad * _slope(z, alpha, tau) / (alpha - 1)).sum_to_size(tau.shape)
        return dz, dalpha, dtau

    @staticmethod
    def jvp(ctx: Any, dz: Tensor | None, dalpha: Tensor | None, dtau: Tensor | None) -> Tensor:
        z, alpha, tau = _saved(ctx)
        slope = _slope(z.to(compute_dtype(z.dtype)), alpha, tau)
        moved = torch.zeros_like(slope) if dz is None else slope * dz
        if dalpha is not None:
            moved = moved + dalpha * _alpha_slope(z.to(slope.dtype), alpha, tau)
        if dtau is not None:
            moved = moved - dtau * slope / (alpha - 1)
        return moved.to(z.dtype)


def alpha_relu_kernel_takes(alpha: Alpha, tau: Alpha) -> bool:
    """A float α, and one τ for all: what the kernel is written for."""
    if isinstance(alpha, Tensor):
        return False
    return not isinstance(tau, Tensor) or (tau.numel() == 1 and kernels.launches(tau))


def _saved(ctx: Any) -> tuple[Tensor, Any, Any]:
    saved = ctx.saved_tensors  # z, then alpha and tau where they are tensors
    alpha = saved[1] if ctx.alpha is None else ctx.alpha
    tau = saved[-1] if ctx.tau is None else ctx.tau
    return saved[0], alpha, tau


def _numbers(z: Tensor, alpha: Alpha, tau: Alpha) -> tuple[float, float] | None:
    """(α, τ) as floats where they are one number each and reading them makes nobody wait."""
    values = [value for value in (alpha, tau) if isinstance(value, Tensor)]
    if not runs_eagerly_on_cpu(z, *values) or any(value.numel() != 1 for value in values):
        return None
    if any(value.dim() > z.dim() for value in values):
        return None
    return float(alpha), float(tau)


def _power(w: Tensor, alpha: Alpha) -> Tensor:
    """w^{1/(α−1)} for w ≥ 0."""
    if not isinstance(alpha, Tensor):
        if alpha == 2:
            return w
        if alpha == 1.5:
            return w.square()
    return w.pow(1 / (alpha - 1))


def _base(z: Tensor, alpha: Alpha, tau: Alpha) -> tuple[Tensor, Tensor]:
    """Where w = (α−1) z − τ is positive, and w there (1 elsewhere, so that powers are safe)."""
    return on_support((z * (alpha - 1) - tau).relu())


def _slope(z: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
    """dp/dz = w^{(2−α)/(α−1)} on the support."""
    support, w = _base(z, alpha, tau)
    return torch.where(support, w.pow((2 - alpha) / (alpha - 1)), torch.zeros_like(w))


def _alpha_slope(z: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
    """∂p/∂α at fixed z and τ: (z p^{2−α} − p log p)/(α−1)."""
    support, w = _base(z, alpha, tau)
    p = w.pow(1 / (alpha - 1))
    finite = torch.where(support, z, torch.zeros_like(z))  # no 0 · −inf from masked logits
    along = (finite * (p / w) - p * w.log() / (alpha - 1)) / (alpha - 1)
    return torch.where(support, along, torch.zeros_like(w))


def _forward_blocks(z: Tensor, alpha: float, tau: float) -> Tensor:
    """The same in place, block by block in cache: one trip through memory instead of four."""

    def power(block: Tensor) -> None:
        if alpha == 1.5:
            block.square_()
        elif alpha != 2:
            block.pow_(1 / (alpha - 1))

    return _of_base(power, z, alpha, tau)


def _of_base(
    change: Callable[..., None], z: Tensor, alpha: float, tau: float, *others: Tensor
) -> Tensor:
    """w = [(α−1) z − τ]₊, changed in place by `change(block, *blocks of others)`."""
    out = empty_like(z)
    source = _as_rows(z)
    offset = torch.tensor(-tau, dtype=z.dtype)
    views = [tensor.reshape(source.shape) for tensor in (out, z, *others)]

    def some(rows: slice) -> None:
        parts = [view[rows] for view in views]
        for part in blocks(*parts[0].shape):
            block, piece, *rest = (view[part] for view in parts)
            torch.add(offset, piece, alpha=alpha - 1, out=block).relu_()
            change(block, *rest)

    over_rows(some, *source.shape)
    return out


def _vjp(z: Tensor, grad: Tensor, alpha: Alpha, tau: Alpha) -> Tensor:
    """grad · dp/dz, in blocks where that is the derivative of nothing."""
    wide = compute_dtype(z.dtype)
    if (
        not torch.is_grad_enabled()
        and kernels.launches(z, grad)
        and alpha_relu_kernel_takes(alpha, tau)
    ):
        from uncork.nn.kernels.alpha_relu import alpha_relu_backward

        return alpha_relu_backward(z, grad, float(alpha), tau)
    if z.dtype != wide:
        return (_slope(z.to(wide), alpha, tau) * grad).to(z.dtype)
    known = None if torch.is_grad_enabled() else _numbers(z, alpha, tau)
    if known is None or not runs_eagerly_on_cpu(grad):
        return _slope(z, alpha, tau) * grad
    alpha, tau = known

    def pull(block: Tensor, pulled: Tensor) -> None:
        if alpha == 2:
            block.sign_()
        elif alpha < 2 and alpha != 1.5:
            block.pow_((2 - alpha) / (alpha - 1))
        elif alpha > 2:
            support, w = on_support(block)
            block.copy_(torch.where(support, w.pow((2 - alpha) / (alpha - 1)), 0.0))
        block.mul_(pulled)

    return _of_base(pull, z, alpha, tau, grad)


def _as_rows(z: Tensor) -> Tensor:
    """(R, n), also for a scalar and for an empty tensor."""
    if z.numel() == 0:
        return z.reshape(0, 1)
    return z.reshape(1, -1) if z.dim() == 0 else z.reshape(-1, z.shape[-1])


@overload
def alpha_relu(
    input: Tensor,
    alpha: Alpha = ...,
    tau: Alpha = ...,
    *,
    dim: int = ...,
    dtype: torch.dtype | None = ...,
    return_support: Literal[False] = ...,
) -> Tensor: ...
@overload
def alpha_relu(
    input: Tensor,
    alpha: Alpha = ...,
    tau: Alpha = ...,
    *,
    dim: int = ...,
    dtype: torch.dtype | None = ...,
    return_support: Literal[True],
) -> SparseOutput: ...
def alpha_relu(
    input: Tensor,
    alpha: Alpha = 1.5,
    tau: Alpha = 0.0,
    *,
    dim: int = -1,
    dtype: torch.dtype | None = None,
    return_support: bool = False,
) -> Tensor | SparseOutput:
    """p = [(α−1) z − τ]₊^{1/(α−1)} with τ given: α-entmax without the search (Tezekbayev 2022).

    As fast as ReLU; not normalised, though training with :func:`alpha_relu_loss` drives it
    towards a distribution. Set τ with :func:`uncork.nn.tau_from_data` or
    :func:`uncork.nn.tau_from_shape`. To decode, use :func:`alpha_relu_log_scores`.

    Args:
        input: logits, any shape; every element is treated alike.
        alpha: > 1, a float or a tensor that broadcasts against `input` (receives a gradient).
        tau: a float or a tensor that broadcasts against `input` (receives a gradient).
        dim: only for `return_support`: the dimension over which the support is counted.
        dtype, return_support: as for :func:`uncork.nn.functional.sparsemax`.
    """
    check_floating(input)
    alpha = check_parameter(alpha, above=1.0)
    if is_sharded(input):
        if return_support:
            refuse_support("alpha_relu")
        sharded: Tensor = of_shards(
            lambda local, alpha, tau: alpha_relu(local, alpha, tau, dtype=dtype),
            input, (alpha, tau), dim, dtype, elementwise=True,
        )  # fmt: skip
        return sharded
    dtype = output_dtype(input, dtype)
    if dtype == input.dtype and kernels.launches(input) and alpha_relu_kernel_takes(alpha, tau):
        output: Tensor = apply(AlphaReLU, input, alpha, tau)  # widened as it is read
    else:
        z = rows_last(input, -1, dtype)
        p: Tensor = apply(AlphaReLU, z, _like(alpha, z), _like(tau, z))
        output = rows_back(p, input, -1, dtype)
    if not return_support:
        return output
    given = tau if isinstance(tau, Tensor) else torch.full((), float(tau), device=input.device)
    size = (output > 0).sum(dim, keepdim=True)
    return SparseOutput(output, given.to(dtype), size)


def _like(value: Alpha, z: Tensor) -> Alpha:
    return value.to(z.dtype) if isinstance(value, Tensor) else float(value)


class _NotOnCPU(Exception):
    """A row has no support, or its sum leaves the range of its dtype: the general way takes it."""


def _log_scores_on_cpu(z: Tensor, alpha: float, tau: float) -> Tensor:
    """log(p / Σp) of rows (R, n) in few passes. Raises `_NotOnCPU`."""
    out = empty_like(z)
    groups = z.shape[1] // GROUP

    def some(rows: slice) -> None:
        for part in blocks(*z[rows].shape):
            block, made = z[rows][part], out[rows][part]
            tops, kept = _kept(block, alpha, tau)
            if groups and bool(are_few(kept, groups).all()):
                index = tops.topk(max(1, int(kept.max())), sorted=False).indices
                narrow = gather(block, index)
                made.fill_(-torch.inf)
                scatter(made, index, _log_share(narrow, alpha, tau, narrow))
            else:
                _log_share(block, alpha, tau, made)

    over_rows(some, *z.shape)
    return out


def _topk_on_cpu(z: Tensor, k: int, alpha: float, tau: float) -> tuple[Tensor, Tensor]:
    """The k largest of the same and their classes: (R, k) twice."""
    values = z.new_empty(len(z), k)
    classes = torch.empty(len(z), k, dtype=torch.int64)
    groups = z.shape[1] // GROUP

    def some(rows: slice) -> None:
        for part in blocks(*z[rows].shape):
            block = z[rows][part]
            tops, kept = _kept(block, alpha, tau)
            if groups and bool(are_few(kept, groups).all()):
                most = max(int(kept.max()), min(k, groups))  # k groups hold the k largest
                index = tops.topk(most, sorted=False).indices
                narrow = gather(block, index)
                place = narrow.topk(k).indices
                classes[rows][part] = classes_at(place, index, groups)
                values[rows][part] = _log_share(narrow, alpha, tau, narrow).gather(1, place)
            else:
                place = block.topk(k).indices
                classes[rows][part] = place
                made = _log_share(block, alpha, tau, torch.empty_like(block))
                values[rows][part] = made.gather(1, place)

    over_rows(some, *z.shape)
    return values, classes


def _kept(block: Tensor, alpha: float, tau: float) -> tuple[Tensor, Tensor]:
    """The groups' maxima (r, groups), and how many of them have support: rounding keeps order."""
    tops = split(block)[0].amax(-1)
    base = torch.add(torch.tensor(-tau, dtype=block.dtype), tops, alpha=alpha - 1)
    return tops, (base.relu_() != 0).sum(1)


def _log_share(z: Tensor, alpha: float, tau: float, out: Tensor) -> Tensor:
    """log(p / Σp) of rows (r, n) into `out`, which may be z itself."""
    tiny = torch.finfo(z.dtype).tiny
    power = 1 / (alpha - 1)
    w = torch.add(torch.tensor(-tau, dtype=z.dtype), z, alpha=alpha - 1, out=out)
    w.clamp_(min=tiny)  # the vector library's logarithm is many times slower where it meets zeros
    scale: Tensor | None = None
    if alpha == 1.5:
        norm = torch.linalg.vector_norm(w, dim=-1, keepdim=True)
        total = norm.log().mul_(2)
    elif alpha == 2:
        norm = w.sum(-1, keepdim=True)
        total = norm.log()
    else:
        norm = scale = w.amax(-1, keepdim=True)
        total = (w / scale).pow_(power).sum(-1, keepdim=True).log_().add_(scale.log(), alpha=power)
    # Far from where squares end, on either side; NaN is outside too.
    if not bool(((norm > 1e-12) & (norm < 1e15)).all()):
        raise _NotOnCPU
    # Only what was no larger than `tiny` has this logarithm.
    lowest = math.log(tiny) * (1 - 1e-6)
    torch.nn.functional.threshold(w.log_(), lowest, -torch.inf, inplace=True)
    if power != 1:
        w.mul_(power)
    return w.sub_(total)


def alpha_relu_log_scores(
    input: Tensor,
    alpha: Alpha = 1.5,
    tau: Alpha = 0.0,
    dim: int = -1,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """log(p / Σp) of α-ReLU: what a decoder should sample from, or add up in a beam.

    α-ReLU is not normalised, so log p of two steps are not comparable: each is divided by its sum
    first. Greedy decoding needs no score (the order is that of the logits). A row with no support
    at all, where α-ReLU says nothing, puts everything on its largest logit.
    """
    check_floating(input)
    alpha = check_parameter(alpha, above=1.0)
    if is_sharded(input):
        sharded: Tensor = of_shards(
            lambda local, alpha, tau: alpha_relu_log_scores(local, alpha, tau, dim, dtype=dtype),
            input, (alpha, tau), dim, dtype,
        )  # fmt: skip
        return sharded
    dtype = output_dtype(input, dtype)
    if not isinstance(tau, Tensor) and decodes_by_kernels(input, alpha):
        from uncork.nn.kernels.best import log_alpha_relu as by_kernel

        number, threshold, kind = float(alpha), tau, dtype
        return all_of(input, dim, lambda rows: by_kernel(rows, number, threshold, kind))
    wide = input.to(torch.float32) if input.dtype in (torch.float16, torch.bfloat16) else input
    if wide.numel() == 0:
        return wide.to(dtype)
    numbers = _decodes_on_cpu(wide, alpha, tau)
    if numbers is not None:
        rows = rows_last(wide, dim, wide.dtype)
        try:
            scores = _log_scores_on_cpu(rows.reshape(-1, rows.shape[-1]), *numbers)
            return rows_back(scores.reshape(rows.shape), wide, dim, dtype)
        except _NotOnCPU:
            pass
    # In logarithms: near α = 1 the power 1/(α−1) takes p out of float32's range either way.
    finite = torch.where(wide == -torch.inf, torch.zeros_like(wide), wide)  # no 0 · −inf
    alpha, tau = _like(alpha, wide), _like(tau, wide)
    base = finite * (alpha - 1) - tau
    base = torch.where(wide == -torch.inf, torch.zeros_like(base), base.relu())
    support, safe = on_support(base)
    log_p = torch.where(support, safe.log() / (alpha - 1), base.detach() - torch.inf)  # or NaN
    empty = ~(support | base.isnan()).any(dim, keepdim=True)
    total = torch.where(empty, torch.zeros_like(log_p), log_p).logsumexp(dim, keepdim=True)
    total = total.masked_fill(total == torch.inf, torch.nan)  # of +inf: all of the row is NaN
    top = (wide == wide.amax(dim, keepdim=True)) & (wide > -torch.inf)
    alone = (top.to(wide.dtype) / top.sum(dim, keepdim=True).clamp(min=1)).log()
    return torch.where(empty, alone, log_p - total).to(dtype)


def log_alpha_relu(
    input: Tensor,
    alpha: Alpha = 1.5,
    tau: Alpha = 0.0,
    dim: int = -1,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """:func:`alpha_relu_log_scores`, under the name that goes with :func:`log_entmax`."""
    return alpha_relu_log_scores(input, alpha, tau, dim, dtype=dtype)


def log_alpha_relu_topk(
    input: Tensor,
    k: int,
    alpha: Alpha = 1.5,
    tau: Alpha = 0.0,
    dim: int = -1,
    *,
    dtype: torch.dtype | None = None,
) -> LogTopK:
    """The k best classes of :func:`log_alpha_relu`, as :func:`log_entmax_topk` has those of
    α-entmax."""
    check_topk(input, k, dim)
    alpha = check_parameter(alpha, above=1.0)
    if not isinstance(tau, Tensor) and decodes_by_kernels(input, alpha, k):
        from uncork.nn.kernels.best import alpha_relu_best

        number, kind = float(alpha), output_dtype(input, dtype)
        return best_of(input, dim, lambda rows: alpha_relu_best(rows, number, tau, k, kind))
    wide = input.to(torch.float32) if input.dtype in (torch.float16, torch.bfloat16) else input
    numbers = _decodes_on_cpu(wide, alpha, tau) if wide.numel() else None
    if numbers is not None:
        rows = rows_last(wide, dim, wide.dtype)
        dtype = output_dtype(input, dtype)
        try:
            made = _topk_on_cpu(rows.reshape(-1, rows.shape[-1]), k, *numbers)
        except _NotOnCPU:
            pass
        else:
            values, classes = (one.reshape((*rows.shape[:-1], k)) for one in made)
            return LogTopK(
                rows_back(values, input, dim, dtype), rows_back(classes, input, dim, torch.int64)
            )
    return topk_of(input, log_alpha_relu(input, alpha, tau, dim, dtype=dtype), k, dim)


def _decodes_on_cpu(z: Tensor, alpha: Alpha, tau: Alpha) -> tuple[float, float] | None:
    """α and τ where the fast way of decoding is open."""
    if z.requires_grad or any(isinstance(value, Tensor) and value.requires_grad
                              for value in (alpha, tau)):  # fmt: skip
        return None
    return _numbers(z, alpha, tau)
