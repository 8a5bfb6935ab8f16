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
    check_classes,
    logits,
    row_targets,
)
from uncork.nn.losses.fenchel_young import reduce_loss
from uncork.nn.losses.specification import Reduction
from uncork.nn.transforms.threshold import shifted

Tensor = torch.Tensor

BLOCK_ELEMENTS = 1 << 22  # logits in memory at a time: 16 MiB in float32
# On a GPU, where every operation is a launch, up to so many times as many, and an eighth of all.
TIMES_ON_GPU, SHARE_ON_GPU = 16, 8


def loss_of_logits(
    z: Tensor, target: Tensor, class_weight: Tensor | None, tau: Alpha, options: LinearOptions
) -> Tensor:
    """Losses by row of raw logits (N, C), softcap included."""
    if options.softcap is not None:
        z = options.softcap * torch.tanh(z / options.softcap)
    how = Reduction(class_weight, options.ignore_index, "none", options.label_smoothing)
    losses = reduce_loss(z, target, options.family, options.parameters(tau), how)
    if options.z_loss:
        values = _conjugate(z, target, tau, options)
        losses = losses + options.z_loss * values.square()
    return losses


def conjugate_of_logits(z: Tensor, target: Tensor, tau: Alpha, options: LinearOptions) -> Tensor:
    """Ω* by row of raw logits (N, C), softcap included; 0 where ignored."""
    if options.softcap is not None:
        z = options.softcap * torch.tanh(z / options.softcap)
    return _conjugate(z, target, tau, options)


def _conjugate(z: Tensor, target: Tensor, tau: Alpha, options: LinearOptions) -> Tensor:
    """Ω*(z) = ℓ(z; y) + z_y, whatever y is."""
    likely = z.detach().argmax(-1)
    losses = reduce_loss(
        z, likely, options.family, options.parameters(tau), Reduction(reduction="none")
    )
    value = losses + z.gather(-1, likely.unsqueeze(-1)).squeeze(-1)
    if target.is_floating_point():
        return value
    return torch.where(target != options.ignore_index, value, 0.0)


