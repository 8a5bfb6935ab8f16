"""Rows whose classes are shared out among processes: what must be exchanged to solve them."""

from __future__ import annotations

import math
import sys
from typing import Any

from uncork.nn._torch import torch
from uncork.nn.transforms.deformed import exp_alpha, on_support, slopes
from uncork.nn.transforms.threshold import Exchange, by_power, entmax_shift, power_level, shifted

Tensor = torch.Tensor

_MOST_STEPS = 128


class Together:
    """Rows of which every process of a group holds some classes."""

    def __init__(self, group: Any, first: int, classes: int) -> None:
        """`first`: the first class of this process; `classes`: how many all have together."""
        self.group, self.first, self.classes = group, first, classes

    def reduced(self, value: Tensor, how: str) -> Tensor:
        value = value.contiguous()
        operation = getattr(torch.distributed.ReduceOp, how)
        torch.distributed.all_reduce(value, operation, group=self.group)
        return value

    def _steep(self, v: Tensor, alpha: float, classes: int) -> tuple[Tensor, Tensor, Tensor]:
        """(s, w, p) of α > 2, w = p^{α−1}."""
        exchange = Exchange(classes, lambda sums: self.reduced(sums, "SUM"))
        c = power_level(v, alpha, exchange)
        p = by_power(v, alpha, c, exchange)
        return 1 / (alpha - 1) - c, p.pow(alpha - 1), p

    def _shift(self, z: Tensor, top: Tensor, alpha: float, classes: int) -> Tensor:
        """s ≥ 0 with Σ exp_α(z − top − s) = 1 over all processes' classes: (R, 1)."""
        v = z - top
        if alpha == 1:
            total = self.reduced(v.exp().sum(-1, keepdim=True), "SUM")
            return torch.where(total == 0, torch.zeros_like(total), total.log())
        # A process's own classes alone give an s that is too small: start from the largest.
        own, own_top = shifted(z)
        least = entmax_shift(own, alpha) + (own_top - top)
        least = torch.where(own.amax(-1, keepdim=True) == -math.inf, 0.0, least)  # it has none
        low = self.reduced(least, "MAX").clamp(min=0)
        bound = -math.expm1(-(alpha - 1) * math.log(classes)) / (alpha - 1)
        tiny = torch.finfo(z.dtype).eps
        high = torch.full_like(low, bound * (1 + 4 * tiny))
        s = low
        # Sums are the same everywhere, so all stop together.
        for _ in range(_MOST_STEPS):
            p = exp_alpha(v - s, alpha)
            w = (1 + (alpha - 1) * (v - s)).clamp(min=0)
            slope = torch.where(w > 0, p / torch.where(w > 0, w, torch.ones_like(w)), 0.0)
            sums = torch.stack([p.sum(-1, keepdim=True), slope.sum(-1, keepdim=True)])
            total, rate = self.reduced(sums, "SUM")
            excess = total - 1
            low = torch.where(excess >= 0, s, low)
            high = torch.where(excess <= 0, s, high)
            done = (excess.abs() <= 4 * tiny) | (high - low <= tiny * high) | excess.isnan()
            if bool(done.all()):
                break
            gain = -torch.expm1(-(alpha - 1) * total.log()) / (alpha - 1)
            step = s + gain * (total / rate)
            inside = (step > low) & (step < high)
            s = torch.where(done, s, torch.where(inside, step, 0.5 * (low + high)))
        return s

    def probabilities(self, z: Tensor, alpha: float) -> Tensor:
        """α-entmax of rows z, this process's part of it."""
        top = self.top(z)
        if alpha > 2:
            return self._steep(z - top, alpha, self.classes)[2]
        return exp_alpha((z - top) - self._shift(z, top, alpha, self.classes), alpha)

    def along_simplex(self, p: Tensor, along: Tensor, alpha: float) -> Tensor:
        """`deformed.along_simplex` of this process's part of the rows."""
        if alpha > 2:
            return self._along_steep(p, along, alpha)
        slope = slopes(p, alpha)
        pushed = slope * along
        sums = torch.stack([pushed.sum(-1, keepdim=True), slope.sum(-1, keepdim=True)])
        total, mass = self.reduced(sums, "SUM")
        return pushed - slope * (total / torch.where(mass == 0, 1.0, mass))  # masked rows

    def _along_steep(self, p: Tensor, along: Tensor, alpha: float) -> Tensor:
        support, safe = on_support(p)
        log = torch.where(support, (2 - alpha) * safe.log(), -torch.inf)
        top, first = log.max(-1, keepdim=True)
        largest = self.reduced(top.clone(), "MAX")
        rank = torch.distributed.get_rank(self.group)
        holder = self.reduced(torch.where(top == largest, rank, sys.maxsize), "MIN")
        at = (torch.arange(p.shape[-1], device=p.device) == first) & (holder == rank) & support
        share = torch.where(support, (log - largest).exp(), 0.0)
        sums = torch.stack([(share * along).sum(-1, keepdim=True), share.sum(-1, keepdim=True)])
        total, mass = self.reduced(sums, "SUM")
        others = support & ~at
        slope = torch.where(others, torch.where(others, safe, 1.0).pow(2 - alpha), 0.0)
        moved = slope * (along - total / torch.where(mass == 0, 1.0, mass))  # masked rows
        rest = self.reduced(moved.sum(-1, keepdim=True), "SUM")
        return torch.where(at, -rest, moved)

    def top(self, z: Tensor) -> Tensor:
        """The largest logit of each row, 0 where all are −inf, NaN where one is NaN or +inf: for
        everybody, not only for who has it. (R, 1)"""
        top = z.amax(-1, keepdim=True)
        # A maximum over processes leaves NaN out.
        top = self.reduced(torch.where(top.isnan(), math.inf, top), "MAX")
        top = torch.where(top == math.inf, math.nan, top)
        return torch.where(top == -math.inf, torch.zeros_like(top), top)

    def predicted(self, z: Tensor) -> Tensor:
        """The class of the largest logit, the first of several: (R)."""
        values, classes = z.max(-1)
        largest = self.reduced(values.clone(), "MAX")
        last = torch.full_like(classes, self.classes)
        own = torch.where(values == largest, classes + self.first, last)
        return self.reduced(own, "MIN").clamp(max=self.classes - 1)
