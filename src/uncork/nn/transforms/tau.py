"""τ for α-ReLU: measured on data, or computed from the head's shape.

α-ReLU is α-entmax with the threshold fixed. A good value to fix is the threshold α-entmax itself
would choose, on average, at the start of training (Tezekbayev et al. 2022, Sec. 3 and App. B.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn import functional as F
from uncork.nn._rows import check_parameter, check_tensor
from uncork.nn._torch import torch
from uncork.nn.modules import AlphaReLU, AlphaReLULoss
from uncork.nn.transforms.shape import tau_from_shape as tau_from_shape

Tensor = torch.Tensor


class TauMeter:
    """The average α-entmax threshold over batches of logits, one batch at a time.

    Sums stay on the logits' device: only :meth:`value` waits for them.
    """

    def __init__(self, alpha: float = 1.5, dim: int = -1) -> None:
        self.alpha, self.dim = check_parameter(alpha, above=1.0), dim
        self._total: Tensor | None = None
        self._spoilt: Tensor | None = None
        self._count: Tensor | None = None

    @torch.no_grad()
    def update(self, logits: Tensor, mask: Tensor | None = None) -> TauMeter:
        """Take in a batch. `mask` (the rows' shape) is True, or 1, for the rows that count."""
        check_tensor("logits", logits)
        wide = logits.detach()
        wide = wide if wide.dtype == torch.float64 else wide.float()
        tau = F.entmax(wide, self.alpha, self.dim, return_support=True).tau.squeeze(self.dim)
        counts = tau.isfinite()  # a row that is masked entirely has no threshold
        if mask is not None:
            if mask.shape != counts.shape:
                raise UncorkError(
                    f"mask must have the shape of the rows, {tuple(counts.shape)}, got "
                    f"{tuple(mask.shape)}"
                )
            counts = counts & mask.to(counts)  # an attention mask is of integers
        spoilt = wide.isnan().any(self.dim)
        if mask is not None:
            spoilt = spoilt & mask.to(spoilt)
        self._spoilt = spoilt.sum() if self._spoilt is None else self._spoilt + spoilt.sum()
        total = torch.where(counts, tau, torch.zeros_like(tau)).double().sum()
        count = counts.sum()
        self._total = total if self._total is None else self._total + total
        self._count = count if self._count is None else self._count + count
        return self

    def value(self) -> float:
        """The average so far. Rows with NaN that were not masked are an error: what made them
        would be hidden by leaving them out."""
        if self._spoilt is not None and int(self._spoilt):
            raise UncorkError(
                f"{int(self._spoilt):,} rows of logits hold NaN: mask them, or mend what made them"
            )
        if self._total is None or self._count is None or int(self._count) == 0:
            raise UncorkError("no rows of logits to average a threshold over")
        return float(self._total) / int(self._count)


def tau_from_data(
    logits: Tensor | Iterable[Tensor],
    alpha: float = 1.5,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
) -> float:
    """The average α-entmax threshold of logits: τ to give α-ReLU.

    Use the logits of a first batch through the untrained model.

    Args:
        logits: (..., C) with classes along `dim`, or an iterable of such batches, consumed one by
            one and not kept.
        alpha: > 1.
        mask: rows that count, for a single tensor (padding is False).
    """
    meter = TauMeter(alpha, dim)
    if isinstance(logits, Tensor):
        return meter.update(logits, mask).value()
    if mask is not None:
        raise UncorkError("mask goes with one tensor of logits; use TauMeter.update for batches")
    for batch in logits:
        meter.update(batch)
    return meter.value()


def calibrate_tau(
    model: torch.nn.Module,
    *batch: Any,
    criterion: torch.nn.Module | None = None,
    dim: int = -1,
    logits_of: Callable[[Any], Tensor] | None = None,
    **inputs: Any,
) -> float:
    """Set τ on a model (and its loss) from its first batch; returns the value set.

    Runs `model(*batch, **inputs)` once without gradient. Every :class:`AlphaReLU` inside the model
    receives the average threshold of the logits that reach it. If there is none, or a `criterion`
    is given, the model's output is taken as logits with classes along `dim` (`.logits` where the
    output has it, or what `logits_of` picks), and `criterion.tau` is set from them.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, AlphaReLU | AlphaReLULoss)]
    if not layers and criterion is None:
        raise UncorkError(
            "the model holds no uncork.nn.AlphaReLU and no criterion with a tau was given: "
            "pass criterion=AlphaReLULoss(...)"
        )
    values: list[float] = []

    def measure(layer: Any, arguments: tuple[Any, ...]) -> None:
        values.append(_set(layer, arguments[0], layer.class_dim))

    if criterion is not None and not isinstance(getattr(criterion, "tau", None), Tensor):
        raise UncorkError(f"{type(criterion).__name__} has no tau to set: give an AlphaReLULoss")
    hooks = [layer.register_forward_pre_hook(measure) for layer in layers]
    try:
        with torch.no_grad():
            output = model(*batch, **inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if criterion is not None:
        if logits_of is not None:
            output = logits_of(output)
        logits = getattr(output, "logits", output)
        if not isinstance(logits, Tensor):
            raise UncorkError(
                f"the model's output is not logits but {type(logits).__name__}: give logits_of, "
                "and no labels to a model whose loss is fused"
            )
        values.append(_set(criterion, logits, dim))
    if not values:
        raise UncorkError("the model's AlphaReLU layers were not called by this batch")
    return values[-1]


def _set(layer: Any, logits: Tensor, dim: int) -> float:
    alpha = layer.alpha if not isinstance(layer.alpha, Tensor) else float(layer.alpha.mean())
    if logits.dim() == 1:
        dim = -1
    value = tau_from_data(logits, alpha, dim)
    if not math.isfinite(value):
        raise UncorkError(f"the average threshold of these logits is {value}")
    with torch.no_grad():
        layer.tau.fill_(value)
    return value
