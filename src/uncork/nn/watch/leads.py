"""What a class is proven to be ahead by at an input, whatever the training's own precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from uncork.domain import Ball, Box, Domain
from uncork.nn._torch import torch

Tensor = torch.Tensor
_BYTES = {"cuda": 1 << 29, "cpu": 1 << 26}  # of the scores made in one product


def leads(weight: Tensor, bias: Tensor | None, x: Tensor, own: Tensor, dtype: Any) -> Tensor:
    """Proven: class own[k] is ahead by so much of ‖x‖ times the rows' mean length at x[k]: (n,).

    Zero or less, or NaN, proves nothing. At x/‖x‖ every logit as computed is off by no more than
    κ(‖w‖ + |b|/‖x‖), with κ from what the type rounds its factors by; that rides along as one more
    feature, so that one product gives an upper bound on every rival.
    """
    classes, features = weight.shape
    rows = weight.float()
    offsets = rows.new_zeros(classes) if bias is None else bias.float()
    narrow = dtype == torch.bfloat16
    # Two factors rounded to eight bits, sums in float32 or (split in few parts) rounded likewise.
    kappa = 2.0**-5 if narrow else 2.0**-21
    kappa += 1.1 * (features + 32) * 2.0**-23
    lengths = torch.linalg.vector_norm(rows, dim=1)
    reach = torch.linalg.vector_norm(x, dim=1)
    unit = torch.cat([x, torch.ones_like(x[:, :1]), x.new_zeros(len(x), 7)], dim=1)
    unit = unit / reach[:, None]
    unit[:, features + 1] = 1.0
    # Rounded up by far more than the product's own rounding of it.
    error = kappa * 1.05 * lengths
    spread = kappa * 1.05 * offsets.abs()
    beside = torch.stack([offsets + spread, error], dim=1)
    table = torch.cat([rows, beside, rows.new_zeros(classes, 6)], dim=1).to(dtype)
    ahead = torch.empty(len(x), device=x.device)
    with torch.autocast(weight.device.type, enabled=False), _exact_products():
        step = max(1, _BYTES.get(x.device.type, 1 << 26) // (table.element_size() * classes))
        for start in range(0, len(x), step):
            part = unit[start : start + step]
            here, ids = torch.arange(len(part), device=x.device), own[start : start + step]
            scores = part.to(dtype) @ table.T
            scores[here, ids] = -torch.inf
            mine = (part[:, :features] * rows[ids]).sum(dim=1) + offsets[ids] * part[:, features]
            mine = mine - kappa * (lengths[ids] + (offsets[ids] * part[:, features]).abs())
            ahead[start : start + step] = mine - scores.amax(dim=1).float()
    return ahead / lengths.mean().clamp_min(1e-30)


@contextlib.contextmanager
def _exact_products() -> Iterator[None]:
    """float32 products of float32's own precision, whatever the training allows itself."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def guesses(rows: Tensor, at: Tensor, domain: Domain) -> Tensor | None:
    """Σ⁻¹(w_t − μ), as far out as the domain goes: (n, d) in float32."""
    mean = rows.mean(dim=0)
    away = rows - mean
    covariance = away.T @ away / len(rows)
    ridge = 1e-5 * covariance.diagonal().mean().clamp_min(1e-30)
    covariance.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed):
        return None
    guess = torch.cholesky_solve((rows[at] - mean).T, factor).T
    if isinstance(domain, Box):
        low, high = (
            torch.from_numpy(np.array(side, dtype=np.float32)).to(rows.device)
            for side in domain.bounds(rows.shape[1])
        )
        room = torch.where(guess > 0, high / guess, low / guess)
        room = torch.where(guess == 0, torch.inf, room).amin(dim=1).clamp(0.0, 1e4)
        return guess * room[:, None] * (1 - 1e-6)
    size = torch.linalg.vector_norm(guess, dim=1, keepdim=True).clamp_min(1e-30)
    reach = domain.radius if isinstance(domain, Ball) else 100.0
    return guess / size * (reach * (1 - 1e-6))
