"""Linear losses on CUDA, a block of whole rows at a time: for what needs all classes to begin with.

Cross entropy and α-entmax of flat logits are known only when all of a row's logits are. A block's
logits become p − target in place, normaliser or threshold found on the way, and go into the two
products of the gradients: three products, with the weight's gradient added up over the blocks, in
its own type. Small problems of α-ReLU go this way too: it has the fewest launches.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from uncork.nn._torch import torch
from uncork.nn.kernels import ceiling, power_of_two
from uncork.nn.kernels.entmax_narrow import WIDEST
from uncork.nn.kernels.entmax_residual import entmax_residual_kernel
from uncork.nn.kernels.transforms import STEPS
from uncork.nn.kernels.wide_residual import wide_residual_kernel
from uncork.nn.linear_parts import add_product, block_rows, block_size, cut, parts_of, row_stride

if TYPE_CHECKING:
    from uncork.nn.linear_slices import Head

Tensor = torch.Tensor

BLOCK_BYTES = {True: 512 << 20, False: 251 << 20}  # logits in memory at a time: of softmax, others
# Rows too wide for registers, by whether those in flight stay in the cache: measured on an H200.
LANES = 2048
CACHED_BYTES = 160 << 10
WIDE: dict[bool, dict[str, Any]] = {
    True: {"G": 4, "STAGES": 1, "maxnreg": 128},
    False: {"G": 2, "STAGES": 3, "maxnreg": 64},
}
_TOLERANCE = 4 * 2.0**-23


class WholeRows:
    """The rows of one call, as blocks."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.classes = head.weight.shape[0]

    def gradients(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Those wanted, of input, weight and bias; the head's sums are filled."""
        head, wanted = self.head, self.head.wanted
        softmax = head.options.alpha == 1
        step = block_rows(len(head.x), self._rows_in(BLOCK_BYTES[softmax]))
        buffer = self._buffer(step)
        d_input = torch.empty_like(head.x) if wanted.input else None
        d_weight = torch.empty_like(head.weight) if wanted.weight else None
        d_bias = None
        if wanted.bias and head.bias is not None:
            d_bias = torch.zeros(self.classes, dtype=torch.float32, device=head.x.device)
        # Nothing made below leaves: without what autograd notes of every view and product, they are
        # launched sooner, and a small problem waits for that.
        with torch.inference_mode():
            self._blocks(buffer, d_input, d_weight, d_bias)
        if d_bias is not None and head.bias is not None:
            d_bias = d_bias.to(head.bias.dtype)
        return d_input, d_weight, d_bias

    def _blocks(
        self,
        buffer: Tensor,
        d_input: Tensor | None,
        d_weight: Tensor | None,
        d_bias: Tensor | None,
    ) -> None:
        """Block after block in `buffer`, the gradients written or added to."""
        head, wanted = self.head, self.head.wanted
        parts = cut(head.weight, d_weight)
        products = buffer[:, : self.classes]
        rows, step = head.x.shape[0], buffer.shape[0]
        for start in range(0, rows, step):
            block = slice(start, start + step)
            x, d_x = head.x[block], None if d_input is None else d_input[block]
            if start + step > rows:
                products = products[: rows - start]
            for part in parts:
                z = products if len(parts) == 1 else products[:, part.classes]
                torch.mm(x, part.transposed, out=z)
            if head.options.fixed:
                head.residual(0, products, start)
            else:
                self._residual(products, start, wanted.any)
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

    def find_thresholds(self, room: int) -> None:
        """tops and shifts of α-entmax alone, with `room` bytes of logits."""
        head, step = self.head, max(1, self._rows_in(room))
        buffer = self._buffer(step)
        for start in range(0, len(head.x), step):
            x = head.x[start : start + step]
            products = buffer[: len(x), : self.classes]
            for part in parts_of(self.classes):
                torch.mm(x, head.weight[part].t(), out=products[:, part])
            self._residual(products, start, gradient=False)

    def _rows_in(self, room: int) -> int:
        return room // (row_stride(self.classes) * self.head.x.element_size())

    def _buffer(self, rows: int) -> Tensor:
        x = self.head.x
        return torch.empty((rows, row_stride(self.classes)), dtype=x.dtype, device=x.device)

    def _residual(self, products: Tensor, begin: int, gradient: bool) -> None:
        """products of rows begin … become p − target, threshold or normaliser found on the way."""
        head = self.head
        kernel = entmax_residual_kernel if self._in_registers else wide_residual_kernel
        kernel[(len(products),)](
            products, head.sums, head.rows, head.index, begin=begin, stride=products.stride(0),
            GRADIENT=gradient, **self._launch,
        )  # fmt: skip

    @property
    def _in_registers(self) -> bool:
        return self.classes <= WIDEST and self.head.kind in (1, 2, 15)

    @cached_property
    def _launch(self) -> dict[str, Any]:
        """What all blocks share: put together once."""
        head, width = self.head, self.classes
        alpha, size = head.options.alpha, head.x.element_size()
        shared = {
            "n": len(head.x), "width": width, "alpha": alpha, "tolerance": _TOLERANCE,
            "KIND": head.kind, "BRACKET": alpha > 2, "STEPS": STEPS, "ODD": width % 16 > 0,
            **head.shared(), **head.smoothed(),
        }  # fmt: skip
        if not self._in_registers:
            lanes = block_size(ceiling(width, 4), LANES)
            cached = width * size <= CACHED_BYTES
            return shared | {"L": lanes, "num_warps": max(1, lanes // 256)} | WIDE[cached]
        block = max(32, power_of_two(width))
        warps = min(16, max(1, block // 512))
        lanes = min(block, warps * 32 * (16 // size))  # 16 bytes a thread
        return shared | {"G": block // lanes, "L": lanes, "num_warps": warps}
