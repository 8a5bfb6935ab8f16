"""Linear losses on CUDA, a slice of the vocabulary at a time: logits never exist as a whole.

Dense: each slice's logits become p − target in place and go at once into the two products of the
gradients; a slice's weight gradient is final, and what is still to be made of it has room for
logits. α-ReLU needs nothing else: three products in all.

By rows (`linear_whole_rows`): cross entropy, and α-entmax of flat logits, need whole rows before p
is known. Where float32 sums are asked for, a first pass finds the normaliser or the threshold and a
second one over slices makes the gradients: four products.

Sparse (`linear_lists`): while slices pass, each row keeps what may be positive, a short list. One
product, and gradients that read only the rows of the weight that are listed. α-entmax goes this way
unless its lists are long, α-ReLU where a sample of rows shows that they will be short. The host
asks the device how long the lists are: before (α-ReLU) or after the first slice, and at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from uncork.nn._torch import torch
from uncork.nn.kernels.ends import GIVEN, MEAN, ONES, losses_kernel, prepare_kernel
from uncork.nn.kernels.launch import ceiling, launch, on_its_device
from uncork.nn.kernels.math import kind_of, offset_of
from uncork.nn.kernels.residual import logsumexp_kernel, residual_kernel
from uncork.nn.linear_lists import SHARE, Lists
from uncork.nn.linear_parts import (
    add_product,
    block_size,
    narrowed,
    put_logits,
    residual_launch,
    row_stride,
    rows_in,
    slice_width,
    split,
)
from uncork.nn.linear_rows import NOTHING, LinearOptions, LinearResult, LinearTensors, Wanted
from uncork.nn.linear_whole_rows import WholeRows

Tensor = torch.Tensor

MOST_BYTES = 244 << 20  # of logits and float32 sums together
SLICE_BYTES = 112 << 20  # logits in memory at a time; larger slices are no faster
SPARE_BYTES = 512 << 20  # of them in memory that is there anyway
SPARE_STEP = 256
# Features from which on α-ReLU's dense slices have float32 logits: to write and read these takes
# 1/30 of the products' time, and twice that with half as many.
EXACT_FEATURES = 4096
PROBED_ROWS = 32
# Multiplications of a product: below, launches and waiting cost more than products.
SMALL = 2 * 10**11


def compute(
    tensors: LinearTensors,
    upstream: Tensor | None,
    options: LinearOptions,
    wanted: Wanted,
    reduction: str | None = None,
) -> LinearResult:
    """Losses by row, and the gradients wanted; upstream (N): dL/d(loss of a row).

    reduction "mean" or "sum": upstream is what that makes of 1, and the result has the total.
    """
    if upstream is None and reduction is None:
        wanted = NOTHING
    return _compute(tensors.input, tensors, upstream, options, wanted, reduction)


@on_its_device
def _compute(
    x: Tensor,
    tensors: LinearTensors,
    upstream: Tensor | None,
    options: LinearOptions,
    wanted: Wanted,
    reduction: str | None,
) -> LinearResult:
    # Kernels know the strides of logits alone: a column of labels, say, is copied.
    return Head(
        x.contiguous(), tensors.weight.contiguous(), _in_one_piece(tensors.bias), tensors.tau,
        _in_one_piece(tensors.class_weight), tensors.target.contiguous(), _in_one_piece(upstream),
        options, wanted, reduction,
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
        self.flat = False  # most rows have many positive entries, as far as is known
        self.kind = kind_of(options.alpha)
        self.held, self.rest = split(self.bias, self.x.dtype)  # bias inside logits, and beside them
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
        launch(prepare_kernel, ceiling(n, 256), {
            "targets": self.target, "upstream": self.rows if given is None else given,
            "weights": self.rows if weights is None else weights,
            "taus": self.tau if by_tensor else self.rows, "index": self.index,
            "rows_out": self.rows, "sums": self.sums, "n": n, "classes": classes,
            "ignore_index": options.ignore_index, "smoothing": float(options.label_smoothing),
            "smooth": self.smooth, "spread_total": total,
            "tau": 0.0 if by_tensor else float(self.tau), "less": float(options.alpha - 1),
            "extra": 0.0 if self.offset else 1.0,
            "first_top": 0.0 if options.fixed else -float("inf"), "first_shift": self.offset,
            "UPSTREAM": mode.value, "WEIGHTS": weights is not None, "FIXED": options.fixed,
            "TAU_TENSOR": by_tensor, "L": 256, "num_warps": 4,
        })  # fmt: skip

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
            return self.result(*WholeRows(self).gradients())
        if alpha == 1:
            self.find_normaliser()
        elif not fixed:
            WholeRows(self).find_thresholds(SLICE_BYTES)
        return self.result(*self.dense())

    @property
    def small(self) -> bool:
        return len(self.x) * self.weight.numel() < SMALL

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
        block = 256 if reduction is None else 4096
        launch(losses_kernel, ceiling(n, block) if reduction is None else 1, {
            "rows_in": self.rows, "sums": self.sums, "losses": losses, "slopes": slopes, "n": n,
            "offset": self.offset, "alpha": self.options.alpha, "smooth": self.smooth,
            "FIXED": self.options.fixed, "SMOOTH": self.smoothing, "SLOPES": self.wanted.tau,
            "TOTAL": reduction is not None, "MEAN": reduction == "mean", "L": block,
            "num_warps": 4 if reduction is None else 16,
        })  # fmt: skip
        d_tau = None
        if self.wanted.tau:
            assert isinstance(self.tau, Tensor)  # only tensors receive gradients
            d_tau = slopes.sum().reshape(self.tau.shape).to(self.tau.dtype)
        made = (d_input, d_weight, d_bias, d_tau)
        if reduction is None:
            return LinearResult(losses, *made)
        return LinearResult(None, *made, total=losses)

    # --- slices -----------------------------------------------------------------------------

    def slices(self, room: int) -> Iterator[tuple[slice, Tensor]]:
        """Every slice's classes, and a place for their logits (N, width) in `room` bytes."""
        n, classes = len(self.x), self.weight.shape[0]
        width = slice_width(n, classes, self.x.element_size(), room)
        buffer = torch.empty(n * width, dtype=self.x.dtype, device=self.x.device)
        # Products of sizes that are no multiple of 8 are slow: the last few classes go alone.
        even = classes // 8 * 8
        for first, end in pairwise([*range(0, even, width), even, classes]):
            if end > first:
                yield slice(first, end), rows_in(buffer, n, end - first)

    def slices_in(
        self, d_weight: Tensor, dtype: torch.dtype, room: int
    ) -> Iterator[tuple[slice, Tensor]]:
        """The same, with logits of `dtype` at the end of d_weight as long as a slice's own classes
        and more lie before it, which makes for larger slices; then in `room` bytes."""
        n, classes, size = len(self.x), self.weight.shape[0], dtype.itemsize
        row = d_weight.shape[1] * d_weight.element_size()
        even, least = classes // 8 * 8, slice_width(n, classes, size, room)
        spare = d_weight.view(-1)[: d_weight.numel() // 2 * 2].view(dtype)
        buffer, first = None, 0
        while first < classes:
            fits = min(SPARE_BYTES // (n * size), (classes - first) * row // (row + n * size))
            width = (fits // SPARE_STEP - 1) * SPARE_STEP
            if width > least:
                place = spare[-n * row_stride(width) :]
            else:
                width = least
                if buffer is None:
                    buffer = torch.empty(n * width, dtype=dtype, device=self.x.device)
                place = buffer
            end = min(first + width, even) if first < even else classes
            yield slice(first, end), rows_in(place, n, end - first)
            first = end

    def products(self, room: int) -> Iterator[tuple[int, Tensor]]:
        """(first class, logits (N, width)) of every slice."""
        for part, place in self.slices(room):
            self.put_logits(place, part)
            yield part.start, place

    def put_logits(self, out: Tensor, classes: slice) -> None:
        """Logits of some classes, but for the `rest` of the bias."""
        held = None if self.held is None else self.held[classes]
        put_logits(out, self.x, self.weight[classes].t(), held)

    def slice_bytes(self) -> int:
        """Beside float32 sums of the hidden states' gradient. A small problem has few slices: then
        launching them is what takes time."""
        sums = 4 * self.x.numel() if self.wanted.input else 0
        small = self.weight.numel() < 1 << 26
        return min(MOST_BYTES if small else SLICE_BYTES, max(MOST_BYTES - sums, MOST_BYTES // 4))

    def shared(self) -> dict[str, Any]:
        """What every kernel that reads logits is told."""
        return self._added(self.rest)

    def exact(self) -> dict[str, Any]:
        """And those that make logits themselves."""
        return self._added(self.bias)

    def _added(self, bias: Tensor | None) -> dict[str, Any]:
        cap = self.options.softcap
        return {
            "bias": self.x if bias is None else bias,
            "cap": 1.0 if cap is None else cap,
            "BIAS": bias is not None,
            "CAP": cap is not None,
        }

    def smoothed(self) -> dict[str, Any]:
        """And those that see every class."""
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
        room, logits = self.slice_bytes(), self.x.dtype
        if self.options.fixed and self.x.shape[1] >= EXACT_FEATURES:
            logits = torch.float32
        if d_weight is None:
            slices = self.slices(room)
        else:
            slices = self.slices_in(d_weight, logits, room)
        for part, z in slices:
            self.put_logits(z, part)
            r = z if z.dtype == self.x.dtype else narrowed(z, self.x.dtype)
            self.residual(part.start, z, r)
            if d_weight is not None:
                torch.mm(r.t(), self.x, out=d_weight[part])
            if d_input is not None:
                add_product(d_input, r, self.weight[part])
            if d_bias is not None:
                d_bias[part] = r.sum(0, dtype=torch.float32)
        return None if d_input is None else d_input.to(self.x.dtype), d_weight, d_bias

    def residual(self, first: int, z: Tensor, out: Tensor) -> None:
        """Logits z (N, width) of classes first … become p − target, and sums grow. `out` is z once
        more, of the input's type."""
        launch(residual_kernel, z.shape[0], {"begin": 0, **self.residual_arguments(first, z, out)})

    def residual_arguments(self, first: int, z: Tensor, out: Tensor) -> dict[str, Any]:
        """Of `residual_kernel`, but for the row z begins with."""
        width = z.shape[1]
        return {
            "slice_": z, "out": out, "sums": self.sums, "state": self.rows, "targets": self.index,
            "n": self.x.shape[0], "first": first, "width": width, "stride": z.stride(0),
            "stride_out": out.stride(0), "alpha": self.options.alpha, "KIND": self.kind,
            "ODD": width % 16 > 0, "GRADIENT": self.wanted.any, "NARROWS": z.dtype != out.dtype,
            **self.shared(), **self.smoothed(), **residual_launch(width),
        }  # fmt: skip

    def find_normaliser(self) -> None:
        """tops and shifts of softmax: S = log Σ exp z."""
        totals = torch.zeros_like(self.tops)
        for first, products in self.products(SLICE_BYTES):
            width = products.shape[1]
            logsumexp_kernel[(len(products),)](
                products, self.tops, totals, first=first, width=width, stride=products.stride(0),
                ODD=width % 16 > 0, G=4, L=block_size(width // 4, 1024), num_warps=4,
                **self.shared(),
            )  # fmt: skip
        self.tops.masked_fill_(self.tops == -torch.inf, 0.0)
        totals.masked_fill_(totals == 0, 1.0)  # all −inf: every p is 0
        torch.neg(totals.log(), out=self.shifts)