def compute(
    tensors: LinearTensors,
    upstream: Tensor | None,
    options: LinearOptions,
    wanted: Wanted,
    extra: Tensor | None = None,
) -> LinearResult:
    """Losses by row, and the gradients wanted; upstream (N): dL/d(loss of a row), extra (N):
    dL/d(its Ω*)."""
    input, weight, bias, tau, target, class_weight, _ = tensors
    classes = weight.shape[0]
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    keep = weight.dtype if options.float32_accumulation is False else wide
    dense = target.is_floating_point()
    targets = None
    if not dense:
        targets = row_targets(target, class_weight, classes, options, wide)
        check_classes(targets.classes, classes)
    level = as_tensor(tau, wide, input.device)
    losses = torch.zeros(len(input), dtype=wide, device=input.device)
    lse = torch.zeros_like(losses) if options.lse else None
    predicted = target.new_zeros(len(input), dtype=torch.int64) if options.predictions else None
    d_input = torch.empty_like(input) if wanted.input else None
    d_weight = torch.zeros_like(weight, dtype=keep) if wanted.weight else None
    d_bias = torch.zeros(classes, dtype=wide, device=input.device) if wanted.bias else None
    d_tau = torch.zeros_like(level) if wanted.tau else None
    elements = BLOCK_ELEMENTS
    if input.device.type != "cpu":
        all_of_them = len(input) * classes
        elements = min(TIMES_ON_GPU * elements, max(elements, all_of_them // SHARE_ON_GPU))
    step = max(1, elements // max(1, classes))
    for start in range(0, len(input), step):
        rows = slice(start, start + step)
        z = logits(input[rows], weight, bias)
        if predicted is not None:
            predicted[rows] = z.argmax(-1)
        block: _Block
        if targets is None:
            block = _DenseBlock(z, target[rows], class_weight, level, options)
        else:
            block = _IndexBlock(z, targets.of(rows), class_weight, level, options)
        losses[rows] = block.losses
        if lse is not None:
            lse[rows] = block.conjugate
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
        lse=lse,
        predicted=predicted,
    )


class _Block:
    """Losses (R) and Ω* (R) of a block of logits z (R, C), and their derivative by z. Whoever makes
    it has no further use for the logits: memory that is new has to be mapped first, which takes
    longer than most passes do."""

    def __init__(self, z: Tensor, tau: Tensor, options: LinearOptions) -> None:
        if options.softcap is not None:
            z = options.softcap * torch.tanh(z / options.softcap)
        self.z, self.options = z, options
        family, self.parameters = options.family, options.parameters(tau)
        self.p = family.predict(z, self.parameters)
        self.v, top = z, None
        if family.shift_invariant:
            self.v, top = shifted(z, in_place=options.softcap is None)
        self.value = family.conjugate(self.v, self.p, self.parameters).squeeze(-1)  # Ω*(v)
        self.whole = self.value if top is None else self.value + top.squeeze(-1)  # Ω*(z)
        self.mass, self.counted, self.losses = self._losses()
        self.conjugate = torch.where(self.counted, self.whole, 0.0)
        if options.z_loss:
            self.losses = self.losses + options.z_loss * self.conjugate.square()

    def _losses(self) -> tuple[Tensor, Tensor, Tensor]:
        """What Ω* counts in a row's loss, whether the row counts, and the loss itself, (R) each."""
        raise NotImplementedError

    def _less_target(self, r: Tensor, above: Tensor) -> Tensor:
        """r (R, C), which may be overwritten, less the target's share, times above (R, 1)."""
        raise NotImplementedError

    def residual(self, upstream: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor]:
        """d/dz of upstream · losses + extra · Ω*, (R, C), and d/dτ, ()."""
        options = self.options
        # Of no rows that count the mean's share is infinite: what is ignored stays 0 all the same.
        above = torch.where(self.counted, upstream, 0.0)
        mass = above * self.mass
        if options.z_loss:
            mass = mass + 2 * options.z_loss * above * self.conjugate
        if extra is not None:
            mass = mass + torch.where(self.counted, extra, 0.0)
        along_tau = torch.zeros_like(mass[:0].sum())
        if options.fixed:
            place = len(self.parameters) - 1
            slope = options.family.conjugate_slope(place, self.p, self.parameters)
            along_tau = (mass.unsqueeze(-1) * slope).sum()
        r = self._less_target(self.p.mul_(mass.unsqueeze(-1)), above.unsqueeze(-1))
        if options.softcap is not None:
            r = r * (1 - (self.z / options.softcap).square())
        return r, along_tau


class _IndexBlock(_Block):
    """Against one class a row."""

    def __init__(
        self,
        z: Tensor,
        targets: RowTargets,
        class_weight: Tensor | None,
        tau: Tensor,
        options: LinearOptions,
    ) -> None:
        self.targets, self.share = targets, torch.ones((), dtype=z.dtype, device=z.device)
        if class_weight is not None:
            self.share = class_weight.to(z)
        super().__init__(z, tau, options)

    def _losses(self) -> tuple[Tensor, Tensor, Tensor]:
        targets, v, value = self.targets, self.v, self.value
        at_target = v.gather(-1, targets.classes.unsqueeze(-1)).squeeze(-1)
        # Of a row that is all −inf softmax's conjugate is infinite: what has no share in it stays
        # out.
        hit, spare = targets.hit, targets.mass - targets.hit
        loss = hit * (value - at_target) + torch.where(spare == 0, 0.0, spare * value)
        if targets.smooth:
            spread = torch.where(self.share == 0, torch.zeros_like(v), self.share * v).sum(-1)
            loss = loss - targets.smooth * spread
        loss = torch.where(targets.counted, loss, torch.zeros_like(loss))
        return targets.mass, targets.counted, loss

    def _less_target(self, r: Tensor, above: Tensor) -> Tensor:
        targets = self.targets
        if targets.smooth:
            r = r - targets.smooth * above * self.share
        return r.scatter_add_(-1, targets.classes.unsqueeze(-1), -above * targets.hit.unsqueeze(-1))


class _DenseBlock(_Block):
    """Against probabilities b (R, C): a Ω*(z) − ⟨b, z⟩ with a their sum."""

    def __init__(
        self,
        z: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        tau: Tensor,
        options: LinearOptions,
    ) -> None:
        share = options.label_smoothing
        b = target.to(z.dtype)
        if share:
            b = (1 - share) * b + share / z.shape[-1]
        self.b = b if class_weight is None else b * class_weight.to(z)
        super().__init__(z, tau, options)

    def _losses(self) -> tuple[Tensor, Tensor, Tensor]:
        b, v = self.b, self.v
        mass = b.sum(-1)
        at_target = torch.where(b == 0, torch.zeros_like(v), b * v).sum(-1)
        return mass, torch.ones_like(mass, dtype=torch.bool), mass * self.value - at_target

    def _less_target(self, r: Tensor, above: Tensor) -> Tensor:
        return r - above * self.b
