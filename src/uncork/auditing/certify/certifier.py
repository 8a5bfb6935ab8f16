"""The certifier: accepts a verdict only with a proof, using no solver and no trust in rounding.

Everything here is a statement about the real numbers that the stored weights are. Floating point
is used with a-priori error bounds (Higham, *Accuracy and Stability of Numerical Algorithms*, §3.1):
a dot product of n terms, summed in any order, fused or not, errs by at most γ_n Σ|a_k||b_k| with
γ_n = n·u/(1 − n·u), plus n times the smallest normal number for products that underflow. How bounds
are multiplied and added is said in `core.rigour`. What they leave open is settled in integers.
`docs/certificates.md` gives the argument in full.

Two claims are checked:

* a witness: x ∈ D with z_t > z_i for every other class i;
* a mixture: λ ≥ 0, not all zero, with Σ λ_i (z_t − z_i) ≤ 0 at every x ∈ D. Then some z_i ≥ z_t at
  every x, so t is never strictly first.

Where D is an image x = F(u) of a plain set (what leaves a LayerNorm, say), a witness is given as u,
and Σ λ_i (z_t − z_i) is bounded as a function of u: see `latent`. What a plain set adds to a proof,
its support and what it contains, the domain says itself: it is trusted as this code is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from uncork.auditing.certify.bulk import Bulk
from uncork.auditing.certify.digits import most_bits
from uncork.auditing.certify.latent import Latent
from uncork.auditing.certify.mixtures import ManyMixtures
from uncork.auditing.certify.products import MOST_FEATURES32, Device, Products, Tilted
from uncork.auditing.proofs.verdict import Mixture, Witness
from uncork.core.head import Head
from uncork.core.rigour import (
    LARGEST,
    SMALLEST,
    add_up,
    check_arithmetic,
    integers,
    lower_float,
    row_norms,
)
from uncork.domain import Domain

EXACT_PAIRS = 20_000  # pairs (input, class) settled in integers before a block is refused
_FAR_BEHIND = 8.0  # times what rounding may hide
_EXACT_SIZE = 200_000  # numbers in a mixture's rows up to which it is also tried exactly


class Certifier:
    """Checks witnesses and mixtures against one head on one domain."""

    def __init__(self, head: Head, domain: Domain | None = None, device: Device | None = None):
        self.head = head
        self.domain = head.domain if domain is None else domain
        self.device = device or Device()
        self.latent = Latent(self.domain, head.features, self.device)
        self.base = self.latent.base  # the plain set of u; of x itself where x is u
        self.offsets = head.offsets
        self.products = Products(head, self.device)
        # K for the bulk, where somebody has found one: whatever it is, its bounds are computed.
        self.proposed_root: np.ndarray | None = None

    @cached_property
    def bulk(self) -> Bulk:
        """The ball around the mean row that lies inside the hull of all rows."""
        return Bulk.of(self.head, self.device, self.latent, self.proposed_root)

    @cached_property
    def bulk_of_rows(self) -> Bulk:
        """The same of the rows as they are, whatever inputs see of them."""
        return self.bulk if self.latent.is_identity else Bulk.of(self.head, self.device)

    def equal(self, i: int, t: int) -> bool:
        """Whether two classes are the same function: equal rows and equal bias."""
        if self.offsets[i] != self.offsets[t]:
            return False
        pair = self.head.take(np.array([i, t]))
        return bool((pair[0] == pair[1]).all())

    # Witnesses

    def witnesses(
        self, classes: np.ndarray, u: Any, groups: dict[int, np.ndarray] | None = None
    ) -> np.ndarray:
        """Proven lower bounds on z_t − max z_i, one for each (class, input): (n,).

        A positive entry is a proof; anything else (≤ 0 or NaN) is a refusal. `groups` names, for a
        class t, the classes whose row and bias equal t's: they are left out of the maximum, after
        checking that they really are equal. `u` (n, latent) is NumPy's or the device's.
        """
        check_arithmetic()
        classes = np.asarray(classes, dtype=np.int64)
        margins = np.empty(len(classes))
        step = self.device.inputs
        with np.errstate(all="ignore"):  # what overflows is refused
            for start in range(0, len(classes), step):
                part = slice(start, start + step)
                inputs = u[part]
                if isinstance(inputs, np.ndarray):
                    inputs = self.device.put(inputs.astype(np.float64))
                margins[part] = self._witness_block(classes[part], inputs, groups or {})
        return margins

    def _witness_block(
        self, classes: np.ndarray, u: Any, groups: dict[int, np.ndarray]
    ) -> np.ndarray:
        own_groups = {t: self._own_group(t, groups) for t in classes.tolist() if t in groups}
        inside = self.inside(u)
        margin = np.full(len(classes), np.nan)
        lowest = np.full(len(classes), np.nan)
        narrow = self.device.single and self.head.features <= MOST_FEATURES32
        for single in (True, False) if narrow else (False,):
            left = np.flatnonzero(inside & ~(margin > 0))
            if len(left):
                x, drift = self._inputs(u[self.device.put(left)], single)
                own, rivals = self.products.own_and_rivals(
                    classes[left], x, drift, own_groups, single
                )
                margin[left] = _lead_down(own, rivals)
                lowest[left] = own
                # What is far behind stays so, and is refused without a closer look.
                hidden = self.products.hidden(x, drift, single)
                inside[left] &= ~(margin[left] < -_FAR_BEHIND * hidden)
        pairs = EXACT_PAIRS
        for k in np.flatnonzero(inside & ~(margin > 0)).tolist():
            t = int(classes[k])
            x, drift = self._inputs(u[k : k + 1], False)
            point = self.device.get(x[0])
            close, others = self.products.close_rows(point, float(drift[0]), lowest[k])
            close = np.setdiff1d(close, own_groups.get(t, [t]))
            pairs -= len(close)
            if pairs < 0:
                break
            exact = [Fraction(v) for v in self.device.get(u[k]).tolist()]
            settled = self._exact_margin(t, self.latent.forward_exactly(exact), close)
            # Rows that were not close are below by the bounds; at least by the smallest float.
            clear = max(float(_lead_down(lowest[k], others)), SMALLEST)
            margin[k] = min(settled, clear)
        return margin

    def _inputs(self, u: Any, single: bool) -> tuple[Any, np.ndarray]:
        """x = F(u) on the device, in float32 values if `single`, and how far each may be from the
        true one: (n, d), (n,)."""
        if self.latent.is_identity:
            return u, np.zeros(len(u))
        xp = self.device.xp
        x, error = self.latent.forward(u)
        if single:
            narrow = xp.astype(xp.astype(x, xp.float32), xp.float64)
            error = add_up(error, xp.abs(x - narrow))
            x = narrow
        return x, self.device.get(row_norms(error, xp))

    def inside(self, u: Any) -> np.ndarray:
        """Whether each u lies in the set it may be chosen from: (n,)."""
        if isinstance(u, np.ndarray):
            return self.base.contains(u)
        return self.base.contains_on(self.device, u)

    @cached_property
    def _most_bits(self) -> int:
        return most_bits(self.head, self.domain)

    def _short(self, numbers: Iterable[int]) -> bool:
        """Whether an exact proof's numbers are no longer than exact arithmetic makes them."""
        return all(n.bit_length() <= self._most_bits for n in numbers)

    def _own_group(self, t: int, groups: dict[int, np.ndarray]) -> list[int]:
        """t, and those classes of its group that really equal it."""
        members = groups.get(t, np.empty(0, dtype=np.int64)).tolist()
        return [t, *(i for i in members if i != t and self.equal(i, t))]

    def exact_witness(
        self, t: int, witness: Witness, groups: dict[int, np.ndarray] | None = None
    ) -> float:
        """As `witnesses`, for one input given as fractions; every row in exact arithmetic."""
        if not self._short([*(witness.numerators or ()), witness.denominator]):
            return float("nan")
        u = witness.fractions()
        if len(u) != self.latent.width or not self.base.contains_exactly(u):
            return float("nan")
        others = np.setdiff1d(np.arange(self.head.classes), self._own_group(t, groups or {}))
        return self._exact_margin(t, self.latent.forward_exactly(u), others)

    def exact_lead(self, t: int, u: Sequence[Fraction], i: int) -> float:
        """z_t − z_i at one input given as fractions: exact but for rounding it down at the end."""
        return self._exact_margin(t, self.latent.forward_exactly(u), np.array([i]))

    def _exact_margin(self, t: int, x: Sequence[Fraction], rows: np.ndarray) -> float:
        """min over the rows of z_t − z_i, exact but for rounding it down at the end."""
        scale = math.lcm(*(v.denominator for v in x))
        whole = [v.numerator * (scale // v.denominator) for v in x] + [scale]
        own = self._logit(t, whole)
        low: Fraction | None = None
        for i in rows.tolist():
            lead = own - self._logit(i, whole)
            low = lead if low is None else min(low, lead)
            if low <= 0:
                break
        return math.inf if low is None else lower_float(low / scale)

    def _logit(self, i: int, x: Sequence[int]) -> Fraction:
        """z_i times the denominator of x, which stands at its end for the bias."""
        row, scale = self._whole_row(i)
        return Fraction(sum(a * b for a, b in zip(row, x, strict=True)), scale)

    def _whole_row(self, i: int) -> tuple[list[int], int]:
        return integers(np.append(self.head.rows(i, i + 1)[0], self.offsets[i]))

    # Mixtures

    def mixture(self, t: int, mixture: Mixture) -> float:
        """A proven lower bound on the lead of the mixture over z_t everywhere on D.

        Zero or more is a proof that t is never strictly first; NaN or less is a refusal.
        """
        return float(self.mixtures([t], [mixture])[0])

    def mixtures(self, classes: Sequence[int], mixtures: Sequence[Mixture]) -> np.ndarray:
        """As `mixture`, for many: they share their products."""
        check_arithmetic()
        with np.errstate(all="ignore"):  # what overflows is refused
            return ManyMixtures(self).leads(np.asarray(classes, dtype=np.int64), mixtures)

    def leads(self, classes: np.ndarray, sums: Tilted, bulk: np.ndarray) -> np.ndarray:
        """As `mixtures`, for weights on all classes whose bounded sums are given: (n,)."""
        check_arithmetic()
        with np.errstate(all="ignore"):
            many = ManyMixtures(self)
            return many.tilted_leads(np.asarray(classes, dtype=np.int64), sums, bulk)

    def seen(self, u: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        """x for each u on the device, how far off it may be, and whether u is in its set."""
        return *self._inputs(u, False), self.inside(u)

    def exact_mixture(self, t: int, mixture: Mixture) -> float:
        """As `mixture`, in fractions: of weights that are whole numbers, or of the floats as they
        are where that is not too much work."""
        classes = np.asarray(mixture.classes, dtype=np.int64)
        away = self.head.rows(t, t + 1) - self.head.take(classes)  # exact enough to be zero or not
        other = away.any(axis=1) | (self.offsets[classes] != self.offsets[t])
        weights: list[Fraction]
        if mixture.integers is None:
            if int(other.sum()) * self.head.features > _EXACT_SIZE or mixture.bulk:
                return float("nan")
            weights = [Fraction(w) for w in np.asarray(mixture.weights, np.float64)[other].tolist()]
        else:
            image = np.asarray(mixture.weights, dtype=np.float64)[other]
            if len(mixture.integers) != len(other) or not self._short(mixture.integers):
                return float("nan")
            if not 0 < float(image.sum()) + mixture.bulk < np.inf:
                return float("nan")
            named = zip(mixture.integers, other.tolist(), strict=True)
            weights = [Fraction(w) for w, is_other in named if is_other]
        return self._exact_mixture(t, classes[other], weights)

    def _exact_mixture(self, t: int, classes: np.ndarray, weights: list[Fraction]) -> float:
        own, own_scale = self._whole_row(t)
        residual = [Fraction(0)] * (self.head.features + 1)
        for i, weight in zip(classes.tolist(), weights, strict=True):
            if weight < 0:
                return float("nan")
            if weight == 0:
                continue
            row, row_scale = self._whole_row(i)
            for j, (a, b) in enumerate(zip(own, row, strict=True)):
                residual[j] += weight * (Fraction(a, own_scale) - Fraction(b, row_scale))
        total = sum(weights, Fraction(0))
        if total <= 0:
            return float("nan")
        seen, constant = self.latent.back_exactly(residual[:-1])
        upper = self.base.upper_bound_exactly(seen, residual[-1] + constant)
        return float("nan") if upper is None else lower_float(-upper / total)


def _lead_down(own: Any, rivals: Any) -> Any:
    """own − rivals rounded down: a lower bound less an upper one. Infinite without rivals."""
    lead = (own - rivals) * (1 - 2.0**-50)  # exact where it is subnormal
    return np.where(np.isneginf(rivals), lead, np.minimum(lead, LARGEST))
