"""Linear losses on CUDA, a slice of the vocabulary at a time: logits never exist as a whole.

Dense: each slice's logits become p − target in place and go at once into the two products of the
gradients; a slice's weight gradient is final. α-ReLU needs nothing else: three products in all.

By rows: cross entropy, and α-entmax of flat logits, need whole rows before p is known. A block of
rows is then taken at a time, three products again, and the weight's gradient is added up over the
blocks, in its own type. Where float32 is asked for, a pass over slices finds the normaliser and a
second one makes the gradients: four products.

Sparse: while slices pass, each row keeps what may be positive, a short list. One product, and
gradients that read only the rows of the weight that are listed. α-entmax goes this way unless its
lists overflow, α-ReLU where a sample of rows shows that they will be short. The host asks the
device how long the lists are: once before for α-ReLU, twice for α-entmax, and once at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import triton

from uncork.nn._torch import torch
from uncork.nn.kernels._math import kind_of, offset_of
from uncork.nn.kernels.entmax_narrow import WIDEST
from uncork.nn.kernels.entmax_residual import entmax_residual_kernel
from uncork.nn.kernels.logsumexp import logsumexp_kernel
from uncork.nn.kernels.residual import residual_kernel
from uncork.nn.kernels.rows import GIVEN, MEAN, ONES, losses_kernel, prepare_kernel
from uncork.nn.kernels.transforms import STEPS
from uncork.nn.kernels.wide_residual import wide_residual_kernel
from uncork.nn.linear_lists import SHARE, Lists
from uncork.nn.linear_parts import (
    Part,
    accumulate,
    add_product,
    block_rows,
    block_size,
    parts_of,
    row_stride,
    slice_width,
)
from uncork.nn.linear_rows import LinearOptions, LinearResult, Wanted

Tensor = torch.Tensor

MOST_BYTES = 224 << 20  # of logits and float32 sums together
SLICE_BYTES = 112 << 20  # logits in memory at a time; larger slices are no faster
BLOCK_BYTES = {True: 512 << 20, False: 251 << 20}  # logits of whole rows: of softmax, of entmax
PROBED_ROWS = 32
# Multiplications of a product: below, launches and waiting cost more than products.
SMALL = 2 * 10**11
# Wide rows, by whether those in flight stay in the cache: measured on an H200.
LANES = 2048
CACHED_BYTES = 160 << 10
WIDE: dict[bool, dict[str, Any]] = {
    True: {"G": 4, "STAGES": 1, "maxnreg": 128},
    False: {"G": 2, "STAGES": 3, "maxnreg": 64},
}
_TOLERANCE = 4 * 2.0**-23


def compute(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tau: Tensor | float,
    target: Tensor,
    class_weight: Tensor | None,
    upstream: Tensor | None,
    options: LinearOptions,
    wanted: Wanted,
    reduction: str | None = None,
) -> LinearResult:
    """input (N, d), weight (C, d), bias (C), target (N), upstream (N): dL/d(loss of a row).

    reduction "mean" or "sum": upstream is what that makes of 1, and the result has the total.
    """
    if upstream is None and reduction is None:
        wanted = Wanted(False, False, False, False)
    # Kernels know the strides of logits alone: a column of labels, say, is copied.
    return Head(
        input.contiguous(), weight.contiguous(), _in_one_piece(bias), tau,
        _in_one_piece(class_weight), target.contiguous(), _in_one_piece(upstream), options, wanted,
        reduction,
    ).run()  # fmt: skip


def _in_one_piece(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


@dataclass
class Head:
    """One call: its tensors, and the state of its rows."""

    x: Tensor  # (N, d)
    weight: Tensor  # (C, d)
    bias: Tensor | None
    tau: Tensor | float
    class_weight: Tensor | None
    target: Tensor  # (N) int64
    given: Tensor | None  # (N) upstream, also where a row is ignored
    options: LinearOptions
    wanted: Wanted
    reduction: str | None  # where no upstream is given

    def __post_init__(self) -> None:
        n, options, device = len(self.x), self.options, self.x.device
        classes = self.weight.shape[0]
        self.kind = kind_of(options.alpha)
        self.offset = offset_of(options.alpha)  # S = top − c + offset
        self.smooth = options.label_smoothing / classes
        self.index = torch.empty(n, dtype=torch.int64, device=device)  # target, 0 where ignored
        self.rows = torch.empty((9, n), dtype=torch.float32, device=device)
        self.sums = torch.empty((n, 4), dtype=torch.float32, device=device)  # as in `residual`
        weights, given = self.class_weight, self.given
        total = self.rows
        if weights is not None:
            total = self.smooth * weights.float().sum()
        mode = GIVEN if given is not None else MEAN if self.reduction == "mean" else ONES
        by_tensor = isinstance(self.tau, Tensor)
        prepare_kernel[(triton.cdiv(n, 256),)](
            self.target, self.rows if given is None else given,
            self.rows if weights is None else weights, self.tau if by_tensor else self.rows,
            self.index, self.rows, self.sums, n, classes, options.ignore_index,
            options.label_smoothing, self.smooth, total, 0.0 if by_tensor else self.tau,
            options.alpha - 1, 0.0 if self.offset else 1.0,
            0.0 if options.fixed else -float("inf"), self.offset,
            UPSTREAM=mode.value, WEIGHTS=weights is not None, FIXED=options.fixed,
            TAU_TENSOR=by_tensor, L=256, num_warps=4,
        )  # fmt: skip

    # Rows of `rows`, (N) each: mass and hit times upstream, upstream, and p = f((z − top) + shift).

    @property
    def times(self) -> Tensor:
        return self.rows[3]

    @property
    def hits(self) -> Tensor:
        return self.rows[4]

    @property
    def upstream(self) -> Tensor:
        return self.rows[6]

    @property
    def tops(self) -> Tensor:
        return self.rows[7]

    @property
    def shifts(self) -> Tensor:
        return self.rows[8]

    @property
    def smoothing(self) -> bool:
        return self.smooth > 0

    def run(self) -> LinearResult:
        alpha, fixed, cap = self.options.alpha, self.options.fixed, self.options.softcap
        lists = None
        # Adding up in float32 is for gradients.
        by_rows = self.options.float32_accumulation is not True or not self.wanted.any
        if (
            alpha > 1
            and not (self.smoothing and cap is not None)
            and not (self.small and by_rows)
            and self.likely_sparse()
        ):
            lists = Lists.collect(self)
        if lists is not None:
            return self.result(*lists.gradients())
        if by_rows and (self.small or not fixed):
            return self.result(*self.by_rows())
        if alpha == 1:
            self.find_normaliser()
        elif not fixed:
            self.find_thresholds()
        return self.result(*self.dense())

    @property
    def small(self) -> bool:
        return len(self.x) * self.weight.numel() < SMALL

    @property
    def in_registers(self) -> bool:
        """Whole rows in one kernel: normaliser or threshold, and residual."""
        return self.weight.shape[0] <= WIDEST and self.kind in (1, 2, 15)

    def likely_sparse(self) -> bool:
        """Whether lists of α-ReLU would be short, by a few rows; α-entmax finds out on the way."""
        if not self.options.fixed:
            return True
        sample = self.x[:: max(1, len(self.x) // PROBED_ROWS)][:PROBED_ROWS]
        z = torch.mm(sample, self.weight.t())
        if self.bias is not None:
            z = z + self.bias
        if self.options.softcap is not None:
            z = self.options.softcap * torch.tanh(z / self.options.softcap)
        tau = self.tau.to(z.dtype) if isinstance(self.tau, Tensor) else self.tau
        positive = z > tau / (self.options.alpha - 1)
        share = int(torch.count_nonzero(positive)) / z.numel()
        return share * self.weight.shape[0] < max(8.0, SHARE * self.weight.shape[0])

    def result(
        self, d_input: Tensor | None, d_weight: Tensor | None, d_bias: Tensor | None
    ) -> LinearResult:
        n, device, reduction = len(self.x), self.x.device, self.reduction
        losses = torch.empty(n if reduction is None else (), dtype=torch.float32, device=device)
        slopes = losses
        if self.wanted.tau:
            slopes = torch.empty(n, dtype=torch.float32, device=device)
        block = 256 if reduction is None else 1024
        losses_kernel[(triton.cdiv(n, block) if reduction is None else 1,)](
            self.rows, self.sums, losses, slopes, n, self.offset, self.options.alpha, self.smooth,
            FIXED=self.options.fixed, SMOOTH=self.smoothing, SLOPES=self.wanted.tau,
            TOTAL=reduction is not None, MEAN=reduction == "mean", L=block, num_warps=4,
        )  # fmt: skip
        d_tau = None
        if self.wanted.tau:
            assert isinstance(self.tau, Tensor)  # only tensors receive gradients
            d_tau = slopes.sum().reshape(self.tau.shape).to(self.tau.dtype)
        made = (d_input, d_weight, d_bias, d_tau)
        if reduction is None:
            return LinearResult(losses, *made)
        return LinearResult(None, *made, total=losses)

    # --- slices -----------------------------------------------------------------------------

    def slices(self, room: int) -> Iterator[tuple[int, Tensor]]:
        """(first class, products (N, width)) of every slice, in one buffer of `room` bytes."""
        n, classes = len(self.x), self.weight.shape[0]
        width = slice_width(n, classes, self.x.element_size(), room)
        buffer = torch.empty(n * width, dtype=self.x.dtype, device=self.x.device)
        # Products of sizes that are no multiple of 8 are slow: the last few classes go alone.
        even = classes // 8 * 8
        edges = [*range(0, even, width), even, classes]
        for first, end in pairwise(edges):
            size = end - first
            if not size:
                continue
            stride = row_stride(size)
            products = buffer[: n * stride].view(n, stride)[:, :size]
            torch.mm(self.x, self.weight[first : first + size].t(), out=products)
            yield first, products

    def slice_bytes(self) -> int:
        """Beside float32 sums of the hidden states' gradient. A small problem has few slices: then
        launching them is what takes time."""
        sums = 4 * self.x.numel() if self.wanted.input else 0
        small = self.weight.numel() < 1 << 26
        return min(MOST_BYTES if small else SLICE_BYTES, max(MOST_BYTES - sums, MOST_BYTES // 4))

    def _shared(self) -> dict[str, Any]:
        cap = self.options.softcap
        return {
            "bias": self.x if self.bias is None else self.bias,
            "cap": 1.0 if cap is None else cap,
            "BIAS": self.bias is not None,
            "CAP": cap is not None,
        }

    def _smoothed(self) -> dict[str, Any]:
        """Of the kernels that see every class."""
        weights = self.class_weight
        return {
            "weights": self.x if weights is None else weights,
            "SMOOTH": self.smoothing,
            "WEIGHTS": weights is not None,
        }

    # --- dense ------------------------------------------------------------------------------

    def dense(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """p − target slice by slice, and from it the gradients."""
        self.sums.zero_()
        wanted = self.wanted
        d_weight = torch.empty_like(self.weight) if wanted.weight else None
        d_bias = None
        if wanted.bias and self.bias is not None:
            d_bias = torch.empty_like(self.bias)
        d_input = None
        if wanted.input:
            wide = self.x.dtype if self.options.float32_accumulation is False else torch.float32
            d_input = torch.zeros_like(self.x, dtype=wide)
        for first, products in self.slices(self.slice_bytes()):
            width = products.shape[1]
            self.residual(first, products, 0)
            part = slice(first, first + width)
            if d_weight is not None:
                torch.mm(products.t(), self.x, out=d_weight[part])
            if d_input is not None:
                accumulate(d_input, products, self.weight[part])
            if d_bias is not None:
                d_bias[part] = products.sum(0, dtype=torch.float32)
        return None if d_input is None else d_input.to(self.x.dtype), d_weight, d_bias

    def residual(self, first: int, products: Tensor, begin: int) -> None:
        """products (of rows begin …, for classes first …) become p − target, and sums grow."""
        width = products.shape[1]
        long = width > 16384
        residual_kernel[(len(products),)](
            products, self.sums, self.rows, self.index, n=len(self.x), begin=begin, first=first,
            width=width, stride=products.stride(0),
            alpha=self.options.alpha, ODD=width % 16 > 0,
            KIND=self.kind, GRADIENT=self.wanted.any, L=block_size(width, 4096 if long else 2048),
            num_warps=8 if long else 4, **self._shared(), **self._smoothed(),
        )  # fmt: skip

    def find_normaliser(self) -> None:
        """tops and shifts of softmax: S = log Σ exp z."""
        totals = torch.zeros_like(self.tops)
        for first, products in self.slices(SLICE_BYTES):
            width = products.shape[1]
            logsumexp_kernel[(len(products),)](
                products, self.tops, totals, first=first, width=width, stride=products.stride(0),
                ODD=width % 16 > 0, G=4, L=block_size(width // 4, 1024), num_warps=4,
                **self._shared(),
            )  # fmt: skip
        self.tops.masked_fill_(self.tops == -torch.inf, 0.0)
        totals.masked_fill_(totals == 0, 1.0)  # all −inf: every p is 0
        torch.neg(totals.log(), out=self.shifts)

    def by_rows(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The same for blocks of whole rows, whose normaliser or threshold is found on the way."""
        wanted, classes, n = self.wanted, self.weight.shape[0], len(self.x)
        softmax = self.options.alpha == 1
        stride = row_stride(classes)
        step = block_rows(n, BLOCK_BYTES[softmax] // (stride * self.x.element_size()))
        buffer = torch.empty((step, stride), dtype=self.x.dtype, device=self.x.device)
        d_input = torch.empty_like(self.x) if wanted.input else None
        d_weight = torch.empty_like(self.weight) if wanted.weight else None
        d_bias = None
        if wanted.bias and self.bias is not None:
            d_bias = torch.zeros(classes, dtype=torch.float32, device=self.x.device)
        # Nothing made below leaves: without what autograd notes of every view and product, they are
        # launched sooner, and a small problem waits for that.
        with torch.inference_mode():
            self._row_blocks(buffer, step, d_input, d_weight, d_bias)
        if d_bias is not None and self.bias is not None:
            d_bias = d_bias.to(self.bias.dtype)
        return d_input, d_weight, d_bias

    def _row_blocks(
        self,
        buffer: Tensor,
        step: int,
        d_input: Tensor | None,
        d_weight: Tensor | None,
        d_bias: Tensor | None,
    ) -> None:
        """Block after block of `step` rows in `buffer`, the gradients written or added to."""
        wanted, classes = self.wanted, self.weight.shape[0]
        parts = [
            Part(c, self.weight[c], self.weight[c].t(), None if d_weight is None else d_weight[c])
            for c in parts_of(classes)
        ]
        products = buffer[:, :classes]
        inputs = self.x.split(step)
        pulled = [None] * len(inputs) if d_input is None else d_input.split(step)
        for block, (x, d_x) in enumerate(zip(inputs, pulled, strict=True)):
            start = block * step
            if len(x) < step:
                products = products[: len(x)]
            for part in parts:
                z = products if len(parts) == 1 else products[:, part.classes]
                torch.mm(x, part.transposed, out=z)
            if self.options.fixed:
                self.residual(0, products, start)
            else:
                self.row_residual(products, start, wanted.any)
            if not wanted.any:
                continue
            for part in parts:
                r = products if len(parts) == 1 else products[:, part.classes]
                if part.gradient is not None:
                    add_product(part.gradient, r.t(), x, start > 0)
                if d_x is not None:
                    add_product(d_x, r, part.weight, part.classes.start > 0)
            if d_bias is not None:
                d_bias += products.sum(0, dtype=torch.float32)

    def row_residual(self, products: Tensor, begin: int, gradient: bool) -> None:
        """`residual` of whole rows, with their threshold or normaliser found on the way."""
        kernel = entmax_residual_kernel if self.in_registers else wide_residual_kernel
        kernel[(len(products),)](
            products, self.sums, self.rows, self.index, begin=begin, stride=products.stride(0),
            GRADIENT=gradient, **self._of_rows,
        )  # fmt: skip

    @cached_property
    def _of_rows(self) -> dict[str, Any]:
        """What all blocks of rows share: put together once."""
        width, alpha = self.weight.shape[0], self.options.alpha
        shared = {
            "n": len(self.x), "width": width, "alpha": alpha, "tolerance": _TOLERANCE,
            "KIND": self.kind, "BRACKET": alpha > 2, "STEPS": STEPS, "ODD": width % 16 > 0,
            **self._shared(), **self._smoothed(),
        }  # fmt: skip
        if not self.in_registers:
            lanes = block_size(triton.cdiv(width, 4), LANES)
            cached = width * self.x.element_size() <= CACHED_BYTES
            return shared | {"L": lanes, "num_warps": max(1, lanes // 256)} | WIDE[cached]
        block = max(32, triton.next_power_of_2(width))
        warps = min(16, max(1, block // 512))
        lanes = min(block, warps * 32 * (16 // self.x.element_size()))  # 16 bytes a thread
        return shared | {"G": block // lanes, "L": lanes, "num_warps": warps}

    def find_thresholds(self) -> None:
        """tops and shifts of α-entmax for rows too flat for lists: whole rows, some at a time."""
        classes = self.weight.shape[0]
        stride = row_stride(classes)
        step = max(1, SLICE_BYTES // (stride * self.x.element_size()))
        buffer = torch.empty((step, stride), dtype=self.x.dtype, device=self.x.device)
        for start in range(0, len(self.x), step):
            x = self.x[start : start + step]
            products = buffer[: len(x), :classes]
            for part in parts_of(classes):
                torch.mm(x, self.weight[part].t(), out=products[:, part])
            self.row_residual(products, start, gradient=False)
