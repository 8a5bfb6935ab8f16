"""Mixtape's loss without its scores: one softmax over logits that gates have mixed class by class.

A block of rows is one product with the whole weight, of contexts mixed by the gates that all
classes share, and one of every context with the classes that have gates of their own, whose mixed
logits take their places. The residual of the softmax then goes back the same two ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from uncork.nn import kernels
from uncork.nn._rows import without_autocast
from uncork.nn._torch import torch
from uncork.nn.linear import in_blocks
from uncork.nn.linear.by_row import add_product
from uncork.nn.linear.in_blocks import Gradients, as_given, wide
from uncork.nn.linear.links import Identity
from uncork.nn.linear.problem import check_classes, row_targets
from uncork.nn.losses.specification import Reduction

Tensor = torch.Tensor

ON_CPU = 1 << 22  # logits in memory at a time: 16 MiB in float32
ON_GPU = 1 << 27


class Tensors(NamedTuple):
    """What may want gradients; F classes have gates of their own."""

    mixed: Tensor  #: (N, e), contexts mixed by the shared gates
    contexts: Tensor  #: (N, K, e)
    gates: Tensor  #: (N, K − 1, g)
    common: Tensor  #: (N, K − 1), float32 or better
    weight: Tensor  #: (C, e)
    bias: Tensor | None  #: (C)
    frequent: Tensor  #: (F, e), rows of the weight
    gate_weight: Tensor  #: (F, g)
    gate_bias: Tensor  #: (F, K − 1)


@dataclass(frozen=True)
class GatedLoss:
    """Everything but the tensors."""

    ids: Tensor  #: (F), the classes with gates of their own
    leaves: Callable[[Tensor], Tensor]  #: gates (R, K − 1, F) → mixing weights (R, K, F)
    #: the losses (N) of the same tensors by torch's own means
    in_full: Callable[[Tensors, Tensor, Reduction], Tensor]

    def at_once(self, tensors: in_blocks.Tensors, target: Tensor, how: Reduction) -> Tensor:
        return self.in_full(Tensors(*tensors), target, how)  # type: ignore[arg-type]

    @torch.no_grad()
    def compute(
        self,
        tensors: in_blocks.Tensors,
        target: Tensor,
        how: Reduction,
        upstream: Tensor | None,
        wanted: Sequence[bool],
    ) -> tuple[Tensor, Gradients]:
        given, ids = Tensors(*tensors), self.ids  # type: ignore[arg-type]
        weight, bias = given.weight, given.bias
        rows, components, _ = given.contexts.shape
        classes, device, kind = len(weight), weight.device, wide(weight.dtype)
        targets = row_targets(target, how.weight, classes, how, kind)
        check_classes(targets.classes, classes)
        losses = torch.zeros(rows, dtype=kind, device=device)
        # All of them, wanted or not: those of the gates come together.
        sums: Gradients = [
            None
            if one is None or upstream is None
            else torch.zeros_like(one, dtype=one.dtype if place < 4 else kind)
            for place, one in enumerate(given)
        ]
        share = len(ids) / classes
        elements = ON_CPU if device.type == "cpu" else ON_GPU
        step = max(1, int(elements / (classes * (1 + 2 * components * share))))
        own_bias = None if bias is None else bias[ids]
        softmax = Identity()
        with without_autocast(device.type):
            for start in range(0, rows, step):
                part = slice(start, start + step)
                of = targets.of(part)
                own = _Own(self.leaves, given, part)
                z = _product(given.mixed[part], weight, bias)
                mixed = own.mixed if own_bias is None else own.mixed + own_bias
                z[:, ids] = mixed.to(z.dtype)
                made = softmax(z, of.classes)
                losses[part] = torch.where(of.counted, -made.log_p * of.mass, 0.0)
                if upstream is None:
                    continue
                above = torch.where(of.counted, upstream[part].to(kind) * of.mass, 0.0)
                r = made.residual(above)
                d_mixed, _, _, _, d_weight, d_bias, *_ = sums
                assert d_mixed is not None
                assert d_weight is not None
                if d_bias is not None:
                    d_bias += r.sum(0, dtype=kind)
                of_own = r[:, ids]
                r[:, ids] = 0
                r = r.to(weight.dtype)
                d_mixed[part] = torch.mm(r, weight)
                add_product(d_weight, r.t(), given.mixed[part])
                own.go_back(of_own, sums, part)
        asked = [made if want else None for made, want in zip(sums, wanted, strict=True)]
        return losses, as_given(asked, tensors)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In float32 or better; of its own type where kernels read it."""
    if kernels.usable(x) or x.dtype.itemsize >= 4:
        bias = None if bias is None else bias.to(x.dtype)
        return torch.nn.functional.linear(x, weight, bias)
    z = torch.nn.functional.linear(x, weight).float()
    return z if bias is None else z + bias.float()


class _Own:
    """A block's logits of the classes that have gates of their own, mixed: (R, F)."""

    def __init__(self, leaves: Callable[[Tensor], Tensor], tensors: Tensors, part: slice) -> None:
        contexts, gates = tensors.contexts[part], tensors.gates[part]
        self.x, self.h = contexts.flatten(0, 1), gates.flatten(0, 1)
        self.common, self.tensors = tensors.common[part], tensors
        self.logits = _product(self.x, tensors.frequent, None).unflatten(0, contexts.shape[:2])
        self.raw = _product(self.h, tensors.gate_weight, None).unflatten(0, gates.shape[:2])
        self.by_kernels = kernels.launches(self.logits, self.raw)
        bias = tensors.gate_bias
        if self.by_kernels:
            from uncork.nn.kernels.gates import mix

            self.given = self.raw, self.logits, bias.contiguous(), self.common.contiguous()
            self.mixed = mix(*self.given)
            return
        with torch.enable_grad():
            self.leaves = [self.raw.requires_grad_(), self.logits.requires_grad_()]
            opened = self.raw + bias.T.to(self.raw.dtype) + self.common.unsqueeze(-1)
            shares = leaves(torch.sigmoid(opened))
            self.made = (shares * self.logits).sum(1)
        self.mixed = self.made.detach()

    def go_back(self, grad: Tensor, sums: list[Tensor | None], part: slice) -> None:
        """Adds the gradients that grad (R, F) leads to."""
        if self.by_kernels:
            from uncork.nn.kernels.gates import mix_backward

            d_raw, d_logits = mix_backward(*self.given, grad.contiguous())
        else:
            d_raw, d_logits = torch.autograd.grad(self.made, self.leaves, grad)
        tensors = self.tensors
        _, d_contexts, d_gates, d_common, _, _, d_frequent, d_gate_weight, d_gate_bias = sums
        assert d_contexts is not None
        assert d_gates is not None
        assert d_common is not None
        assert d_frequent is not None
        assert d_gate_weight is not None
        assert d_gate_bias is not None
        d_common[part] = d_raw.sum(-1, dtype=d_common.dtype)
        d_gate_bias += d_raw.sum(0, dtype=d_gate_bias.dtype).T
        d_raw = d_raw.flatten(0, 1).to(self.h.dtype)
        d_logits = d_logits.flatten(0, 1).to(self.x.dtype)
        d_contexts[part] = torch.mm(d_logits, tensors.frequent).view_as(d_contexts[part])
        d_gates[part] = torch.mm(d_raw, tensors.gate_weight).view_as(d_gates[part])
        add_product(d_frequent, d_logits.t(), self.x)
        add_product(d_gate_weight, d_raw.t(), self.h)
