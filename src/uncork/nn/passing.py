"""How much of a loss's gradient passes through a layer, measured on its device as it trains.

`uncork.theory.gradient` measures the same of a stored head, by QR. Here d × d products are made on
the layer's own device in float64, which is quicker and squares the condition of the weight: columns
that differ by less than about 1e-7 of the largest count as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.linear.problem import check_classes
from uncork.nn.losses.specification import check_indices

Tensor = torch.Tensor
IGNORED = -100  # a target that counts for nothing
_BYTES = 64 << 20  # of logits at a time
_ROWS = 16384  # of the weight in float64 at a time
_DEPENDENT = 1e-14  # an eigenvalue this small beside the largest is rounding
_NOTHING = 1e-12


@dataclass(frozen=True)
class Passing:
    """Token for token, (n,) each, in float64 on the layer's device; ignored tokens are left out."""

    norm: Tensor  # ‖g‖
    share: Tensor  # ‖P g‖/‖g‖: what passes at best
    step: Tensor  # cosine between −g and the logits' move under a step of h
    moved: Tensor  # length of that move
    target: Tensor  # rise of the target's logit under that step, beside the free one's
    at_target: Tensor  # g of the target: p − 1
    support: Tensor  # classes with a gradient

    @property
    def lost(self) -> Tensor:
        """‖g − P g‖/‖g‖."""
        return (1 - self.share**2).clamp(min=0).sqrt()

    @property
    def total(self) -> float:
        """√(Σ‖P g‖²/Σ‖g‖²)."""
        squares = self.norm**2
        return float(((self.share**2 * squares).sum() / squares.sum().clamp(min=1e-300)).sqrt())

    def mixed(self, prior: Tensor) -> Passing:
        """Of a mixture's components, measured as tokens (n · K), to tokens: the logits of all
        components together, whose gradients are r_k (p_k − e_y), r_k = π_k p_k(y)/Σ π p(y). A
        mixture has no one logit of the target: NaN."""
        shape = prior.shape  # (n, K)
        joint = prior.double() * (1 + self.at_target).reshape(shape)
        responsible = joint / joint.sum(1, keepdim=True).clamp(min=1e-300)

        def length(values: Tensor) -> Tensor:
            return ((responsible * values.reshape(shape)) ** 2).sum(1).sqrt()

        norm, moved = length(self.norm), length(self.moved)
        along = responsible**2 * (self.step * self.moved * self.norm).reshape(shape)
        whole = norm > _NOTHING
        safe = torch.where(whole, norm, 1.0)
        share = torch.where(whole, length(self.norm * self.share) / safe, 1.0)
        step = torch.where(whole, along.sum(1) / (moved * safe).clamp(min=1e-300), 1.0)
        nothing = torch.full_like(norm, float("nan"))
        total = joint.sum(1) - 1
        return Passing(
            norm, share, step, moved, nothing, total, self.support.reshape(shape).amax(1)
        )


@torch.no_grad()
def measure_passing(
    weight: Tensor,
    bias: Tensor | None,
    hidden: Tensor,
    target: Tensor,
    *,
    output: Callable[[Tensor], Tensor] | None = None,
    metric: Tensor | None = None,
) -> Passing:
    """The share of ∂L/∂z that passes: weight (V, d), hidden (..., d), targets as hidden without d.

    `output` makes the p of ∂L/∂z = p − e_y from logits (n, V) in float64: softmax unless given, or
    any map with its Fenchel-Young loss, such as `functional.entmax`.
    `metric` (d, d): the step of h is −K Wᵀg instead of −Wᵀg, as where something rescales h's
    gradient; it changes `step` and `target` alone.
    """
    states, wanted = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
    if states.shape[1] != weight.shape[1] or len(states) != len(wanted):
        raise UncorkError(
            f"hidden states {tuple(hidden.shape)} and targets {tuple(target.shape)}: expected "
            f"(..., {weight.shape[1]}) and (...)"
        )
    check_indices("target", wanted)
    counted = wanted != IGNORED
    check_classes(wanted[counted].cpu(), len(weight))
    states, wanted = states[counted].double(), wanted[counted]
    if not len(wanted):
        raise UncorkError("there is no token with a target")
    gram = _gram(weight)
    values, vectors = torch.linalg.eigh(gram)
    kept = values > _DEPENDENT * values[-1].clamp(min=1e-300)
    root = vectors[:, kept] / values[kept].sqrt()  # (d, r): ‖rootᵀ Wᵀ g‖ = ‖P g‖
    metric = None if metric is None else metric.double()
    found = [
        _some(weight, bias, h, y, output or _softmax, gram, root, metric)
        for h, y in zip(*(each.split(_tokens(weight)) for each in (states, wanted)), strict=True)
    ]
    return Passing(*(torch.cat([getattr(one, f.name) for one in found]) for f in fields(Passing)))


def _tokens(weight: Tensor) -> int:
    return max(1, _BYTES // (8 * len(weight)))


def _gram(weight: Tensor) -> Tensor:
    made = weight.new_zeros((weight.shape[1],) * 2, dtype=torch.float64)
    for rows in weight.split(_ROWS):
        made.addmm_(rows.double().T, rows.double())
    return made


def _some(
    weight: Tensor, bias: Tensor | None, h: Tensor, y: Tensor,
    output: Callable[[Tensor], Tensor], gram: Tensor, root: Tensor, metric: Tensor | None,
) -> Passing:  # fmt: skip
    z = torch.cat([h @ rows.double().T for rows in weight.split(_ROWS)], dim=1)
    if bias is not None:
        z += bias.double()
    g = output(z).clone()
    rows = torch.arange(len(y), device=y.device)
    g[rows, y] -= 1
    back = h.new_zeros(h.shape)
    for start, part in zip(range(0, len(weight), _ROWS), weight.split(_ROWS), strict=True):
        back += g[:, start : start + len(part)] @ part.double()
    norm = g.norm(dim=1)
    there = norm > _NOTHING
    norm = torch.where(there, norm, 0.0)
    safe = torch.where(there, norm, 1.0)
    step = back if metric is None else back @ metric.T
    moved = ((step @ gram) * step).sum(1).clamp(min=0).sqrt()  # ‖W K Wᵀ g‖
    moved = torch.where(moved > 0, moved, 1.0)
    own = (weight[y].double() * step).sum(1)
    at = g[rows, y]
    free = torch.where(at == 0, 1.0, at) / safe

    def shown(values: Tensor) -> Tensor:
        return torch.where(there, values, 1.0)  # of nothing, nothing is lost

    return Passing(
        norm, shown(((back @ root).norm(dim=1) / safe).clamp(max=1)),
        shown((step * back).sum(1) / (moved * safe)), moved, shown(own / moved / free), at,
        (g.abs() > _NOTHING).sum(1),
    )  # fmt: skip


def _softmax(z: Tensor) -> Tensor:
    return torch.softmax(z, -1)
