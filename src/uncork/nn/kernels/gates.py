"""Logits of several contexts mixed by a tree of gates, for every row and class: Mixtape's.

π_k is a product of γ or 1 − γ along the way from the root to leaf k, γ = σ(gate). Nodes are counted
level by level from the root, leaves from left to right. `mix_kernel` makes Σ_k π_k z_k, and
`mix_backward_kernel` the derivatives.
"""

from __future__ import annotations

import triton
import triton.language as tl

from uncork.nn._torch import torch
from uncork.nn.kernels.launch import launch, on_its_device, power_of_two

Tensor = torch.Tensor


@triton.jit
def _gate(gates, bias, common, row, at, inside, width, node, NODES: tl.constexpr):
    """γ of a node for the classes `at` of one row."""
    raw = tl.load(gates + (row * NODES + node) * width + at, mask=inside, other=0.0).to(tl.float32)
    raw += tl.load(bias + at * NODES + node, mask=inside, other=0.0).to(tl.float32)
    raw += tl.load(common + row * NODES + node).to(tl.float32)
    return 1.0 / (1.0 + tl.exp(-raw))


@triton.jit
def _leaf(gates, bias, common, row, at, inside, width, k: tl.constexpr, DEPTH: tl.constexpr):
    """π_k."""
    share = tl.full([at.shape[0]], 1.0, tl.float32)
    for level in tl.static_range(DEPTH):
        node = (1 << level) - 1 + (k >> (DEPTH - level))
        gate = _gate(gates, bias, common, row, at, inside, width, node, (1 << DEPTH) - 1)
        if (k >> (DEPTH - 1 - level)) & 1:
            gate = 1.0 - gate
        share *= gate
    return share


@triton.jit
def mix_kernel(
    gates, logits, bias, common, out, width, stride_out, DEPTH: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """gates (R, K − 1, F), logits (R, K, F), bias (F, K − 1), common (R, K − 1) → out (R, F)."""
    row = tl.program_id(0).to(tl.int64)
    for first in range(0, width, L):
        at = first + tl.arange(0, L)
        inside = at < width
        total = tl.zeros([L], tl.float32)
        for k in tl.static_range(1 << DEPTH):
            share = _leaf(gates, bias, common, row, at, inside, width, k, DEPTH)
            z = tl.load(logits + ((row << DEPTH) + k) * width + at, mask=inside, other=0.0)
            total += share * z.to(tl.float32)
        tl.store(out + row * stride_out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def mix_backward_kernel(
    gates, logits, bias, common, grad, d_gates, d_logits, width, stride_grad,
    DEPTH: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """From grad (R, F), d_gates and d_logits, shaped like gates and logits: π_k g for a logit, and
    for a gate Σ_k z_k π_k g · (1 − γ, or −γ where leaf k lies to its right)."""
    row = tl.program_id(0).to(tl.int64)
    NODES: tl.constexpr = (1 << DEPTH) - 1
    for first in range(0, width, L):
        at = first + tl.arange(0, L)
        inside = at < width
        g = tl.load(grad + row * stride_grad + at, mask=inside, other=0.0).to(tl.float32)
        for k in tl.static_range(1 << DEPTH):
            share = _leaf(gates, bias, common, row, at, inside, width, k, DEPTH)
            own = d_logits + ((row << DEPTH) + k) * width + at
            tl.store(own, (share * g).to(d_logits.dtype.element_ty), mask=inside)
        for level in tl.static_range(DEPTH):
            for place in tl.static_range(1 << level):
                node = (1 << level) - 1 + place
                gate = _gate(gates, bias, common, row, at, inside, width, node, NODES)
                total = tl.zeros([L], tl.float32)
                for k in tl.static_range(1 << DEPTH):
                    if (k >> (DEPTH - level)) == place:
                        share = _leaf(gates, bias, common, row, at, inside, width, k, DEPTH)
                        own = logits + ((row << DEPTH) + k) * width + at
                        z = tl.load(own, mask=inside, other=0.0).to(tl.float32)
                        if (k >> (DEPTH - 1 - level)) & 1:
                            total -= z * share * gate
                        else:
                            total += z * share * (1.0 - gate)
                own = d_gates + (row * NODES + node) * width + at
                tl.store(own, (total * g).to(d_gates.dtype.element_ty), mask=inside)


def _shared(gates: Tensor, logits: Tensor, bias: Tensor, common: Tensor) -> dict[str, object]:
    width = gates.shape[2]
    lanes = min(1024, max(32, power_of_two(width)))
    return {
        "gates": gates, "logits": logits, "bias": bias, "common": common, "width": width,
        "DEPTH": logits.shape[1].bit_length() - 1, "L": lanes, "num_warps": max(1, lanes // 256),
    }  # fmt: skip


@on_its_device
def mix(gates: Tensor, logits: Tensor, bias: Tensor, common: Tensor) -> Tensor:
    """Σ_k π_k z_k, (R, F): gates (R, K − 1, F), logits (R, K, F), bias (F, K − 1) and common
    (R, K − 1), all contiguous."""
    out = torch.empty((len(gates), gates.shape[2]), dtype=logits.dtype, device=gates.device)
    launch(mix_kernel, len(gates), {
        **_shared(gates, logits, bias, common), "out": out, "stride_out": out.stride(0),
    })  # fmt: skip
    return out


@on_its_device
def mix_backward(
    gates: Tensor, logits: Tensor, bias: Tensor, common: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The derivatives by gates and logits, from grad (R, F)."""
    d_gates, d_logits = torch.empty_like(gates), torch.empty_like(logits)
    launch(mix_backward_kernel, len(gates), {
        **_shared(gates, logits, bias, common), "grad": grad, "stride_grad": grad.stride(0),
        "d_gates": d_gates, "d_logits": d_logits,
    })  # fmt: skip
    return d_gates, d_logits
