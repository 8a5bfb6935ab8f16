"""Linear losses on CUDA: logits never exist as a whole.

Slices of the vocabulary (`Call.dense`): each slice's logits become p − target in place and go at
once into the two products of the gradients; a slice's weight gradient is final, and what is still
to be made of it has room for logits. α-ReLU needs nothing else: three products in all.

Whole rows (`WholeRows`): cross entropy, and α-entmax of flat logits, need all of a row's logits
before p is known. Where float32 sums are asked for, a first pass finds the normaliser or the
threshold and a second one over slices makes the gradients: four products.

Lists (`Lists`): while slices pass, each row keeps what may be positive, a short list. One product,
and gradients that read only the rows of the weight that are listed. α-entmax goes this way unless
its lists are long, α-ReLU where a sample of rows shows that they will be short. The host asks the
device how long the lists are: before (α-ReLU) or after the first slice, and at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from uncork.nn._torch import torch
from uncork.nn.kernels.ends import GIVEN, MEAN, ONES, add, losses_kernel, prepare_kernel
from uncork.nn.kernels.entmax import WIDEST
from uncork.nn.kernels.launch import Repeated, ceiling, launch, on_its_device, power_of_two
from uncork.nn.kernels.lists import (
    candidates_kernel,
    flatten_kernel,
    gathered_sum_kernel,
    refine_kernel,
    sparse_rows_kernel,
)
from uncork.nn.kernels.math import STEPS, kind_of, offset_of
from uncork.nn.kernels.residual import (
    entmax_residual_kernel,
    exact_residual_kernel,
    logsumexp_kernel,
    refined_rows_kernel,
    residual_kernel,
    wide_residual_kernel,
)
from uncork.nn.linear.problem import NOTHING, LinearOptions, LinearResult, LinearTensors, Wanted

Tensor = torch.Tensor

_TOLERANCE = 4 * 2.0**-23  # of a threshold's search
# Twice how far a product of this type may be off, as a share of its size.
ROUNDING = {torch.float32: 1e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
ASIDE_BYTES = 32 << 20  # of logits, before they are put in their place

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
    extra: Tensor | None = None,
) -> LinearResult:
    """Losses by row, and the gradients wanted; upstream (N): dL/d(loss of a row), extra (N):
    dL/d(its Ω*).

    reduction "mean" or "sum": upstream is what that makes of 1, and the result has the total.
    """
    if upstream is None and reduction is None:
        wanted = NOTHING
    if options.z_loss and wanted.any and upstream is not None:
        # d(ζ Ω*²) is 2ζ Ω* dΩ*: known only after a pass of its own.
        first = replace(options, z_loss=0.0, lse=True, predictions=False)
        values = _compute(tensors.input, tensors, None, first, NOTHING, None, None).lse
        assert values is not None
        more = 2 * options.z_loss * values * upstream
        extra = more if extra is None else extra + more
    return _compute(tensors.input, tensors, upstream, options, wanted, reduction, extra)


@on_its_device
def _compute(
    x: Tensor,
    tensors: LinearTensors,
    upstream: Tensor | None,
    options: LinearOptions,
    wanted: Wanted,
    reduction: str | None,
    extra: Tensor | None,
) -> LinearResult:
    # Kernels know the strides of logits alone: a column of labels, say, is copied.
    return Call(
        x.contiguous(), tensors.weight.contiguous(), _in_one_piece(tensors.bias), tensors.tau,
        _in_one_piece(tensors.class_weight), tensors.target.contiguous(), _in_one_piece(upstream),
        options, wanted, reduction, extra,
    ).run()  # fmt: skip


def _in_one_piece(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


@dataclass
class Call:
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
    extra: Tensor | None = None  # (N) upstream of Ω*
    best: tuple[Tensor, Tensor] | None = None  # largest logit so far and its class, (N) each

    def __post_init__(self) -> None:
        n, options, device = len(self.x), self.options, self.x.device
        classes = self.weight.shape[0]
        self.alpha, self.fixed = options.alpha, options.fixed
        self.flat = False  # most rows have many positive entries, as far as is known
        self.kind = kind_of(self.alpha)
        self.held, self.rest = split(self.bias, self.x.dtype)  # bias inside logits, and beside them
        self.offset = offset_of(self.alpha)  # S = top − c + offset
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
            "tau": 0.0 if by_tensor else float(self.tau), "less": float(self.alpha - 1),
            "extra": 0.0 if self.offset else 1.0,
            "first_top": 0.0 if self.fixed else -float("inf"), "first_shift": self.offset,
            "UPSTREAM": mode.value, "WEIGHTS": weights is not None, "FIXED": self.fixed,
            "TAU_TENSOR": by_tensor, "L": 256, "num_warps": 4,
        })  # fmt: skip
        if self.extra is not None:
            self.times.add_(torch.where(self.counted, self.extra, 0.0))
        if options.predictions:
            self.best = (
                torch.full((n,), -torch.inf, device=device),
                torch.zeros(n, dtype=torch.int64, device=device),
            )

    # Rows of `rows`, (N) each: mass and hit times upstream, upstream, and p = f((z − top) + shift).

    @property
    def counted(self) -> Tensor:
        return self.rows[0] > 0

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
        alpha, fixed, cap = self.alpha, self.fixed, self.options.softcap
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
        if not self.fixed:
            return True
        sample = self.x[:: max(1, len(self.x) // PROBED_ROWS)][:PROBED_ROWS]
        z = torch.mm(sample, self.weight.t())
        if self.bias is not None:
            z = z + self.bias
        if self.options.softcap is not None:
            z = self.options.softcap * torch.tanh(z / self.options.softcap)
        tau = self.tau.to(z.dtype) if isinstance(self.tau, Tensor) else self.tau
        positive = z > tau / (self.alpha - 1)
        share = int(torch.count_nonzero(positive)) / z.numel()
        return share * self.weight.shape[0] < max(8.0, SHARE * self.weight.shape[0])

    def result(
        self, d_input: Tensor | None, d_weight: Tensor | None, d_bias: Tensor | None
    ) -> LinearResult:
        n, device, reduction, options = len(self.x), self.x.device, self.reduction, self.options
        losses = torch.empty(n if reduction is None else (), dtype=torch.float32, device=device)
        slopes = losses
        if self.wanted.tau:
            slopes = torch.empty(n, dtype=torch.float32, device=device)
        block = 256 if reduction is None else 4096
        launch(losses_kernel, ceiling(n, block) if reduction is None else 1, {
            "rows_in": self.rows, "sums": self.sums, "losses": losses, "slopes": slopes, "n": n,
            "offset": self.offset, "alpha": self.alpha, "smooth": self.smooth,
            "FIXED": self.fixed, "SMOOTH": self.smoothing, "SLOPES": self.wanted.tau,
            "TOTAL": reduction is not None, "MEAN": reduction == "mean", "L": block,
            "num_warps": 4 if reduction is None else 16,
        })  # fmt: skip
        d_tau = None
        if self.wanted.tau:
            assert isinstance(self.tau, Tensor)  # only tensors receive gradients
            if self.extra is not None:
                beside = torch.where(self.counted, self.extra, 0.0)
                slopes = slopes + beside * (1 - self.sums[:, 1]) / (self.alpha - 1)
            d_tau = slopes.sum().reshape(self.tau.shape).to(self.tau.dtype)
        made = (d_input, d_weight, d_bias, d_tau)
        predicted = None if self.best is None else self.best[1]
        if reduction is not None:
            return LinearResult(None, *made, total=losses, predicted=predicted)
        if not (options.lse or options.z_loss):
            return LinearResult(losses, *made, predicted=predicted)
        # Ω*(z) as `losses_kernel` has it
        value = (self.tops - self.shifts + self.offset) + (self.sums[:, 0] - 1) / self.alpha
        value = torch.where(self.counted, value, 0.0)
        if options.z_loss:
            losses = losses + options.z_loss * value.square()
        return LinearResult(losses, *made, lse=value if options.lse else None, predicted=predicted)

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
        self.note_largest(out, slice(None), classes.start)

    def note_largest(self, products: Tensor, rows: slice, first: int) -> None:
        """Of some rows' logits of classes `first` …, where predictions are asked for."""
        if self.best is None:
            return
        width = products.shape[1]
        if self.rest is not None:
            products = products + self.rest[first : first + width]
        values, classes = products.max(-1)
        largest, of_class = (kept[rows] for kept in self.best)
        higher = values > largest  # the cap changes no order
        of_class.copy_(torch.where(higher, classes + first, of_class))
        largest.copy_(torch.where(higher, values.to(largest.dtype), largest))

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
        if self.fixed and self.x.shape[1] >= EXACT_FEATURES:
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
            "stride_out": out.stride(0), "alpha": self.alpha, "KIND": self.kind,
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


