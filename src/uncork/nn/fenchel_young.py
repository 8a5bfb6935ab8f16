"""The core every loss shares: ℓ(z; y) = Ω*(z) − z_y, whose gradient is p − e_y (Lemma 1).

`FenchelYoung` is that value per row with its derivatives. `reduce_loss` is everything a user of
torch.nn.functional.cross_entropy expects around it: shapes, class weights, ignore_index, label
smoothing, reduction.
"""

from __future__ import annotations

from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._rows import Alpha, check_floating, compute_dtype, output_dtype, runs_eagerly_on_cpu
from uncork.nn._torch import torch
from uncork.nn.families import Family
from uncork.nn.fused_losses import fused_loss, plus, residual
from uncork.nn.threshold import shifted

Tensor = torch.Tensor


class FenchelYoung(torch.autograd.Function):
    """(loss (...), p (..., C)) of logits z (..., C) against a target.

    target: class indices (..., 1) int64, with loss Ω*(z) − z_y; or a non-negative vector b (..., C)
    of any sum a, with loss a Ω*(z) − ⟨b, z⟩, the b-weighted sum of the losses of the classes.
    p is an output so that second derivatives pass through it; nothing else is kept of z.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        z: Tensor, target: Tensor, alpha: Alpha, tau: Alpha, family: Family
    ) -> tuple[Tensor, Tensor]:
        p = family.predict(z, alpha, tau)
        v = shifted(z)[0] if family.shift_invariant else z
        conjugate = family.conjugate(v, p, alpha, tau)
        if target.is_floating_point():
            loss = target.sum(-1, keepdim=True) * conjugate - _dot(target, v).unsqueeze(-1)
        else:
            loss = conjugate - v.gather(-1, target)
        return loss.squeeze(-1), p

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, target, alpha, tau, family = inputs
        extra = [value for value in (alpha, tau) if isinstance(value, Tensor)]
        dense = target.is_floating_point()
        ctx.save_for_backward(output[1], target, *extra)
        ctx.alpha = None if isinstance(alpha, Tensor) else alpha
        ctx.tau = None if isinstance(tau, Tensor) else tau
        ctx.family, ctx.dense = family, dense
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_p: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # p, target, then alpha and tau where they are tensors
        p, target = saved[0], saved[1]
        alpha = saved[2] if ctx.alpha is None else ctx.alpha
        tau = saved[-1] if ctx.tau is None else ctx.tau
        family = ctx.family
        dz = dalpha = dtau = None
        if grad is not None:
            grad = grad.unsqueeze(-1)  # (..., 1)
            mass = target.sum(-1, keepdim=True) if ctx.dense else None
            if ctx.needs_input_grad[0]:
                dz = residual(p, target, grad, mass)
            weight = grad if mass is None else grad * mass
            if ctx.needs_input_grad[2]:
                dalpha = weight * family.conjugate_alpha(p, alpha, tau)
            if ctx.needs_input_grad[3]:
                dtau = weight * family.conjugate_tau(p, alpha, tau)
        if grad_p is not None:
            if ctx.needs_input_grad[0]:
                dz = plus(dz, family.vjp(p, grad_p, alpha, tau))
            if ctx.needs_input_grad[2]:
                along = grad_p * family.alpha_direction(p, alpha, tau)
                dalpha = plus(dalpha, along.sum(-1, keepdim=True))
            if ctx.needs_input_grad[3]:
                along = grad_p * family.tau_direction(p, alpha, tau)
                dtau = plus(dtau, along.sum(-1, keepdim=True))
        dalpha = None if dalpha is None else dalpha.sum_to_size(alpha.shape)
        dtau = None if dtau is None else dtau.sum_to_size(tau.shape)
        return dz, None, dalpha, dtau, None


def _dot(weights: Tensor, v: Tensor) -> Tensor:
    """Σ w_c v_c, where a class of weight 0 counts nothing even if its logit is −inf."""
    return torch.where(weights == 0, torch.zeros_like(v), weights * v).sum(-1)


def reduce_loss(
    input: Tensor,
    target: Tensor,
    family: Family,
    alpha: Alpha,
    tau: Alpha,
    *,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    """Exactly cross_entropy's treatment of the arguments, with ℓ in place of −log softmax."""
    check_floating(input)
    _check(input, target, weight, reduction, label_smoothing)
    dtype = output_dtype(input, None)
    class_dim = 0 if input.dim() == 1 else 1
    if weight is None and label_smoothing == 0 and not target.is_floating_point():
        rows = input.movedim(class_dim, -1).reshape(-1, input.shape[class_dim])
        fused = family.fused(rows, alpha, tau)
        if fused is not None:
            loss = fused_loss(rows, target, family, alpha, tau, fused, reduction, ignore_index)
            return loss.to(dtype)
    wide = input.to(compute_dtype(dtype))
    z = wide.movedim(class_dim, -1)  # (..., C)
    alpha, tau = (_beside(value, z, class_dim) for value in (alpha, tau))
    if weight is not None:
        weight = weight.to(z.dtype)
    if target.is_floating_point():
        if ignore_index >= 0:
            raise UncorkError(
                f"ignore_index={ignore_index} is not supported for floating point target"
            )
        dense = target.to(z.dtype).movedim(class_dim, -1)
        loss = _dense_rows(z, dense, family, alpha, tau, weight, label_smoothing)
        count: Tensor | int | None = loss.numel() if reduction == "mean" else None
    else:
        loss, row_weight = _index_rows(
            z, target, family, alpha, tau, weight, ignore_index, label_smoothing
        )
        count = row_weight.sum() if reduction == "mean" else None
    if reduction == "none":
        return loss.to(dtype)
    total = loss.sum()
    return (total if count is None else total / count).to(dtype)


