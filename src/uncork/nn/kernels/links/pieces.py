"""A piecewise linear function in kernels: its table, and the derivative by its slopes.

The table has one number of 64 bits for each piece, two float32 side by side: on piece i the
function is heights[i] + steeps[i] z. One access to memory reads both.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from uncork.nn._torch import torch
from uncork.nn.kernels.launch import launch, on_its_device, power_of_two
from uncork.nn.kernels.math import log1p

Tensor = torch.Tensor

MOST_PIECES = 8192


@triton.jit
def piece_of(z, bound, per_width, pieces):
    """The piece that z lies on; the first of NaN."""
    place = tl.maximum((z + bound) * per_width, 0.0)  # 0 of NaN
    return tl.minimum(place, pieces - 1.0).to(tl.int32)


@triton.jit
def pair_at(table, piece):
    """A piece's height and steepness."""
    both = tl.load(table + piece)
    height = both.to(tl.int32).to(tl.float32, bitcast=True)
    return height, (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def apart(z, G: tl.constexpr):
    """z (G, 8) as eight (G): each lane has eight logits side by side and takes them one after the
    other. Accesses by piece have then the same place in the program as the logits."""
    even, odd = tl.split(tl.reshape(z, [G, 4, 2]))
    z04, z26 = tl.split(tl.reshape(even, [G, 2, 2]))
    z15, z37 = tl.split(tl.reshape(odd, [G, 2, 2]))
    z0, z4 = tl.split(z04)
    z1, z5 = tl.split(z15)
    z2, z6 = tl.split(z26)
    z3, z7 = tl.split(z37)
    return z0, z1, z2, z3, z4, z5, z6, z7


@triton.jit
def together(z0, z1, z2, z3, z4, z5, z6, z7, G: tl.constexpr):
    """(G, 8) again."""
    even = tl.reshape(tl.join(tl.join(z0, z4), tl.join(z2, z6)), [G, 4])
    odd = tl.reshape(tl.join(tl.join(z1, z5), tl.join(z3, z7)), [G, 4])
    return tl.reshape(tl.join(even, odd), [G, 8])


@triton.jit
def pieces_table_kernel(slopes, table, pieces, piece_width, bound, L: tl.constexpr):
    """slopes (pieces) before softplus → table (pieces, 2)."""
    i = tl.arange(0, L)
    u = tl.load(slopes + i, mask=i < pieces, other=-float("inf"))
    steep = tl.maximum(u, 0.0) + log1p(tl.exp(-tl.abs(u)))
    before = tl.cumsum(steep, 0) - steep
    height = piece_width * before - bound - steep * (i * piece_width - bound)
    tl.store(table + 2 * i, height, mask=i < pieces)
    tl.store(table + 2 * i + 1, steep, mask=i < pieces)


@triton.jit
def slopes_gradient_kernel(sums, slopes, out, pieces, piece_width, L: tl.constexpr):
    """sums (pieces, 2), slopes (pieces) → out (pieces): a slope moves all that lies above it."""
    i = tl.arange(0, L)
    inside = i < pieces
    r = tl.load(sums + 2 * i, mask=inside, other=0.0)
    beyond = tl.load(sums + 2 * i + 1, mask=inside, other=0.0)
    above = tl.cumsum(r, 0, reverse=True) - r
    u = tl.load(slopes + i, mask=inside, other=0.0)
    by_steep = piece_width * above + beyond
    tl.store(out + i, by_steep / (1.0 + tl.exp(-u)), mask=inside)


@dataclass(frozen=True)
class Piecewise:
    """A function as the kernels take it."""

    table: Tensor  #: (pieces, 2) float32: heights and steeps
    bound: float  #: pieces lie between −bound and bound
    width: float  #: of a piece

    def arguments(self) -> dict[str, object]:
        """What `piece_of` and `pair_at` are told."""
        return {
            "table": self.table.view(torch.int64), "bound": self.bound,
            "per_width": 1 / self.width, "pieces": len(self.table),
        }  # fmt: skip


def one_program(slopes: Tensor) -> bool:
    """Whether one program has room for all pieces."""
    return slopes.dtype == torch.float32 and len(slopes) <= MOST_PIECES


@on_its_device
def pieces_table(slopes: Tensor, width: float, bound: float) -> Tensor:
    """`Piecewise.table` of slopes (pieces) before softplus."""
    table = torch.empty((len(slopes), 2), device=slopes.device)
    launch(pieces_table_kernel, 1, {**_by_piece(slopes, width), "table": table, "bound": bound})
    return table


@on_its_device
def slopes_gradient(slopes: Tensor, sums: Tensor, width: float) -> Tensor:
    """The derivative by the slopes (pieces), from sums (pieces, 2)."""
    out = torch.empty_like(slopes)
    launch(slopes_gradient_kernel, 1, {**_by_piece(slopes, width), "sums": sums, "out": out})
    return out


def _by_piece(slopes: Tensor, width: float) -> dict[str, object]:
    lanes = max(32, power_of_two(len(slopes)))
    return {
        "slopes": slopes, "pieces": len(slopes), "piece_width": width, "L": lanes,
        "num_warps": max(1, min(16, lanes // 256)),
    }  # fmt: skip
