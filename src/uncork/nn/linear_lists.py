"""What may be positive of every row, as lists: a sparse loss and its gradients from one product.

While slices of logits pass, each row keeps the entries above a line; then thresholds are found on
the lists, and the gradients read only the rows of the weight that are listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uncork.nn._torch import torch
from uncork.nn.kernels.launch import power_of_two
from uncork.nn.kernels.lists import (
    candidates_kernel,
    flatten_kernel,
    gathered_sum_kernel,
    refine_kernel,
    sparse_rows_kernel,
)
from uncork.nn.kernels.math import STEPS
from uncork.nn.linear_parts import SLACK

if TYPE_CHECKING:
    from uncork.nn.linear_slices import Head

Tensor = torch.Tensor

SLICE_BYTES = 128 << 20  # logits in memory at a time
LIST_BYTES = 96 << 20  # all rows' lists together
LONGEST_LIST = 1024
SHARE = 1 / 300  # gathering rows beats products while fewer classes than this share are listed
CANDIDATE_LANES = 1024
_CANDIDATES: dict[str, Any] = {"STAGES": 3, "num_warps": 4, "maxnreg": 64}
_TOLERANCE = 4 * 2.0**-23


@dataclass
class Lists:
    """What may be positive of every row: (N, K) values and classes, of which `counts` are used."""

    head: Head
    values: Tensor
    classes: Tensor
    counts: Tensor
    total: int = 0

    @classmethod
    def collect(cls, head: Head) -> Lists | None:
        """None where lists are not worth it; head is then as before."""
        n, classes = len(head.x), head.weight.shape[0]
        room = LIST_BYTES // (8 * n)
        longest = min(LONGEST_LIST, power_of_two(classes + 1))
        k = min(longest, 1 << max(5, room.bit_length() - 1))
        device = head.x.device
        lists = cls(
            head,
            torch.empty((n, k), dtype=torch.float32, device=device),
            torch.empty((n, k), dtype=torch.int32, device=device),
            torch.zeros(n, dtype=torch.int32, device=device),
        )
        before = head.tops.clone(), head.shifts.clone()
        alpha, fixed = head.options.alpha, head.options.fixed
        for number, (first, products) in enumerate(head.products(SLICE_BYTES)):
            width = products.shape[1]
            # The line is raised after 1, 2, 4, … slices: later ones add ever less to it.
            refresh = int(number & (number + 1) == 0)
            candidates_kernel[(n,)](
                products, lists.values, lists.classes, lists.counts, head.tops, head.shifts,
                head.index, head.sums, first=first, width=width, stride=products.stride(0),
                refresh=refresh, alpha=alpha, slack=SLACK[head.x.dtype], tolerance=_TOLERANCE,
                KIND=head.kind, BRACKET=alpha > 2, STEPS=STEPS, SEARCH=not fixed, K=k,
                ODD=width % 16 > 0, L=min(CANDIDATE_LANES, max(128, power_of_two(width))),
                **_CANDIDATES, **head.shared(),
            )  # fmt: skip
            last = first + width == classes
            if last or (first == 0 and not fixed):
                longest, lists.total = lists.lengths()
                # Lists of the first slice are about as long as those of all will be. After the last
                # the product is made, and to start again costs one more.
                worth = max(8.0, SHARE * classes) * n * (2 if last else 1)
                if longest >= k or lists.total > worth:
                    head.flat = lists.total > worth  # or a few rows are
                    head.tops.copy_(before[0])
                    head.shifts.copy_(before[1])
                    head.sums.zero_()
                    return None
        if head.x.dtype != torch.float32:
            refine_kernel[(n,)](
                head.x, head.weight, lists.values, lists.classes, lists.counts, head.tops,
                head.shifts, head.index, head.sums, features=head.x.shape[1],
                stride_x=head.x.stride(0), stride_w=head.weight.stride(0), alpha=alpha,
                slack=SLACK[head.x.dtype], tolerance=_TOLERANCE, KIND=head.kind,
                BRACKET=alpha > 2, STEPS=STEPS, SEARCH=not fixed, K=k, E=8,
                D=min(512, max(32, power_of_two(head.x.shape[1]))), num_warps=4,
                **head.exact(),
            )  # fmt: skip
        sparse_rows_kernel[(n,)](
            lists.values, lists.classes, lists.counts, head.tops, head.shifts, head.index,
            head.times, head.hits, head.sums, alpha=alpha, cap=head.shared()["cap"],
            tolerance=_TOLERANCE, KIND=head.kind, BRACKET=alpha > 2, STEPS=STEPS,
            SEARCH=not fixed, CAP=head.options.softcap is not None, K=k, num_warps=4,
        )  # fmt: skip
        head.tops.masked_fill_(head.tops == -torch.inf, 0.0)
        return lists

    def lengths(self) -> tuple[int, int]:
        """Longest list and all together; the host waits."""
        longest, total = torch.stack([self.counts.max().long(), self.counts.sum()]).tolist()
        return int(longest), int(total)

    def gradients(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        head = self.head
        n, classes = len(head.x), head.weight.shape[0]
        base_of_x, base_of_weight = self._smoothing()
        if not (head.wanted.input or head.wanted.weight or head.wanted.bias):
            return None, None, None
        # Room for every row's target as well, which may not have been listed: no need to ask again.
        room = self.total + n
        device = head.x.device
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
        if head.wanted.input:
            d_input = torch.empty_like(head.x)
            _gather(head.weight, d_input, offsets, of_class, values, None, base_of_x, None)
        d_weight = d_bias = None
        if head.wanted.weight or head.wanted.bias:
            in_order, order = torch.sort(of_class, stable=True)
            edges = torch.arange(classes + 1, dtype=torch.int32, device=device)
            starts = torch.searchsorted(in_order, edges)
            d_weight = torch.empty_like(head.weight)
            if head.wanted.bias and head.bias is not None:
                d_bias = torch.empty_like(head.bias)
            _gather(head.x, d_weight, starts, of_row, values, order, base_of_weight, d_bias)
        return d_input, d_weight if head.wanted.weight else None, d_bias

    def _smoothing(self) -> tuple[Any, Any]:
        """Label smoothing touches every class alike, so it is a product of two vectors."""
        head = self.head
        if not head.smoothing:
            return None, None
        smooth = head.smooth
        share = head.class_weight
        classes = head.weight.shape[0]
        if share is None:
            share = torch.ones(classes, device=head.x.device)
        share = share.float()
        mean_row = times_vector(head.weight.t(), share)
        head.sums[:, 2] = times_vector(head.x, mean_row)
        if head.bias is not None:
            head.sums[:, 2] += torch.where(share == 0, 0.0, share * head.bias.float()).sum()
        mean_x = times_vector(head.x.t(), head.upstream)
        ends = torch.cat([mean_x, head.upstream.sum()[None]])
        return (-smooth * head.upstream, mean_row), (-smooth * share, ends)


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
