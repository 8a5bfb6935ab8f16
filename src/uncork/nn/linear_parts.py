"""How the linear losses on CUDA cut their work: widths of slices and blocks, products added up."""

from __future__ import annotations

from typing import NamedTuple

from uncork.nn._torch import torch
from uncork.nn.kernels import power_of_two

Tensor = torch.Tensor


class Part(NamedTuple):
    """Some classes, and what belongs to them: views made once, and not for every block of rows."""

    classes: slice
    weight: Tensor
    transposed: Tensor
    gradient: Tensor | None


def add_product(total: Tensor, left: Tensor, right: Tensor, begun: bool) -> None:
    """total = left @ right, or where it was begun that much more."""
    if begun:
        total.addmm_(left, right)
    else:
        torch.mm(left, right, out=total)


def parts_of(classes: int) -> list[slice]:
    """All classes, as a multiple of 8 and the few left over."""
    even = classes // 8 * 8
    return [part for part in (slice(0, even), slice(even, classes)) if part.stop > part.start]


def cut(weight: Tensor, gradient: Tensor | None) -> list[Part]:
    """All classes of a weight (C, d) and of its gradient, as `parts_of` says."""
    whole = parts_of(weight.shape[0])
    if len(whole) == 1:
        return [Part(whole[0], weight, weight.t(), gradient)]
    return [
        Part(part, weight[part], weight[part].t(), None if gradient is None else gradient[part])
        for part in whole
    ]


def slice_width(rows: int, classes: int, element_size: int, room: int) -> int:
    """Classes of a slice: a multiple of 256, `room` bytes for all rows, never all classes."""
    width = max(256, room // max(1, rows * element_size) // 256 * 256)
    return min(width, row_stride(-(-classes // 2)))


def row_stride(width: int) -> int:
    """Entries from one row of logits to the next: with multiples of 16, which a kernel is told of,
    threads read 16 bytes at a time (`kernels._logits.padded`)."""
    return -(-width // 16) * 16


def block_rows(rows: int, most: int) -> int:
    """Rows of a block: at most `most`, all blocks about as large, multiples of 128 if that leaves
    more than one, and never all rows."""
    blocks = max(2, -(-rows // max(128, most // 128 * 128)))
    step = -(-rows // blocks)
    return step if step < 128 else -(-step // 128) * 128


def block_size(width: int, most: int) -> int:
    """Entries a program takes at a time."""
    return min(most, max(32, power_of_two(width)))


def accumulate(total: Tensor, products: Tensor, weight: Tensor) -> None:
    """total += products @ weight, in total's own precision."""
    if total.dtype == products.dtype:
        total.addmm_(products, weight)
    elif total.is_cuda:
        torch.addmm(total, products, weight, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(products.to(total.dtype), weight.to(total.dtype))
