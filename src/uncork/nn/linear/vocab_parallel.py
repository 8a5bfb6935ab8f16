"""Linear losses with the vocabulary shared out among processes: each holds some rows of the weight.

    loss = vocab_parallel_loss("alpha_relu", hidden, weight_of_this_rank, target, tau=0.3)

Hidden states and targets are the same everywhere, and so is the loss. Every process makes its own
weight's gradient; the hidden states' is summed over all. Logits are made for a block of rows at a
time. What else is exchanged: for α-ReLU four sums a row; for softmax its largest logit and sum as
well; for α-entmax two sums a row for every step of its search, of which few are left after each
process has solved its own part.
"""

from __future__ import annotations

from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.linear.autograd import linear_loss
from uncork.nn.linear.problem import (
    LinearOptions,
    LinearResult,
    LinearTensors,
    RowTargets,
    Shard,
    Wanted,
    as_tensor,
    check_classes,
    logits,
    row_targets,
    shard_of,
)
from uncork.nn.losses.specification import LinearArguments, Reduction, loss_named
from uncork.nn.transforms.deformed import exp_alpha
from uncork.nn.transforms.together import Together

Tensor = torch.Tensor

BLOCK_ELEMENTS = 1 << 24  # logits of this process in memory at a time


@torch.compiler.disable  # the exchanges are not traced: torch.compile calls this as it is
def vocab_parallel_loss(
    name: str,
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 1.5,
    tau: float | Tensor = 0.0,
    group: Any = None,
    first_class: int | None = None,
    classes: int | None = None,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: bool = False,
    return_predictions: bool = False,
) -> Any:
    """A linear loss whose weight is sharded over a process group.

    Args:
        name: "softmax", "sparsemax", "entmax", "alpha_relu", or a loss of that form.
        input: hidden states (..., d), the same on every process.
        linear_weight: (classes of this process, d); `linear_bias` likewise.
        target: class indices among all classes.
        alpha, tau: for "entmax" and "alpha_relu".
        group: a torch.distributed process group; all processes by default.
        first_class, classes: the first class of this process and how many there are in all. Asked
            of the others at every call if neither is given.
        weight: one value for each of all classes.
        The others are as for :func:`uncork.nn.functional.linear_entmax_loss`.

    Returns:
        The loss; with `return_lse` or `return_predictions` a `LinearLossResult`, which has it.
    """
    loss = loss_named(name)
    parameters = loss.parameters_from({"alpha": alpha, "tau": tau}, linear=True)
    if loss.family.exponent(parameters) is None:
        raise UncorkError(f"{name}: this loss cannot be shared out, as those of entmax's form can")
    shard = shard_of(linear_weight, "linear_weight", first_class, classes, group)
    linear = LinearArguments(
        linear_bias, softcap, input_grad, float32_accumulation, z_loss, token_weight, return_lse,
        return_predictions,
    )  # fmt: skip
    made = linear_loss(
        loss, parameters, input, linear_weight, target,
        Reduction(weight, ignore_index, reduction, label_smoothing), linear, shard,
    )  # fmt: skip
    return made if return_lse or return_predictions else made.loss