# --- whole rows -----------------------------------------------------------------------------------
#
# A block's logits become p − target in place, normaliser or threshold found on the way, and go into
# the two products of the gradients: three products, with the weight's gradient added up over the
# blocks. Small problems of α-ReLU go this way too: it has the fewest launches.
#
# What a 16-bit product rounds away counts where few classes of a row are positive: unless all rows
# are known to be flat, those that are not are made again from float32 logits of these classes
# (`kernels.refined_rows`).

BLOCK_BYTES = {True: 512 << 20, False: 252 << 20}  # logits in memory at a time: of softmax, others
LONGEST_REFINED = 128  # classes of a row whose logits are made again
# Blocks whose products for the weight's gradient are added up in 16 bits, of softmax and others:
# each rounds the sum once more. Of more blocks the sums are exact, where they leave a third of the
# room.
ROUNDED_BLOCKS = {True: 4, False: 2}
# Rows too wide for registers, by whether those in flight stay in the cache: measured on an H200.
LANES = 2048
CACHED_BYTES = 160 << 10
WIDE: dict[bool, dict[str, Any]] = {
    True: {"G": 4, "STAGES": 1, "maxnreg": 128},
    False: {"G": 2, "STAGES": 3, "maxnreg": 64},
}


class Marked(NamedTuple):
    """Which classes of a block's rows may be positive, and room to list them: see
    `kernels.refined_rows`."""

    marks: Tensor  #: (rows, words, lanes), a bit for each tile of a row
    classes: Tensor  #: (rows, K) int32
    values: Tensor  #: (rows, K) float32


