"""Which classes of a row may be positive: marked by the kernels that see whole rows, one bit each,
and listed by `refined_rows`, where the marks are few.

A row is read tile by tile, and a lane's marks are the bits of one number: nothing is exchanged
between lanes while rows pass, which would take longer than all the rest.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def popcount(bits):
    """How many bits of an int32 are set."""
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    return (((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24


@triton.jit
def count_marks(marks, words, N: tl.constexpr):
    """Marks (words, N) of one row in all."""
    count = 0
    for word in range(words):
        count += tl.sum(popcount(tl.load(marks + word * N + tl.arange(0, N))))
    return count


@triton.jit
def list_marks(marks, words, classes, K: tl.constexpr, L: tl.constexpr, BITS: tl.constexpr):
    """classes (K) of marks that are no more than K. Bit g of word w and lane l is class
    (w·BITS + g)·L + l; words of 8 and 16 bits are read four and two lanes at a time."""
    EACH: tl.constexpr = 32 // BITS
    N: tl.constexpr = L // EACH
    numbers = tl.arange(0, N)
    places = tl.arange(0, K)
    done = 0
    for word in range(words):
        # First the numbers that are not 0, then their bits: of few lanes that is soon done.
        own = marks + word * N
        some = (tl.load(own + numbers) != 0).to(tl.int32)
        tl.store(classes + done + tl.cumsum(some, 0) - 1, numbers, mask=some > 0)
        tl.debug_barrier()
        inside = places < tl.sum(some)
        number = tl.load(classes + done + places, mask=inside, other=0)
        bits = tl.load(own + number, mask=inside, other=0)
        here = popcount(bits)
        place = done + tl.cumsum(here, 0) - here
        done += tl.sum(here)
        tl.debug_barrier()
        while tl.max((bits != 0).to(tl.int32)) > 0:
            lowest = popcount((bits & -bits) - 1)
            which = (word * BITS + lowest % BITS) * L + number * EACH + lowest // BITS
            tl.store(classes + place, which, mask=bits != 0)
            place += 1
            bits = bits & (bits - 1)
    tl.debug_barrier()
