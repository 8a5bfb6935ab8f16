"""Mixtape's loss without its scores: one softmax over logits that gates have mixed class by class.

A block of rows is one product with the whole weight, of contexts mixed by the gates that all
classes share, and one of every context with the classes that have gates of their own, whose mixed
logits take their places. The residual of the softmax then goes back the same two ways.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from uncork.nn import kernels
from uncork.nn._torch import torch
from uncork.nn.linear.by_row import add_product
from uncork.nn.linear.links import Identity

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
class Call:
    """Everything but the tensors."""

    leaves: Callable[[Tensor], Tensor]  #: gates (R, K − 1, F) → mixing weights (R, K, F)
    ignore_index: int
    #: the losses (N) of the same tensors by torch's own means, to be differentiated again
    again: Callable[[Tensors], Tensor]


@torch.compiler.disable  # traced, every block would be compiled anew
def gated_loss(
    call: Call,
    tensors: Tensors,
    ids: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    shares: Tensor | None,
) -> Tensor:
    """Losses by row (N); with shares (N) given, their sum weighted by these. ids (F) are the
    classes with gates of their own."""
    loss: Tensor = _GatedLoss.apply(call, ids, target, class_weight, shares, *tensors)
    return loss


class _GatedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: Call,
        ids: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        shares: Tensor | None,
        *given: Any,
    ) -> Tensor:
        tensors, wanted = Tensors(*given), ctx.needs_input_grad[5:]
        # float16's range is too small for gradients before the upstream factor (a loss scale).
        early = any(wanted) and shares is not None and tensors.weight.dtype != torch.float16
        losses, gradients = compute(
            call, tensors, ids, target, class_weight, shares if early else None
        )
        ctx.save_for_backward(ids, target, class_weight, shares, *given)
        ctx.call, ctx.wanted = call, wanted
        ctx.ready = gradients if early else None
        return losses if shares is None else torch.dot(losses, shares.to(losses.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        ids, target, class_weight, shares, *given = ctx.saved_tensors
        tensors = Tensors(*given)
        rows = grad if shares is None else grad * shares
        made: list[Tensor | None]
        if torch.is_grad_enabled():  # to be differentiated again: all rows at once
            losses = ctx.call.again(tensors)
            leaves: list[Any] = [
                one for one, asked in zip(tensors, ctx.wanted, strict=True) if asked
            ]
            found = iter(
                torch.autograd.grad(losses, leaves, rows.to(losses.dtype), create_graph=True)
            )
            made = [next(found) if asked else None for asked in ctx.wanted]
            return (None, None, None, None, None, *made)
        if ctx.ready is not None:
            made, ctx.ready = ctx.ready, None  # handed over: a second backward makes them anew
            made = [None if one is None else one.mul_(grad) for one in made]
        else:
            made = compute(ctx.call, tensors, ids, target, class_weight, rows)[1]
        asked = [one if want else None for one, want in zip(made, ctx.wanted, strict=True)]
        return (None, None, None, None, None, *asked)


@torch.no_grad()
def compute(
    call: Call,
    tensors: Tensors,
    ids: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    upstream: Tensor | None,
) -> tuple[Tensor, list[Tensor | None]]:
    """Losses (N), and with upstream (N) all gradients, in the order of `Tensors`."""
    weight, bias = tensors.weight, tensors.bias
    rows, components, _ = tensors.contexts.shape
    classes, device = len(weight), weight.device
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    counted = target != call.ignore_index
    index = torch.where(counted, target, 0)
    if device.type == "cpu" and bool(((index < 0) | (index >= classes)).any()):
        raise IndexError(f"a target is out of bounds for {classes} classes")
    by_class = counted.to(wide)
    if class_weight is not None:
        by_class = torch.where(counted, class_weight.to(wide)[index], 0.0)
    losses = torch.zeros(rows, dtype=wide, device=device)
    sums = [
        None
        if one is None or upstream is None
        else torch.zeros_like(one, dtype=one.dtype if place < 4 else wide)
        for place, one in enumerate(tensors)
    ]
    share = len(ids) / classes
    elements = ON_CPU if device.type == "cpu" else ON_GPU
    step = max(1, int(elements / (classes * (1 + 2 * components * share))))
    own_bias = None if bias is None else bias[ids]
    with torch.autocast(device.type, enabled=False):
        for start in range(0, rows, step):
            part = slice(start, start + step)
            own = _Own(call, tensors, part)
            z = _product(tensors.mixed[part], weight, bias)
            mixed = own.mixed if own_bias is None else own.mixed + own_bias
            z[:, ids] = mixed.to(z.dtype)
            made = Identity()(z, index[part], None)
            losses[part] = torch.where(counted[part], -made.log_p * by_class[part], 0.0)
            if upstream is None:
                continue
            above = torch.where(counted[part], upstream[part].to(wide) * by_class[part], 0.0)
            r = made.residual(above).values
            d_mixed, _, _, _, d_weight, d_bias, *_ = sums
            assert d_mixed is not None
            assert d_weight is not None
            if d_bias is not None:
                d_bias += r.sum(0, dtype=wide)
            of_own = r[:, ids]
            r[:, ids] = 0
            r = r.to(weight.dtype)
            d_mixed[part] = torch.mm(r, weight)
            add_product(d_weight, r.t(), tensors.mixed[part])
            own.go_back(of_own, sums, part)
    return losses, [
        None if made is None or one is None else made.to(one.dtype)
        for made, one in zip(sums, tensors, strict=True)
    ]


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In float32 or better; of its own type where kernels read it."""
    if kernels.usable(x) or x.dtype.itemsize >= 4:
        bias = None if bias is None else bias.to(x.dtype)
        return torch.nn.functional.linear(x, weight, bias)
    z = torch.nn.functional.linear(x, weight).float()
    return z if bias is None else z + bias.float()


class _Own:
    """A block's logits of the classes that have gates of their own, mixed: (R, F)."""

    def __init__(self, call: Call, tensors: Tensors, part: slice) -> None:
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
            shares = call.leaves(torch.sigmoid(opened))
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
