"""Gradients of a linear layer from lists of p − target: only rows that count are read.

The sums run over lists, a block of entries at a time: for a row's hidden state over the classes in
its list, for a class's weight over the rows that list it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gathered_sum_kernel(
    source, out, offsets, members, factors, order, base_scale, base, sums, features,
    stride_source, stride_out,
    ORDERED: tl.constexpr, BASE: tl.constexpr, SUMS: tl.constexpr,
    E: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """out[i] = Σ factors[e] · source[members[e]] over e in offsets[i] … offsets[i + 1].

    ORDERED: entry e is found at order[e]. BASE: base_scale[i] · base is added (label smoothing).
    SUMS: sums[i] = Σ factors[e] as well (the bias).
    """
    row = tl.program_id(0).to(tl.int64)
    entries = tl.arange(0, E)
    start = tl.load(offsets + row)
    end = tl.load(offsets + row + 1)
    weight = tl.zeros([E], tl.float32)
    for first in range(0, features, D):
        columns = first + tl.arange(0, D)
        inside = columns < features
        total = tl.zeros([D], tl.float32)
        begin = start
        while begin < end:
            e = begin + entries
            valid = e < end
            if ORDERED:
                e = tl.load(order + e, mask=valid, other=0)
            member = tl.load(members + e, mask=valid, other=0).to(tl.int64)
            factor = tl.load(factors + e, mask=valid, other=0.0)
            rows = tl.load(
                source + member[:, None] * stride_source + columns[None, :],
                mask=valid[:, None] & inside[None, :],
                other=0.0,
            ).to(tl.float32)
            total += tl.sum(factor[:, None] * rows, 0)
            if SUMS:  # noqa: SIM102
                if first == 0:
                    weight += factor
            begin += E
        if BASE:
            total += tl.load(base_scale + row) * tl.load(base + columns, mask=inside, other=0.0)
        tl.store(out + row * stride_out + columns, total.to(out.dtype.element_ty), mask=inside)
    if SUMS:
        extra = tl.sum(weight)
        if BASE:
            extra += tl.load(base_scale + row) * tl.load(base + features)
        tl.store(sums + row, extra)


@triton.jit
def flatten_kernel(
    values, classes, offsets, flat_values, flat_classes, flat_rows, K: tl.constexpr
):  # fmt: skip
    """Lists (rows, K) laid end to end."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, K)
    start = tl.load(offsets + row)
    valid = places < tl.load(offsets + row + 1) - start
    y = tl.load(values + row * K + places, mask=valid, other=0.0)
    which = tl.load(classes + row * K + places, mask=valid, other=0)
    tl.store(flat_values + start + places, y, mask=valid)
    tl.store(flat_classes + start + places, which, mask=valid)
    tl.store(flat_rows + start + places, row.to(tl.int32), mask=valid)
