"""−log Σ_k π_k P_k(target): mixtures of softmaxes of linked logits, without the logits.

A component's share in a row's gradient is a number, its responsibility for the target. So a block
of rows is one product of all its components' contexts with the weight, from which the residuals
follow as in cross entropy, each component's times its responsibility: three products a component,
as many as softmax takes. One component with a link is sigsoftmax, or a piecewise linear head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from uncork.nn import kernels
from uncork.nn._rows import without_autocast
from uncork.nn._torch import torch
from uncork.nn.linear import in_blocks
from uncork.nn.linear.by_row import add_product
from uncork.nn.linear.in_blocks import Gradients, as_given, wide
from uncork.nn.linear.links import Link
from uncork.nn.linear.problem import check_classes, logits, row_targets
from uncork.nn.losses.specification import Reduction

Tensor = torch.Tensor

ON_CPU = 1 << 22  # logits in memory at a time: 16 MiB in float32
ON_GPU = 1 << 27


class Tensors(NamedTuple):
    """What may want gradients."""

    contexts: Tensor  #: (N, K, e)
    log_prior: Tensor | None  #: (N, K), None for one component
    weight: Tensor  #: (C, e)
    bias: Tensor | None  #: (C)
    table: Tensor | None  #: the link's own parameters


@dataclass(frozen=True)
class MixtureLoss:
    """Everything but the tensors."""

    link: Link
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
        contexts, log_prior, weight, bias, table = Tensors(*tensors)  # type: ignore[arg-type]
        rows, components, features = contexts.shape
        classes, device, kind = len(weight), contexts.device, wide(contexts.dtype)
        elements = ON_CPU if device.type == "cpu" else ON_GPU
        step = max(1, elements // (classes * components))
        # On a GPU the first product is under way while the rest is prepared.
        z: Tensor | None = _block(contexts, slice(0, step), weight, bias)[1]
        targets = row_targets(target, how.weight, classes, how, kind)
        check_classes(targets.classes, classes)
        log_p = torch.empty(rows, dtype=kind, device=device)
        above = None  # each row's share in the gradient
        if upstream is not None:
            above = torch.where(targets.counted, upstream.to(kind) * targets.mass, 0.0)
        # Those of the weight and the bias are added up, the others written once.
        sums: Gradients = [
            (torch.zeros if one is weight or one is bias else torch.empty)(
                one.shape, dtype=one.dtype if one is contexts else kind, device=device
            )
            if asked and one is not None and upstream is not None
            else None
            for one, asked in zip(tensors, wanted, strict=True)
        ]
        d_contexts, d_prior, d_weight, d_bias, d_table = sums
        link = self.link.begin(table, min(step, rows) * components, kind)
        with without_autocast(device.type):
            for start in range(0, rows, step):
                part = slice(start, start + step)
                x, z = _block(contexts, part, weight, bias, z)
                made = link(z, _repeated(targets.classes[part], components))
                z = None
                if log_prior is None:
                    total = made.log_p
                else:
                    joint = made.log_p.view(-1, components) + log_prior[part]
                    total = torch.logsumexp(joint, -1)
                log_p[part] = total
                if above is None:
                    continue
                # −d log Σ_k π_k P_k: each component's share in it. Of no probability, of none.
                none = total == -math.inf
                if log_prior is None:
                    share = torch.where(none, 0.0, above[part])
                else:
                    share = torch.exp(joint - torch.where(none, 0.0, total).unsqueeze(-1))
                    share = share * above[part].unsqueeze(-1)
                if d_prior is not None:
                    d_prior[part] = -share
                r = made.residual(share.reshape(-1))
                if d_bias is not None:
                    d_bias += r.sum(0, dtype=kind)
                r = r.to(weight.dtype)
                if d_contexts is not None:
                    torch.mm(r, weight, out=d_contexts[part].view(-1, features))
                if d_weight is not None:
                    add_product(d_weight, r.t(), x)
        if d_table is not None:
            sums[-1] = link.by_parameters()
        losses = torch.where(targets.counted, -log_p * targets.mass, 0.0)
        return losses, as_given(sums, tensors)


def _block(
    contexts: Tensor, part: slice, weight: Tensor, bias: Tensor | None, made: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Contexts (R · K, e) of some rows, and their logits, unless these are made."""
    x = contexts[part].reshape(-1, contexts.shape[2])
    if made is not None:
        return x, made
    with without_autocast(x.device.type):
        return x, _logits(x, weight, bias)


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In float32 or better; of the products' own type where kernels read them."""
    narrow = bias is None or bias.dtype == x.dtype
    if narrow and (kernels.usable(x) or x.dtype.itemsize >= 4):
        return torch.nn.functional.linear(x, weight, bias)
    return logits(x, weight, bias, None)


def _repeated(index: Tensor, components: int) -> Tensor:
    return index.repeat_interleave(components) if components > 1 else index
