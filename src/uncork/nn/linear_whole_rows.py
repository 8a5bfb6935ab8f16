"""Linear losses on CUDA, a block of whole rows at a time: for what needs all classes to begin with.

Cross entropy and α-entmax of flat logits are known only when all of a row's logits are. A block's
logits become p − target in place, normaliser or threshold found on the way, and go into the two
products of the gradients: three products, with the weight's gradient added up over the blocks.
Small problems of α-ReLU go this way too: it has the fewest launches.

What a 16-bit product rounds away counts where few classes of a row are positive: unless all rows
are known to be flat, those that are not are made again from float32 logits of these classes
(`kernels.refined_rows`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from uncork.nn._torch import torch
from uncork.nn.kernels.entmax import WIDEST
from uncork.nn.kernels.launch import Repeated, ceiling, power_of_two
from uncork.nn.kernels.math import STEPS
from uncork.nn.kernels.residual import (
    entmax_residual_kernel,
    exact_residual_kernel,
    refined_rows_kernel,
    residual_kernel,
    wide_residual_kernel,
)
from uncork.nn.linear_parts import (
    SLACK,
    add_product,
    block_rows,
    block_size,
    cut,
    put_logits,
    row_stride,
)
from uncork.nn.linear_weight_sums import WeightSums, extra_bytes

if TYPE_CHECKING:
    from uncork.nn.linear_slices import Head

Tensor = torch.Tensor

BLOCK_BYTES = {True: 512 << 20, False: 252 << 20}  # logits in memory at a time: of softmax, others
LONGEST_LIST = 128  # classes of a row whose logits are made again
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
_TOLERANCE = 4 * 2.0**-23


class Marked(NamedTuple):
    """Which classes of a block's rows may be positive, and room to list them: see
    `kernels.refined_rows`."""

    marks: Tensor  #: (rows, words, lanes), a bit for each tile of a row
    classes: Tensor  #: (rows, K) int32
    values: Tensor  #: (rows, K) float32


class WholeRows:
    """The rows of one call, as blocks."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.classes = head.weight.shape[0]
        rounded = head.options.alpha > 1 and head.x.dtype != torch.float32
        self.refines = rounded and not head.flat
        self.longest = min(LONGEST_LIST, power_of_two(self.classes))

    def gradients(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Those wanted, of input, weight and bias; the head's sums are filled."""
        head, wanted = self.head, self.head.wanted
        step, exact = self._plan()
        d_input = torch.empty_like(head.x) if wanted.input else None
        d_weight = torch.empty_like(head.weight) if wanted.weight else None
        d_bias = None
        if wanted.bias and head.bias is not None:
            d_bias = torch.zeros(self.classes, dtype=torch.float32, device=head.x.device)
        # Nothing made below leaves: without what autograd notes of every view and product, they are
        # launched sooner, and a small problem waits for that.
        with torch.inference_mode():
            sums = None
            if d_weight is not None:
                sums = WeightSums(d_weight, ceiling(head.x.shape[0], step), exact)
            self._blocks(step, d_input, sums, d_bias)
            if sums is not None:
                sums.finish()
        if d_bias is not None and head.bias is not None:
            d_bias = d_bias.to(head.bias.dtype)
        return d_input, d_weight, d_bias

    def _plan(self) -> tuple[int, bool]:
        """Rows of a block, and whether sums over blocks are exact."""
        head, rows, softmax = self.head, self.head.x.shape[0], self.head.options.alpha == 1
        room = BLOCK_BYTES[softmax]
        step = block_rows(rows, self._rows_in(room))
        few = rows <= ROUNDED_BLOCKS[softmax] * step
        wide = head.weight.dtype == torch.float32 or head.options.float32_accumulation is False
        extra = extra_bytes(head.weight)
        if not head.wanted.weight or few or wide or 3 * extra > 2 * room:
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
        head, wanted = self.head, self.head.wanted
        products = self._buffer(step)[:, : self.classes]
        launches = self._launches(products, wanted.any)
        rows = head.x.shape[0]
        parts = cut(head.weight, head.held)
        for number, start in enumerate(range(0, rows, step)):
            block = slice(start, start + step)
            x, d_x = head.x[block], None if d_input is None else d_input[block]
            if start + step > rows:
                products = products[: rows - start]
            for part in parts:
                z = products if len(parts) == 1 else products[:, part.classes]
                put_logits(z, x, part.transposed, part.bias)
            for launch in launches:
                launch(products.shape[0], start)
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
        head, rows, step = self.head, self.head.x.shape[0], max(1, self._rows_in(room))
        products = self._buffer(step)[:, : self.classes]
        search = self._search(products, None, gradient=False)
        for start in range(0, rows, step):
            x = head.x[start : start + step]
            for part in cut(head.weight, head.held):
                z = products[: x.shape[0], part.classes]
                put_logits(z, x, part.transposed, part.bias)
            search(x.shape[0], start)

    def _rows_in(self, room: int) -> int:
        """Rows of logits, and of lists beside them, in so many bytes."""
        row = row_stride(self.classes) * self.head.x.element_size()
        if self.refines:
            row += 8 * self.longest + self._words * self._lanes * self._bits // 8
        return room // row

    def _buffer(self, rows: int) -> Tensor:
        x = self.head.x
        return torch.empty((rows, row_stride(self.classes)), dtype=x.dtype, device=x.device)

    def _marked(self, rows: int) -> Marked:
        device = self.head.x.device
        dtype = {8: torch.uint8, 16: torch.int16, 32: torch.int32}[self._bits]
        return Marked(
            torch.empty((rows, self._words, self._lanes), dtype=dtype, device=device),
            torch.empty((rows, self.longest), dtype=torch.int32, device=device),
            torch.empty((rows, self.longest), dtype=torch.float32, device=device),
        )

    def _launches(self, products: Tensor, gradient: bool) -> list[Repeated]:
        """What makes p − target of a block of products, threshold or normaliser found on the way:
        kernels that are told the block's first row."""
        head = self.head
        marked = self._marked(products.shape[0]) if self.refines else None
        if not head.options.fixed:
            search = self._search(products, marked, gradient)
            return [search] if marked is None else [search, self._refinement(products, marked)]
        if marked is None:
            return [Repeated(residual_kernel, head.residual_arguments(0, products, products))]
        return [self._refinement(products, marked)]

    def _search(self, products: Tensor, marked: Marked | None, gradient: bool) -> Repeated:
        """Threshold or normaliser of every row, and p − target with it."""
        head, width = self.head, self.classes
        arguments = self._shared(products) | {
            "marks": head.index if marked is None else marked.marks, "width": width,
            "slack": SLACK[head.x.dtype], "ODD": width % 16 > 0, "L": self._lanes,
            "GRADIENT": gradient, "MARK": marked is not None,
        }  # fmt: skip
        size = head.x.element_size()
        if self._in_registers:
            warps = max(1, self._lanes * size // 512)
            arguments |= {"G": self._tile[1], "num_warps": warps}
            return Repeated(entmax_residual_kernel, arguments)
        arguments |= {"words": self._words, "num_warps": max(1, self._lanes // 256)}
        return Repeated(wide_residual_kernel, arguments | WIDE[width * size <= CACHED_BYTES])

    def _refinement(self, products: Tensor, marked: Marked) -> Repeated:
        """p − target of rows with few positive entries once more; of α-ReLU for the first time."""
        head, width, features = self.head, self.classes, self.head.x.shape[1]
        arguments = self._shared(products) | marked._asdict() | {
            "x": head.x, "weight": head.weight, "words": self._words, "features": features,
            "stride_x": head.x.stride(0), "stride_w": head.weight.stride(0),
            "GRADIENT": head.wanted.any, "K": self.longest, "E": 16,
            "D": min(256, max(32, power_of_two(features))), "L": self._lanes, "BITS": self._bits,
        }  # fmt: skip
        if not head.options.fixed:
            return Repeated(refined_rows_kernel, arguments | head.exact() | {"num_warps": 4})
        arguments |= {
            "width": width, "slack": SLACK[head.x.dtype], "ODD": width % 16 > 0,
            "exact_bias": head.exact()["bias"], "EXACT_BIAS": head.bias is not None,
        }  # fmt: skip
        return Repeated(
            exact_residual_kernel, arguments | {"num_warps": max(1, self._lanes // 256)}
        )

    def _shared(self, products: Tensor) -> dict[str, Any]:
        """What all kernels are told."""
        head = self.head
        shared = {
            "slice_": products, "sums": head.sums, "state": head.rows, "targets": head.index,
            "n": head.x.shape[0], "stride": products.stride(0), "alpha": head.options.alpha,
            "KIND": head.kind, **head.shared(), **head.smoothed(),
        }  # fmt: skip
        if head.options.fixed:
            return shared
        return shared | {
            "tolerance": _TOLERANCE, "BRACKET": head.options.alpha > 2, "STEPS": STEPS,
        }  # fmt: skip

    @property
    def _in_registers(self) -> bool:
        return self.classes <= WIDEST and self.head.kind in (1, 2, 15)

    @cached_property
    def _tile(self) -> tuple[int, int]:
        """Entries a program takes at a time of a row, and how many times it does."""
        width = self.classes
        if self.head.options.fixed:
            lanes = block_size(width, LANES)
        elif not self._in_registers:
            lanes = block_size(ceiling(width, 4), LANES)
        else:
            block = max(32, power_of_two(width))
            warps = min(16, max(1, block // 512))
            lanes = min(block, warps * 32 * (16 // self.head.x.element_size()))  # 16 bytes a thread
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
