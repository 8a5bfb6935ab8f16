"""Linear losses a block of rows at a time, in plain torch: the kernels' twin, and the CPU's way.

Only one block's logits exist at any time. The loss's own family makes p and Ω* of them (so nothing
is written twice), p − target takes their place, and goes through the two products of the gradients.
"""

from __future__ import annotations

from uncork.nn._rows import Alpha
from uncork.nn._torch import torch
from uncork.nn.linear.problem import (
    LinearOptions,
    LinearResult,
    LinearTensors,
    RowTargets,
    Wanted,
    as_tensor,
    row_targets,
)
from uncork.nn.losses.fenchel_young import reduce_loss
from uncork.nn.losses.specification import Reduction
from uncork.nn.transforms.threshold import shifted

Tensor = torch.Tensor

BLOCK_ELEMENTS = 1 << 22  # logits in memory at a time: 16 MiB in float32


def loss_of_logits(
    z: Tensor, target: Tensor, class_weight: Tensor | None, tau: Alpha, options: LinearOptions
) -> Tensor:
    """Losses by row of raw logits (N, C), softcap included."""
    if options.softcap is not None:
        z = options.softcap * torch.tanh(z / options.softcap)
    how = Reduction(class_weight, options.ignore_index, "none", options.label_smoothing)
    return reduce_loss(z, target, options.family, options.parameters(tau), how)


def compute(
    tensors: LinearTensors, upstream: Tensor | None, options: LinearOptions, wanted: Wanted
) -> LinearResult:
    """Losses by row, and the gradients wanted; upstream (N): dL/d(loss of a row)."""
    input, weight, bias, tau, target, class_weight = tensors
    classes = weight.shape[0]
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    keep = weight.dtype if options.float32_accumulation is False else wide
    targets = row_targets(target, class_weight, classes, options, wide)
    if input.device.type == "cpu" and bool(
        ((targets.classes < 0) | (targets.classes >= classes)).any()
    ):
        worst = target[(targets.classes < 0) | (targets.classes >= classes)][0]
        raise IndexError(f"target {int(worst)} is out of bounds for {classes} classes")
    level = as_tensor(tau, wide, input.device)
    losses = torch.zeros(len(input), dtype=wide, device=input.device)
    d_input = torch.empty_like(input) if wanted.input else None
    d_weight = torch.zeros_like(weight, dtype=keep) if wanted.weight else None
    d_bias = torch.zeros(classes, dtype=wide, device=input.device) if wanted.bias else None
    d_tau = torch.zeros_like(level) if wanted.tau else None
    step = max(1, BLOCK_ELEMENTS // max(1, classes))
    for start in range(0, len(input), step):
        rows = slice(start, start + step)
        z = torch.nn.functional.linear(input[rows], weight).to(wide)
        if bias is not None:
            z = z + bias.to(wide)
        losses[rows], r, slope = _block(z, targets.of(rows), class_weight, level, options)
        if upstream is None or not wanted.any:
            continue
        # Of no rows that count the mean's share is infinite: what is ignored stays 0 all the same.
        above = torch.where(targets.counted[rows], upstream[rows].to(wide), 0.0).unsqueeze(-1)
        if d_tau is not None:
            d_tau += (above * slope).sum()
        r = above * r
        if d_bias is not None:
            d_bias += r.sum(0)
        r = r.to(weight.dtype)
        if d_input is not None:
            torch.mm(r, weight, out=d_input[rows])
        if d_weight is not None:
            if keep == weight.dtype:
                d_weight.addmm_(r.t(), input[rows])
            else:
                d_weight += torch.mm(r.t(), input[rows])
    return LinearResult(
        losses,
        d_input,
        None if d_weight is None else d_weight.to(weight.dtype),
        None if d_bias is None or bias is None else d_bias.to(bias.dtype),
        None if d_tau is None or not isinstance(tau, Tensor) else d_tau.to(tau.dtype),
    )


def _block(
    z: Tensor,
    targets: RowTargets,
    class_weight: Tensor | None,
    tau: Tensor,
    options: LinearOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses (R) of logits z (R, C), their derivatives by z (R, C) and by τ (R, 1)."""
    if options.softcap is not None:
        z = options.softcap * torch.tanh(z / options.softcap)
    family, parameters = options.family, options.parameters(tau)
    p = family.predict(z, parameters)
    v = shifted(z)[0] if family.shift_invariant else z
    conjugate = family.conjugate(v, p, parameters).squeeze(-1)
    index, hit, mass = targets.classes.unsqueeze(-1), targets.hit, targets.mass
    at_target = v.gather(-1, index).squeeze(-1)
    # Of a row that is all −inf softmax's conjugate is infinite: what has no share in it stays out.
    spare = mass - hit
    loss = hit * (conjugate - at_target) + torch.where(spare == 0, 0.0, spare * conjugate)
    r = mass.unsqueeze(-1) * p
    if targets.smooth:
        share = torch.ones(()) if class_weight is None else class_weight
        share = share.to(z)
        spread = torch.where(share == 0, torch.zeros_like(v), share * v).sum(-1)
        loss = loss - targets.smooth * spread
        r = r - targets.smooth * targets.counted.to(z.dtype).unsqueeze(-1) * share
    r = r.scatter_add(-1, index, -hit.unsqueeze(-1))
    if options.softcap is not None:
        r = r * (1 - (z / options.softcap).square())
    loss = torch.where(targets.counted, loss, torch.zeros_like(loss))
    if not options.fixed:
        return loss, r, torch.zeros_like(mass).unsqueeze(-1)
    return loss, r, mass.unsqueeze(-1) * family.conjugate_slope(len(parameters) - 1, p, parameters)