def compute(
    tensors: LinearTensors,
    upstream: Tensor | None,
    options: LinearOptions,
    wanted: Wanted,
    extra: Tensor | None = None,
) -> LinearResult:
    """As `blocks.compute`, for this process's share of the classes."""
    input, weight, bias, tau, target, class_weight, _ = tensors
    shard = options.shard
    assert shard is not None
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    targets = row_targets(target, class_weight, shard.classes, options, wide)
    check_classes(targets.classes, shard.classes)
    share = None
    if class_weight is not None:
        share = class_weight[shard.first : shard.first + len(weight)].to(wide)
    level = as_tensor(tau, wide, input.device)
    # Hidden states' gradients are summed over processes, so they are kept wide until then.
    d_input = torch.zeros_like(input, dtype=wide) if wanted.input else None
    keep = weight.dtype if options.float32_accumulation is False else wide
    d_weight = torch.zeros_like(weight, dtype=keep) if wanted.weight else None
    d_bias = torch.zeros(len(weight), dtype=wide, device=input.device) if wanted.bias else None
    d_tau = torch.zeros_like(level) if wanted.tau else None
    losses = torch.zeros(len(input), dtype=wide, device=input.device)
    lse = torch.zeros_like(losses) if options.lse else None
    predicted = torch.zeros_like(target) if options.predictions else None
    # Everybody must take the same blocks, whatever its own share.
    step = max(1, BLOCK_ELEMENTS // shard.classes)
    for start in range(0, len(input), step):
        rows = slice(start, start + step)
        z = logits(input[rows], weight, bias)
        block = _Block(z, targets.of(rows), share, level, options, shard)
        losses[rows] = block.losses
        if lse is not None:
            lse[rows] = block.conjugate
        if predicted is not None:
            predicted[rows] = block.predicted(block.raw)
        if upstream is None or not wanted.any:
            continue
        beside = None if extra is None else extra[rows].to(wide)
        r, slope = block.residual(upstream[rows].to(wide), beside)
        if d_tau is not None:
            d_tau += slope
        if d_bias is not None:
            d_bias += r.sum(0)
        r = r.to(weight.dtype)
        if d_input is not None:
            d_input[rows] = torch.mm(r, weight).to(wide)
        if d_weight is not None:
            d_weight += torch.mm(r.t(), input[rows]).to(keep)
    if d_input is not None:
        torch.distributed.all_reduce(d_input, group=shard.group)
    return LinearResult(
        losses,
        None if d_input is None else d_input.to(input.dtype),
        None if d_weight is None else d_weight.to(weight.dtype),
        None if d_bias is None or bias is None else d_bias.to(bias.dtype),
        None if d_tau is None or not isinstance(tau, Tensor) else d_tau.to(tau.dtype),
        lse=lse,
        predicted=predicted,
    )


class _Block(Together):
    """Losses and Ω* of a block of rows (R), and p − target of this process's classes (R, C of
    it)."""

    def __init__(
        self,
        z: Tensor,
        targets: RowTargets,
        share: Tensor | None,
        tau: Tensor,
        options: LinearOptions,
        shard: Shard,
    ) -> None:
        super().__init__(shard.group, shard.first, shard.classes)
        alpha, cap = options.alpha, options.softcap
        self.raw = z
        if cap is not None:
            z = cap * torch.tanh(z / cap)
        if options.fixed:
            top = torch.zeros_like(z[:, :1])
        else:
            top = self.top(z)
        if options.fixed or alpha <= 2:
            if options.fixed:
                s = ((tau + 1) / (alpha - 1)).expand(top.shape)
            else:
                s = self._shift(z, top, alpha, shard.classes)
            x = (z - top) - s
            p, base = exp_alpha(x, alpha), 1 + (alpha - 1) * x
        else:
            s, base, p = self._steep(z - top, alpha, shard.classes)
        index = targets.classes - shard.first
        mine = (index >= 0) & (index < z.shape[1])
        index = torch.where(mine, index, torch.zeros_like(index)).unsqueeze(-1)
        v_target = (z - top).gather(-1, index).squeeze(-1)
        v_target = torch.where(mine, v_target, torch.zeros_like(v_target))
        power = torch.where(p > 0, p * base, p)
        spread = torch.zeros_like(v_target)
        weights = torch.ones((), dtype=z.dtype, device=z.device) if share is None else share
        if targets.smooth:
            v = z - top
            spread = torch.where(weights == 0, torch.zeros_like(v), weights * v).sum(-1)
        sums = torch.stack([power.sum(-1), p.sum(-1), v_target, spread])
        power_sum, total, v_target, spread = self.reduced(sums, "SUM")
        # Ω*(z) − top = s + (Σp^α − 1)/α
        value = s.squeeze(-1) + (power_sum - 1) / alpha
        if not options.fixed:
            value = torch.maximum(value, v_target)
        mass, hit = targets.mass, targets.hit
        losses = hit * (value - v_target) + (mass - hit) * value - targets.smooth * spread
        self.losses = torch.where(targets.counted, losses, torch.zeros_like(losses))
        self.conjugate = torch.where(targets.counted, value + top.squeeze(-1), 0.0)
        if options.z_loss:
            self.losses = self.losses + options.z_loss * self.conjugate.square()
        self.tau_slope = (1 - total) / max(alpha - 1, 1e-30)
        self.z, self.p, self.index, self.mine = z, p, index, mine
        self.targets, self.weights, self.options = targets, weights, options

    def residual(self, upstream: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor]:
        """As of `blocks._Block`."""
        targets, options, cap = self.targets, self.options, self.options.softcap
        # As in `blocks`: the mean's share is infinite where no row counts.
        above = torch.where(targets.counted, upstream, 0.0)
        mass = above * targets.mass
        if options.z_loss:
            mass = mass + 2 * options.z_loss * above * self.conjugate
        if extra is not None:
            mass = mass + torch.where(targets.counted, extra, 0.0)
        r = mass.unsqueeze(-1) * self.p
        if targets.smooth:
            r = r - targets.smooth * above.unsqueeze(-1) * self.weights
        taken = torch.where(self.mine, above * targets.hit, 0.0).unsqueeze(-1)
        r = r.scatter_add(-1, self.index, -taken)
        if cap is not None:
            r = r * (1 - (self.z / cap).square())
        return r, (mass * self.tau_slope).sum()