class WholeRows:
    """The rows of one call, as blocks."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.classes = call.weight.shape[0]
        rounded = call.alpha > 1 and call.x.dtype != torch.float32
        self.refines = rounded and not call.flat
        self.longest = min(LONGEST_REFINED, power_of_two(self.classes))

    def gradients(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Those wanted, of input, weight and bias; the call's sums are filled."""
        call, wanted = self.call, self.call.wanted
        step, exact = self._plan()
        d_input = torch.empty_like(call.x) if wanted.input else None
        d_weight = torch.empty_like(call.weight) if wanted.weight else None
        d_bias = None
        if wanted.bias and call.bias is not None:
            d_bias = torch.zeros(self.classes, dtype=torch.float32, device=call.x.device)
        # Nothing made below leaves: without what autograd notes of every view and product, they are
        # launched sooner, and a small problem waits for that.
        with torch.inference_mode():
            sums = None
            if d_weight is not None:
                sums = WeightSums(d_weight, ceiling(call.x.shape[0], step), exact)
            self._blocks(step, d_input, sums, d_bias)
            if sums is not None:
                sums.finish()
        if d_bias is not None and call.bias is not None:
            d_bias = d_bias.to(call.bias.dtype)
        return d_input, d_weight, d_bias

    def _plan(self) -> tuple[int, bool]:
        """Rows of a block, and whether sums over blocks are exact."""
        call, rows, softmax = self.call, self.call.x.shape[0], self.call.alpha == 1
        room = BLOCK_BYTES[softmax]
        step = block_rows(rows, self._rows_in(room))
        few = rows <= ROUNDED_BLOCKS[softmax] * step
        wide = call.weight.dtype == torch.float32 or call.options.float32_accumulation is False
        extra = extra_bytes(call.weight)
        if not call.wanted.weight or few or wide or 3 * extra > 2 * room:
            return step, False
        return block_rows(rows, self._rows_in(room - extra)), True

    def _blocks(
        self,
        step: int,
        d_input: Tensor | None,
        sums: WeightSums | None,
        d_bias: Tensor | None,
    ) -> None:
        """Blocks of `step` rows one after the other, the gradients written or added to."""
        call, wanted = self.call, self.call.wanted
        products = self._buffer(step)[:, : self.classes]
        launches = self._launches(products, wanted.any)
        rows = call.x.shape[0]
        parts = cut(call.weight, call.held)
        for number, start in enumerate(range(0, rows, step)):
            block = slice(start, start + step)
            x, d_x = call.x[block], None if d_input is None else d_input[block]
            if start + step > rows:
                products = products[: rows - start]
            for part in parts:
                z = products if len(parts) == 1 else products[:, part.classes]
                put_logits(z, x, part.transposed, part.bias)
                call.note_largest(z, block, part.classes.start)
            for kernel in launches:
                kernel(products.shape[0], start)
            if not wanted.any:
                continue
            for part in parts:
                r = products if len(parts) == 1 else products[:, part.classes]
                if sums is not None:
                    total = sums.place(number)
                    total = total if len(parts) == 1 else total[part.classes]
                    add_product(total, r.t(), x, sums.begun(number))
                if d_x is not None:
                    add_product(d_x, r, part.weight, part.classes.start > 0)
            if d_bias is not None:
                d_bias += products.sum(0, dtype=torch.float32)

    def find_thresholds(self, room: int) -> None:
        """tops and shifts of α-entmax alone, with `room` bytes of logits."""
        call, rows, step = self.call, self.call.x.shape[0], max(1, self._rows_in(room))
        products = self._buffer(step)[:, : self.classes]
        search = self._search(products, None, gradient=False)
        for start in range(0, rows, step):
            x = call.x[start : start + step]
            for part in cut(call.weight, call.held):
                z = products[: x.shape[0], part.classes]
                put_logits(z, x, part.transposed, part.bias)
            search(x.shape[0], start)

    def _rows_in(self, room: int) -> int:
        """Rows of logits, and of lists beside them, in so many bytes."""
        row = row_stride(self.classes) * self.call.x.element_size()
        if self.refines:
            row += 8 * self.longest + self._words * self._lanes * self._bits // 8
        return room // row

    def _buffer(self, rows: int) -> Tensor:
        x = self.call.x
        return torch.empty((rows, row_stride(self.classes)), dtype=x.dtype, device=x.device)

    def _marked(self, rows: int) -> Marked:
        device = self.call.x.device
        dtype = {8: torch.uint8, 16: torch.int16, 32: torch.int32}[self._bits]
        return Marked(
            torch.empty((rows, self._words, self._lanes), dtype=dtype, device=device),
            torch.empty((rows, self.longest), dtype=torch.int32, device=device),
            torch.empty((rows, self.longest), dtype=torch.float32, device=device),
        )

    def _launches(self, products: Tensor, gradient: bool) -> list[Repeated]:
        """What makes p − target of a block of products, threshold or normaliser found on the way:
        kernels that are told the block's first row."""
        call = self.call
        marked = self._marked(products.shape[0]) if self.refines else None
        if not call.fixed:
            search = self._search(products, marked, gradient)
            return [search] if marked is None else [search, self._refinement(products, marked)]
        if marked is None:
            return [Repeated(residual_kernel, call.residual_arguments(0, products, products))]
        return [self._refinement(products, marked)]

    def _search(self, products: Tensor, marked: Marked | None, gradient: bool) -> Repeated:
        """Threshold or normaliser of every row, and p − target with it."""
        call, width = self.call, self.classes
        arguments = self._shared(products) | {
            "marks": call.index if marked is None else marked.marks, "width": width,
            "slack": ROUNDING[call.x.dtype], "ODD": width % 16 > 0, "L": self._lanes,
            "GRADIENT": gradient, "MARK": marked is not None,
        }  # fmt: skip
        size = call.x.element_size()
        if self._in_registers:
            warps = max(1, self._lanes * size // 512)
            arguments |= {"G": self._tile[1], "num_warps": warps}
            return Repeated(entmax_residual_kernel, arguments)
        arguments |= {"words": self._words, "num_warps": max(1, self._lanes // 256)}
        return Repeated(wide_residual_kernel, arguments | WIDE[width * size <= CACHED_BYTES])

    def _refinement(self, products: Tensor, marked: Marked) -> Repeated:
        """p − target of rows with few positive entries once more; of α-ReLU for the first time."""
        call, width, features = self.call, self.classes, self.call.x.shape[1]
        arguments = self._shared(products) | marked._asdict() | {
            "x": call.x, "weight": call.weight, "words": self._words, "features": features,
            "stride_x": call.x.stride(0), "stride_w": call.weight.stride(0),
            "GRADIENT": call.wanted.any, "K": self.longest, "E": 16,
            "D": min(256, max(32, power_of_two(features))), "L": self._lanes, "BITS": self._bits,
        }  # fmt: skip
        if not call.fixed:
            return Repeated(refined_rows_kernel, arguments | call.exact() | {"num_warps": 4})
        arguments |= {
            "width": width, "slack": ROUNDING[call.x.dtype], "ODD": width % 16 > 0,
            "exact_bias": call.exact()["bias"], "EXACT_BIAS": call.bias is not None,
        }  # fmt: skip
        return Repeated(
            exact_residual_kernel, arguments | {"num_warps": max(1, self._lanes // 256)}
        )

    def _shared(self, products: Tensor) -> dict[str, Any]:
        """What all kernels are told."""
        call = self.call
        shared = {
            "slice_": products, "sums": call.sums, "state": call.rows, "targets": call.index,
            "n": call.x.shape[0], "stride": products.stride(0), "alpha": call.alpha,
            "KIND": call.kind, **call.shared(), **call.smoothed(),
        }  # fmt: skip
        if call.fixed:
            return shared
        return shared | {
            "tolerance": _TOLERANCE, "BRACKET": call.alpha > 2, "STEPS": STEPS,
        }  # fmt: skip

    @property
    def _in_registers(self) -> bool:
        return self.classes <= WIDEST and self.call.kind in (1, 2, 15)

    @cached_property
    def _tile(self) -> tuple[int, int]:
        """Entries a program takes at a time of a row, and how many times it does."""
        width = self.classes
        if self.call.fixed:
            lanes = block_size(width, LANES)
        elif not self._in_registers:
            lanes = block_size(ceiling(width, 4), LANES)
        else:
            block = max(32, power_of_two(width))
            warps = min(16, max(1, block // 512))
            lanes = min(block, warps * 32 * (16 // self.call.x.element_size()))  # 16 bytes a thread
            return lanes, block // lanes
        return lanes, ceiling(width, lanes)

    @property
    def _lanes(self) -> int:
        return self._tile[0]

    @property
    def _bits(self) -> int:
        """Of a word of marks."""
        return next((bits for bits in (8, 16) if self._tile[1] <= bits), 32)

    @property
    def _words(self) -> int:
        return ceiling(self._tile[1], self._bits)


# The weight's gradient is added up over blocks. A 16-bit sum is rounded with every block. Where
# there is room for four bytes a number, three blocks' products are kept apart and added up at once,
# and more than three in float32.

APART = 3  # blocks whose products take no more memory apart than float32 sums do


def extra_bytes(weight: Tensor) -> int:
    """What sums take that are exact, beside the gradient itself."""
    return 4 * weight.numel()


class WeightSums:
    """Of one call, with so many blocks; `exact`: with `extra_bytes`."""

    def __init__(self, total: Tensor, blocks: int, exact: bool) -> None:
        self.total = total
        self._others: Tensor | None = None
        self._places = [total] * blocks
        if exact and blocks == APART:
            self._others = total.new_empty((APART - 1, *total.shape))
            self._places = [total, *self._others]
        elif exact:
            self._places = [torch.empty_like(total, dtype=torch.float32)] * blocks

    def place(self, block: int) -> Tensor:
        """Where a block's product goes."""
        return self._places[block]

    def begun(self, block: int) -> bool:
        """Whether it is added to what is there."""
        return block > 0 and self._places[block] is self._places[block - 1]

    def finish(self) -> None:
        """All blocks are in: total is theirs."""
        if self._others is not None:
            add(self.total, self._others)
        elif self._places[0] is not self.total:
            self.total.copy_(self._places[0])


# --- lists ----------------------------------------------------------------------------------------

LISTED_SLICE_BYTES = 128 << 20  # logits in memory at a time
LIST_BYTES = 96 << 20  # all rows' lists together
LONGEST_LIST = 1024
SHARE = 1 / 300  # gathering rows beats products while fewer classes than this share are listed
CANDIDATE_LANES = 1024
_CANDIDATES: dict[str, Any] = {"STAGES": 3, "num_warps": 4, "maxnreg": 64}


@dataclass
class Lists:
    """What may be positive of every row: (N, K) values and classes, of which `counts` are used."""

    call: Call
    values: Tensor
    classes: Tensor
    counts: Tensor
    total: int = 0

    @classmethod
    def collect(cls, call: Call) -> Lists | None:
        """None where lists are not worth it; call is then as before."""
        n, classes = len(call.x), call.weight.shape[0]
        room = LIST_BYTES // (8 * n)
        longest = min(LONGEST_LIST, power_of_two(classes + 1))
        k = min(longest, 1 << max(5, room.bit_length() - 1))
        device = call.x.device
        lists = cls(
            call,
            torch.empty((n, k), dtype=torch.float32, device=device),
            torch.empty((n, k), dtype=torch.int32, device=device),
            torch.zeros(n, dtype=torch.int32, device=device),
        )
        before = call.tops.clone(), call.shifts.clone()
        alpha, fixed = call.alpha, call.fixed
        for number, (first, products) in enumerate(call.products(LISTED_SLICE_BYTES)):
            width = products.shape[1]
            # The line is raised after 1, 2, 4, … slices: later ones add ever less to it.
            refresh = int(number & (number + 1) == 0)
            candidates_kernel[(n,)](
                products, lists.values, lists.classes, lists.counts, call.tops, call.shifts,
                call.index, call.sums, first=first, width=width, stride=products.stride(0),
                refresh=refresh, alpha=alpha, slack=ROUNDING[call.x.dtype], tolerance=_TOLERANCE,
                KIND=call.kind, BRACKET=alpha > 2, STEPS=STEPS, SEARCH=not fixed, K=k,
                ODD=width % 16 > 0, L=min(CANDIDATE_LANES, max(128, power_of_two(width))),
                **_CANDIDATES, **call.shared(),
            )  # fmt: skip
            last = first + width == classes
            if last or (first == 0 and not fixed):
                longest, lists.total = lists.lengths()
                # Lists of the first slice are about as long as those of all will be. After the last
                # the product is made, and to start again costs one more.
                worth = max(8.0, SHARE * classes) * n * (2 if last else 1)
                if longest >= k or lists.total > worth:
                    call.flat = lists.total > worth  # or a few rows are
                    call.tops.copy_(before[0])
                    call.shifts.copy_(before[1])
                    call.sums.zero_()
                    return None
        if call.x.dtype != torch.float32:
            refine_kernel[(n,)](
                call.x, call.weight, lists.values, lists.classes, lists.counts, call.tops,
                call.shifts, call.index, call.sums, features=call.x.shape[1],
                stride_x=call.x.stride(0), stride_w=call.weight.stride(0), alpha=alpha,
                slack=ROUNDING[call.x.dtype], tolerance=_TOLERANCE, KIND=call.kind,
                BRACKET=alpha > 2, STEPS=STEPS, SEARCH=not fixed, K=k, E=8,
                D=min(512, max(32, power_of_two(call.x.shape[1]))), num_warps=4,
                **call.exact(),
            )  # fmt: skip
        sparse_rows_kernel[(n,)](
            lists.values, lists.classes, lists.counts, call.tops, call.shifts, call.index,
            call.times, call.hits, call.sums, alpha=alpha, cap=call.shared()["cap"],
            tolerance=_TOLERANCE, KIND=call.kind, BRACKET=alpha > 2, STEPS=STEPS,
            SEARCH=not fixed, CAP=call.options.softcap is not None, K=k, num_warps=4,
        )  # fmt: skip
        call.tops.masked_fill_(call.tops == -torch.inf, 0.0)
        return lists

    def lengths(self) -> tuple[int, int]:
        """Longest list and all together; the host waits."""
        longest, total = torch.stack([self.counts.max().long(), self.counts.sum()]).tolist()
        return int(longest), int(total)

    def gradients(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        call = self.call
        n, classes = len(call.x), call.weight.shape[0]
        base_of_x, base_of_weight = self._smoothing()
        if not (call.wanted.input or call.wanted.weight or call.wanted.bias):
            return None, None, None
        # Room for every row's target as well, which may not have been listed: no need to ask again.
        room = self.total + n
        device = call.x.device
        offsets = torch.zeros(n + 1, dtype=torch.int64, device=device)
        torch.cumsum(self.counts, 0, out=offsets[1:])
        values = torch.empty(room, dtype=torch.float32, device=device)
        # Unused places sort behind every class.
        of_class = torch.full((room,), classes, dtype=torch.int32, device=device)
        of_row = torch.empty(room, dtype=torch.int32, device=device)
        flatten_kernel[(n,)](
            self.values, self.classes, offsets, values, of_class, of_row,
            K=self.values.shape[1], num_warps=4,
        )  # fmt: skip
        d_input = None
        if call.wanted.input:
            d_input = torch.empty_like(call.x)
            _gather(call.weight, d_input, offsets, of_class, values, None, base_of_x, None)
        d_weight = d_bias = None
        if call.wanted.weight or call.wanted.bias:
            in_order, order = torch.sort(of_class, stable=True)
            edges = torch.arange(classes + 1, dtype=torch.int32, device=device)
            starts = torch.searchsorted(in_order, edges)
            d_weight = torch.empty_like(call.weight)
            if call.wanted.bias and call.bias is not None:
                d_bias = torch.empty_like(call.bias)
            _gather(call.x, d_weight, starts, of_row, values, order, base_of_weight, d_bias)
        return d_input, d_weight if call.wanted.weight else None, d_bias

    def _smoothing(self) -> tuple[Any, Any]:
        """Label smoothing touches every class alike, so it is a product of two vectors."""
        call = self.call
        if not call.smoothing:
            return None, None
        smooth = call.smooth
        share = call.class_weight
        classes = call.weight.shape[0]
        if share is None:
            share = torch.ones(classes, device=call.x.device)
        share = share.float()
        mean_row = times_vector(call.weight.t(), share)
        call.sums[:, 2] = times_vector(call.x, mean_row)
        if call.bias is not None:
            call.sums[:, 2] += torch.where(share == 0, 0.0, share * call.bias.float()).sum()
        mean_x = times_vector(call.x.t(), call.upstream)
        ends = torch.cat([mean_x, call.upstream.sum()[None]])
        return (-smooth * call.upstream, mean_row), (-smooth * share, ends)


def _gather(
    source: Tensor,
    out: Tensor,
    offsets: Tensor,
    members: Tensor,
    factors: Tensor,
    order: Tensor | None,
    base: tuple[Tensor, Tensor] | None,
    sums: Tensor | None,
) -> None:
    features = source.shape[1]
    block = min(1024, power_of_two(features))
    gathered_sum_kernel[(len(out),)](
        source, out, offsets, members, factors,
        factors if order is None else order,
        factors if base is None else base[0], factors if base is None else base[1],
        factors if sums is None else sums,
        features, source.stride(0), out.stride(0),
        ORDERED=order is not None, BASE=base is not None, SUMS=sums is not None,
        E=8, D=block, num_warps=4,
    )  # fmt: skip


def times_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    """matrix @ vector in float32. A 16-bit matrix is not copied: the vector is split in two parts
    of its type that add up to it, with 1 its largest entry, since float16 ends at 65,504."""
    if matrix.dtype == torch.float32:
        return torch.mv(matrix, vector)
    size = vector.abs().amax()
    size = torch.where((size > 0) & size.isfinite(), size, 1.0)
    vector = vector / size
    high = vector.to(matrix.dtype)
    low = (vector - high.float()).to(matrix.dtype)
    if not matrix.is_cuda:
        return torch.mv(matrix.float(), high.float() + low.float()) * size
    parts = torch.zeros((len(vector), 8), dtype=matrix.dtype, device=matrix.device)
    parts[:, 0], parts[:, 1] = high, low
    return torch.mm(matrix, parts, out_dtype=torch.float32).sum(1) * size


# --- products -------------------------------------------------------------------------------------


class Part(NamedTuple):
    """Some classes, their weights and biases: views made once, and not for every block of rows."""

    classes: slice
    weight: Tensor
    transposed: Tensor
    bias: Tensor | None


def add_product(total: Tensor, left: Tensor, right: Tensor, begun: bool = True) -> None:
    """total = left @ right, or where it was begun that much more, in total's own precision."""
    if total.dtype == left.dtype:
        if begun:
            total.addmm_(left, right)
        else:
            torch.mm(left, right, out=total)
    elif not total.is_cuda:
        add_product(total, left.to(total.dtype), right.to(total.dtype), begun)
    elif begun:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        torch.mm(left, right, out_dtype=total.dtype, out=total)


def split(bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """The bias as a part of that type and what the type cannot hold of it, in float32."""
    if bias is None or torch.promote_types(bias.dtype, dtype) == dtype:
        return None if bias is None else bias.to(dtype), None
    most = torch.finfo(dtype).max
    finite = bias.isfinite()
    held = torch.where(finite, bias.clamp(-most, most), bias).to(dtype)
    return held, torch.where(finite, bias.float() - held.float(), 0.0)


def put_logits(out: Tensor, x: Tensor, transposed: Tensor, bias: Tensor | None) -> None:
    """out = x @ transposed + bias, rounded once: a bias may cancel most of a product, and what is
    left would be as coarse as the product was."""
    if bias is None:
        add_product(out, x, transposed, begun=False)
    elif out.is_cuda and out.dtype == x.dtype:
        if out.is_contiguous():
            torch.addmm(bias, x, transposed, out=out)
            return
        # Into rows that lie apart, cuBLAS adds to a product that it has rounded already.
        step = max(1, ASIDE_BYTES // (out.shape[1] * out.element_size()))
        for rows, put in zip(x.split(step), out.split(step), strict=True):
            put.copy_(torch.addmm(bias, rows, transposed))
    elif out.is_cuda:
        out.copy_(bias.expand_as(out))
        add_product(out, x, transposed)
    else:  # where a 16-bit sum is rounded more than once
        out.copy_(torch.addmm(bias.float(), x.float(), transposed.float()))


def cut(weight: Tensor, bias: Tensor | None) -> list[Part]:
    """All classes of a weight (C, d), as a multiple of 8 and the few left over."""
    classes = weight.shape[0]
    even = classes // 8 * 8
    if even == classes:
        return [Part(slice(0, classes), weight, weight.t(), bias)]
    parts = [slice(0, even), slice(even, classes)] if even else [slice(0, classes)]
    return [
        Part(part, weight[part], weight[part].t(), None if bias is None else bias[part])
        for part in parts
    ]


def slice_width(rows: int, classes: int, element_size: int, room: int) -> int:
    """Classes of a slice: a multiple of 256, `room` bytes for all rows, never all classes."""
    width = max(256, room // max(1, rows * element_size) // 256 * 256)
    return min(width, row_stride(-(-classes // 2)))


def row_stride(width: int) -> int:
    """Entries from one row of logits to the next: with multiples of 16, which a kernel is told of,
    threads read 16 bytes at a time (`kernels._logits.padded`)."""
    return -(-width // 16) * 16


def rows_in(memory: Tensor, rows: int, width: int) -> Tensor:
    """(rows, width) at the beginning of memory, rows at multiples of 16."""
    stride = row_stride(width)
    return memory[: rows * stride].view(rows, stride)[:, :width]


def narrowed(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """As many entries of a narrower type at the beginning of every row of logits."""
    rows, width, stride = *logits.shape, logits.stride(0)
    return logits.as_strided((rows, stride), (stride, 1)).view(dtype)[:, :width]


def block_rows(rows: int, most: int) -> int:
    """Rows of a block: at most `most`, all blocks about as large, and never all rows. Of many
    blocks multiples of 128, which products take at a time, and of few the fewest there can be."""
    unit = 16 if rows <= 8 * most else 128
    most = max(unit, most // unit * unit)
    step = -(-rows // max(2, -(-rows // most)))
    return step if step < 128 else -(-step // unit) * unit


def residual_launch(width: int) -> dict[str, int]:
    """How `kernels.residual` goes through rows of so many entries."""
    long = width > 16384
    return {"L": block_size(width, 4096 if long else 2048), "num_warps": 8 if long else 4}


def block_size(width: int, most: int) -> int:
    """Entries a program takes at a time."""
    return min(most, max(32, power_of_two(width)))