def _index_rows(
    z: Tensor,
    target: Tensor,
    family: Family,
    alpha: Alpha,
    tau: Alpha,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> tuple[Tensor, Tensor]:
    """Per-row losses, 0 where ignored, and the weights a mean divides by."""
    classes = z.shape[-1]
    target = target.long()
    counted = target != ignore_index
    safe = torch.where(counted, target, torch.zeros_like(target))
    if runs_eagerly_on_cpu(safe) and bool(((safe < 0) | (safe >= classes)).any()):
        worst = safe[(safe < 0) | (safe >= classes)].flatten()[0]
        raise IndexError(f"target {int(worst)} is out of bounds for {classes} classes")
    if z.numel() == 0:
        loss = conjugate = z.sum(-1)
    elif label_smoothing > 0:
        loss, conjugate = _loss_and_conjugate(z, safe, alpha, tau, family)
    else:
        loss, _ = FenchelYoung.apply(z, safe.unsqueeze(-1), alpha, tau, family)
    row_weight = torch.ones_like(loss) if weight is None else weight[safe]
    row_weight = torch.where(counted, row_weight, torch.zeros_like(row_weight))
    if label_smoothing > 0:
        # Every class c takes part with ε/C: ℓ_c = Ω* − z_c, summed with the class weights.
        v = z - shifted(z.detach())[1] if z.numel() else z
        if weight is None:
            spread = classes * conjugate - v.sum(-1)
        else:
            spread = weight.sum() * conjugate - _dot(weight, v)
        base = loss * (1 if weight is None else weight[safe])
        loss = (1 - label_smoothing) * base + label_smoothing / classes * spread
    elif weight is not None:
        loss = loss * weight[safe]
    return torch.where(counted, loss, torch.zeros_like(loss)), row_weight


def _loss_and_conjugate(
    z: Tensor, target: Tensor, alpha: Alpha, tau: Alpha, family: Family
) -> tuple[Tensor, Tensor]:
    """ℓ_y (...), and Ω* = ℓ_y + z_y of the logits less their maximum (...).

    Where z_y is −inf, ℓ_y is +inf and their sum nothing: Ω* is taken from the largest logit then.
    """
    v = z - shifted(z.detach())[1]
    at_target = v.gather(-1, target.unsqueeze(-1))
    masked = at_target.detach() == -torch.inf
    known = torch.where(masked, z.detach().argmax(-1, keepdim=True), target.unsqueeze(-1))
    loss, _ = FenchelYoung.apply(z, known, alpha, tau, family)
    conjugate = loss.unsqueeze(-1) + v.gather(-1, known)
    # A row masked entirely has neither: its loss is +inf.
    conjugate = torch.where(conjugate.detach().isnan() & masked, torch.inf, conjugate)
    loss = torch.where(masked, conjugate - at_target, loss.unsqueeze(-1))
    return loss.squeeze(-1), conjugate.squeeze(-1)


def _dense_rows(
    z: Tensor,
    target: Tensor,
    family: Family,
    alpha: Alpha,
    tau: Alpha,
    weight: Tensor | None,
    label_smoothing: float,
) -> Tensor:
    if label_smoothing > 0:
        target = target * (1 - label_smoothing) + label_smoothing / z.shape[-1]
    if weight is not None:
        target = target * weight
    if z.numel() == 0:
        return (z * target).sum(-1)
    loss: Tensor
    if not target.requires_grad:
        loss, _ = FenchelYoung.apply(z, target, alpha, tau, family)
        return loss
    # A target that is itself learned: Σ b_c ℓ_c with every ℓ_c = ℓ_top + z_top − z_c written out.
    top = z.detach().argmax(-1, keepdim=True)
    loss, _ = FenchelYoung.apply(z, top, alpha, tau, family)
    v = z - shifted(z.detach())[1]
    # Not `_dot`: a class of weight 0 has a gradient, its ℓ_c, unless it is masked as well.
    masked = (v.detach() == -torch.inf) & (target.detach() == 0)
    along = (target * torch.where(masked, torch.zeros_like(v), v)).sum(-1)
    return target.sum(-1) * (loss + v.gather(-1, top).squeeze(-1)) - along


def _beside(value: Alpha, z: Tensor, class_dim: int) -> Alpha:
    """A parameter tensor (scalar, or the shape of an index target) as (..., 1) beside z."""
    if not isinstance(value, Tensor):
        return value
    value = value.to(z.dtype)
    if value.dim() == 0:
        return value.reshape([1] * z.dim())
    try:
        value.expand(z.shape[:-1])
    except RuntimeError:
        raise UncorkError(
            f"a parameter of shape {tuple(value.shape)} does not broadcast to one value per row "
            f"{tuple(z.shape[:-1])}"
        ) from None
    return value.reshape([1] * (z.dim() - 1 - value.dim()) + list(value.shape)).unsqueeze(-1)


def _check(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, label_smoothing: float
) -> None:
    if reduction not in ("none", "mean", "sum"):
        raise UncorkError(f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}")
    if not 0.0 <= label_smoothing <= 1.0:
        raise UncorkError(f"label_smoothing must be between 0 and 1, got {label_smoothing!r}")
    if input.dim() == 0:
        raise UncorkError("input must have a class dimension: (C), (N, C) or (N, C, d1, ...)")
    classes = input.shape[0] if input.dim() == 1 else input.shape[1]
    rows = () if input.dim() == 1 else (input.shape[0], *input.shape[2:])
    if target.is_floating_point():
        if target.shape != input.shape:
            raise UncorkError(
                f"probabilities as target must have the input's shape {tuple(input.shape)}, "
                f"got {tuple(target.shape)}"
            )
    elif tuple(target.shape) != rows:
        raise UncorkError(
            f"class indices as target must have shape {rows} for input {tuple(input.shape)}, "
            f"got {tuple(target.shape)}"
        )
    for name, tensor in (("target", target), ("weight", weight)):
        if tensor is not None and tensor.device != input.device:
            raise UncorkError(
                f"{name} is on {tensor.device} and input on {input.device}: move them to one device"
            )
    if weight is not None and tuple(weight.shape) != (classes,):
        raise UncorkError(
            f"weight must have one value per class, shape ({classes},), got {tuple(weight.shape)}"
        )
