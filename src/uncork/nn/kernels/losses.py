"""Launching the kernels of the losses of logits."""

from __future__ import annotations

from uncork.nn._torch import torch
from uncork.nn.kernels import ceiling, on_its_device, power_of_two
from uncork.nn.kernels._math import kind_of
from uncork.nn.kernels.alpha_relu_loss import alpha_relu_loss_kernel
from uncork.nn.kernels.loss_backward import loss_backward_kernel, narrow_loss_backward_kernel
from uncork.nn.kernels.reduce import reduce_kernel
from uncork.nn.kernels.transforms import alignment, as_rows, solve_rows

Tensor = torch.Tensor

_TILE = 2048


@on_its_device
def entmax_losses(
    z: Tensor, target: Tensor, ignore_index: int, alpha: float
) -> tuple[Tensor, Tensor]:
    """(losses (N) float32, p like z) of rows z (N, n) against classes (N)."""
    p = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    losses = torch.empty(len(z), dtype=torch.float32, device=z.device)
    solve_rows(z, alpha, p, losses, target, ignore_index)
    return losses, p


@on_its_device
def alpha_relu_losses(
    z: Tensor, target: Tensor, ignore_index: int, alpha: float, tau: float
) -> tuple[Tensor, Tensor]:
    """(losses (N) float32, p like z) of rows z (N, n) against classes (N)."""
    n = z.shape[-1]
    rows = as_rows(z)
    p = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    losses = torch.empty(len(z), dtype=torch.float32, device=z.device)
    lanes = min(4096, max(32, power_of_two(n)))
    alpha_relu_loss_kernel[(len(rows),)](
        rows, p, losses, target, n, rows.stride(0), n, alpha, tau, ignore_index,
        KIND=kind_of(alpha), L=lanes, ALIGN=alignment(rows, p),
        num_warps=min(8, max(1, lanes // 512)),
    )  # fmt: skip
    return losses, p


@on_its_device
def reduced(losses: Tensor, target: Tensor, ignore_index: int, mean: bool) -> tuple[Tensor, Tensor]:
    """(total (), share ()): the mean or sum of losses (N), and what a row that counts has in it."""
    total, share = losses.new_empty(()), losses.new_empty(())
    reduce_kernel[(1,)](
        losses, target, total, share, len(losses), ignore_index, MEAN=mean, L=2048, num_warps=8
    )
    return total, share


@on_its_device
def loss_backward(
    p: Tensor, target: Tensor, grad: Tensor, share: Tensor | None, ignore_index: int
) -> Tensor:
    """upstream · (p − e_target) like p (N, n): upstream is grad (N), or for every row grad · share
    where there is a share ()."""
    rows, n = p.shape
    out = torch.empty_like(p)
    kernel, grid, lanes = loss_backward_kernel, ceiling(p.numel(), _TILE), _TILE
    if n < _TILE:
        kernel, grid, lanes = narrow_loss_backward_kernel, rows, max(32, power_of_two(n))
    kernel[(grid,)](
        p, out, target, grad.contiguous(), grad if share is None else share, n, rows, p.numel(),
        ignore_index, BY_ROW=share is None, L=lanes, num_warps=min(4, max(1, lanes // 256)),
    )  # fmt: skip
    return out
