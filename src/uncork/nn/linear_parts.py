"""How the linear losses on CUDA cut their work: widths of slices and blocks, products added up."""

from __future__ import annotations

from typing import NamedTuple

from uncork.nn._torch import torch
from uncork.nn.kernels.launch import power_of_two

Tensor = torch.Tensor

# Twice how far a product of this type may be off, as a share of its size.
SLACK = {torch.float32: 1e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
ASIDE_BYTES = 32 << 20  # of logits, before they are put in their place


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
