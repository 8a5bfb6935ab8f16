"""What a large product is computed in, and what is taken for granted about its sums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arithmetic:
    """A type of numbers, and a bound on the error of sums of its products.

    A sum of m products a_k b_k of numbers of this type, in any order, comes out within
    `share(m)` · Σ|a_k b_k| of the exact one, but for underflow: at most 2⁻¹²⁶ for each product.
    """

    dtype: str
    unit: float  # what one addition may lose, as a share of Σ|a_k b_k|
    spacing: float  # what rounding a number to the type may change, as a share of it
    itemsize: int
    sum_dtype: str  # what sums come out in, and what is added to them is in
    sum_spacing: float

    def share(self, terms: int) -> float:
        return terms * self.unit / (1 - terms * self.unit) * (1 + 2.0**-40)


# IEEE arithmetic, rounding to nearest, fused or not: Higham's γ_m.
SINGLE = Arithmetic("float32", 2.0**-24, 2.0**-24, 4, "float32", 2.0**-24)
DOUBLE = Arithmetic("float64", 2.0**-53, 2.0**-53, 8, "float64", 2.0**-53)

# NVIDIA's tensor cores, bfloat16 in and float32 out. A product of two bfloat16 numbers is exact in
# float32. How the products are added is not documented; it was found by experiment (Fasi, Higham,
# Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021, and later work on Hopper)
# that the terms of a block are aligned to the largest of them and cut off, rather than rounded,
# at float32's last place or beyond it, and that the sum is cut off once more. So a block of q terms
# loses less than (q + 1)·2⁻²³ of the largest partial sum, hence m terms less than m·2⁻²²·Σ|a||b|.
# This is an assumption about the hardware; a strict audit, and `uncork verify`, do without it.
TENSOR_CORES = Arithmetic("bfloat16", 2.0**-22, 2.0**-8, 2, "float32", 2.0**-24)
