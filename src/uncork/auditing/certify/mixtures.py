"""Many mixtures at once: their residuals, and the bounds on these, in large products.

What is proven of each is what `one_mixture` proves of one at a time. Arrays of width d or latent
lie on the device; numbers of which there is one a mixture, NumPy's, lie here. What overflowed is
NaN or infinite in the end, and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.auditing.certify.balance import Balances
from uncork.auditing.certify.bulk import Bulk
from uncork.auditing.certify.products import Tilted
from uncork.auditing.certify.support import finite_parts, parts_below_zero, upper_bounds
from uncork.auditing.proofs.verdict import Mixture
from uncork.core.rigour import LARGEST, SMALLEST, TINY, UNIT, add_up, gamma, mul_up
from uncork.domain import Domain, Unbounded

if TYPE_CHECKING:
    from uncork.auditing.certify.certifier import Certifier

_MOST = 16384  # mixtures looked at together
_TELLING = 8  # features by which nearly every two rows differ


@dataclass(frozen=True)
class Rows:
    """Rows and biases of some classes as functions of an input, each with an error bound."""

    rows: Any  # (n, width)
    error: Any
    bias: np.ndarray  # (n,)
    bias_error: np.ndarray


class ManyMixtures:
    """Leads of mixtures over their classes, bounded from below."""

    def __init__(self, certifier: Certifier) -> None:
        self.certifier, self.head, self.base = certifier, certifier.head, certifier.base
        self.latent, self.offsets = certifier.latent, certifier.offsets
        self.device, self.xp = certifier.device, certifier.device.xp

    def leads(self, classes: np.ndarray, mixtures: Sequence[Mixture]) -> np.ndarray:
        """A proven lower bound for each, NaN where there is none: (n,)."""
        leads = np.full(len(classes), np.nan)
        named = _Named.of(mixtures, self.head.classes)
        exact = np.array([m.integers is not None for m in mixtures], dtype=bool)
        tilts = np.array([m.tilt is not None for m in mixtures], dtype=bool)
        fits = [m.tilt is None or m.tilt.shape == (self.head.features,) for m in mixtures]
        sane = named.sane & np.array(fits, dtype=bool)
        for k in np.flatnonzero(sane & exact & ~tilts).tolist():
            leads[k] = self.certifier.exact_mixture(int(classes[k]), mixtures[k])
        row = 4 * 8 * max(self.head.features, self.latent.width)  # and some arrays like it
        most = int(np.clip(self.device.gather_bytes // row, 1, _MOST))
        for tilted in (False, True):
            step = min(most, self.device.inputs) if tilted else most
            for has_bulk in (False, True):
                chosen = sane & ~exact & (tilts == tilted) & ((named.bulk > 0) == has_bulk)
                at = np.flatnonzero(chosen)
                at = at[np.argsort(named.lengths[at], kind="stable")]
                for start in range(0, len(at), step):
                    part = at[start : start + step]
                    leads[part] = self._leads(classes[part], part, named, mixtures, tilted)
        return leads

    def _leads(
        self,
        classes: np.ndarray,
        at: np.ndarray,
        named: _Named,
        mixtures: Sequence[Mixture],
        tilted: bool,
    ) -> np.ndarray:
        """Leads of those at `at`, with bulk all of them or none."""
        own = self.device.take(self.head, classes)
        balances = self._named(classes, own, at, named)
        bulk = named.bulk[at]
        with np.errstate(all="ignore"):
            some = balances.total + bulk
        refused = ~((some > 0) & (some < np.inf))
        if tilted:
            x = np.array([mixtures[k].tilt for k in at], dtype=np.float64)
            sums = self.certifier.products.tilted(x, np.array([mixtures[k].peak for k in at]))
            balances = balances.plus(self.tilted(classes, own, sums))
        leads, seen = self._proven(classes, own, balances, bulk)
        leads[refused] = np.nan
        if not tilted and not bulk.any():
            open_ = ~(leads >= 0) & ~refused
            if open_.any():
                open_ &= ~self._hopeless(seen)
            for k in np.flatnonzero(open_).tolist():
                exactly = self.certifier.exact_mixture(int(classes[k]), mixtures[at[k]])
                leads[k] = leads[k] if np.isnan(exactly) else exactly
        return leads

    def tilted_leads(self, classes: np.ndarray, sums: Tilted, bulk: np.ndarray) -> np.ndarray:
        """Leads of weights on all classes whose bounded sums are given, one row for each: (n,)."""
        leads = np.full(len(classes), np.nan)
        own = self.device.take(self.head, classes)
        balances = self.tilted(classes, own, sums)
        for at in (np.flatnonzero(bulk == 0), np.flatnonzero(bulk > 0)):
            if len(at):
                some = own[self.device.put(at)]
                leads[at] = self._proven(classes[at], some, balances.at(at), bulk[at])[0]
        return leads

    # What mixtures leave

    def _named(self, classes: np.ndarray, own: Any, at: np.ndarray, named: _Named) -> Balances:
        """The balance of the classes named one by one, mixtures in order of their lengths."""
        row = 8 * self.head.features
        budget = max(1, self.device.gather_bytes // row)  # rows at a time
        lengths = named.lengths[at]
        parts = []
        start = 0
        while start < len(at):
            stop = start + max(1, budget // max(1, int(lengths[start])))
            stop = min(stop, len(at))
            stop = start + max(1, budget // max(1, int(lengths[stop - 1])))
            part = slice(start, stop)
            ids, weights = named.table(at[part], classes[part])
            parts.append(self._block(classes[part], own[part], ids, weights, budget))
            start += len(ids)
        return Balances.concat(parts, self.device)

    def _block(
        self, classes: np.ndarray, own: Any, ids: np.ndarray, weights: np.ndarray, budget: int
    ) -> Balances:
        """Σ λ_i (w_t − w_i) for weights (n, m) of the classes `ids` (n, m), and so on. An entry of
        weight zero adds nothing, and no rounding."""
        xp, put, get = self.device.xp, self.device.put, self.device.get
        bias_away = self.offsets[classes][:, None] - self.offsets[ids]  # (n, m)
        step = max(1, budget // len(ids))
        residual, size = xp.zeros_like(own), xp.zeros_like(own)
        some = np.unique(np.linspace(0, self.head.features - 1, _TELLING).astype(np.int64))
        columns = put(some)
        pieces = 0
        for start in range(0, ids.shape[1], step):
            part = slice(start, start + step)
            rows = self.device.take(self.head, ids[:, part].reshape(-1))
            away = own[:, None, :] - rows.reshape(len(ids), -1, self.head.features)
            # Weight on t itself, or on its equals, cancels: it proves nothing about the group.
            alike = (bias_away[:, part] == 0) & (weights[:, part] > 0)
            alike &= ~get(xp.any(away[:, :, columns] != 0, axis=2))
            if alike.any():
                where = np.flatnonzero(alike)
                full = away.reshape(-1, self.head.features)[put(where)]
                equal = where[~get(xp.any(full != 0, axis=1))]
                weights[equal // alike.shape[1], start + equal % alike.shape[1]] = 0.0
            share = put(np.ascontiguousarray(weights[:, None, part]))
            residual = residual + (share @ away)[:, 0]
            size = size + (share @ xp.abs(away))[:, 0]
            pieces += 1
        total = weights.sum(axis=1)
        count = ids.shape[1] + pieces + 8
        error, tiny = gamma(count), count * TINY * (1 + total)
        constant_error = error * (weights * np.abs(bias_away)).sum(axis=1)
        biased = ((bias_away != 0) & (weights > 0)).any(axis=1)
        return Balances(
            residual,
            error * size + put(tiny)[:, None],
            (weights * bias_away).sum(axis=1),
            constant_error + np.where(biased, tiny, 0.0),
            total,
            error * total + TINY,
            self.device,
        )

    def tilted(self, classes: np.ndarray, own: Any, sums: Tilted) -> Balances:
        """Σ l_i (w_t − w_i) and Σ l_i (b_t − b_i) from the sums over all classes."""
        xp, put = self.device.xp, self.device.put
        own, own_bias = own - put(self.certifier.products.centre), self.offsets[classes]
        rows, mass, mass_error = put(sums.rows), put(sums.mass)[:, None], put(sums.mass_error)
        moved, moved_bias = mass * own, sums.mass * own_bias
        rounding = 8 * (UNIT * (xp.abs(moved) + xp.abs(rows)) + TINY)
        off = mul_up(mass_error[:, None], xp.abs(own), xp)
        bias_rounding = 8 * (UNIT * (np.abs(moved_bias) + np.abs(sums.bias)) + TINY)
        bias_error = add_up(
            sums.bias_error, mul_up(sums.mass_error, np.abs(own_bias)), bias_rounding
        )
        biased = (own_bias != 0) | (sums.bias_error != 0)
        return Balances(
            moved - rows,
            add_up(put(sums.rows_error), off, rounding),
            moved_bias - sums.bias,
            np.where(biased, bias_error, sums.bias_error),
            sums.mass,
            sums.mass_error,
            self.device,
        )

    # What that proves

    def _proven(
        self, classes: np.ndarray, own: Any, balances: Balances, bulk: np.ndarray
    ) -> tuple[np.ndarray, Balances]:
        """The best lead that can be proven, with or without the bulk's help; and the balances as
        functions of u. Either all have a bulk or none has."""
        seen = balances.seen_through(self.latent)
        if not bulk.any():
            uppers = [upper_bounds(self.base, *seen.linear, *seen.fixed, self.device)]
        else:
            mine = self._own_rows(classes, own)
            uppers = list(self._with_bulk(self.base, self.certifier.bulk, mine, seen, bulk))
            if self.latent.shifts:
                # Where x = 0 lies in D and ties all classes, only a residual of zero will do, for
                # x as for u; and zero for x says more: it leaves the bias alone.
                bias = self.offsets[classes]
                mine = Rows(own, self.xp.zeros_like(own), bias, np.zeros_like(bias))
                mean = self.certifier.bulk_of_rows
                uppers += self._with_bulk(Unbounded(), mean, mine, balances, bulk)
        total = balances.total + bulk
        error = add_up(balances.total_error, 2 * UNIT * total + TINY)
        lead = np.fmax.reduce([_shares(upper, total, error) for upper in uppers])
        return np.where(total > 0, lead, np.nan), seen  # without weight nothing is proven

    def _with_bulk(
        self, base: Domain, mean: Bulk, mine: Rows, balances: Balances, bulk: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Upper bounds (n,) on Σ λ_i (z_t − z_i) with the bulk's weight added, for each argument;
        NaN where an argument does not reach."""
        xp, put = self.device.xp, self.device.put
        heavy = put(bulk)[:, None]

        def upper(residual: Any, error: Any, nudge: np.ndarray) -> np.ndarray:
            behind = mine.bias - mean.bias_low(nudge)
            moved = bulk * behind
            rounding = np.where(behind != 0, 8 * (UNIT * np.abs(moved) + TINY), 0.0)
            off = add_up(balances.constant_error, mul_up(bulk, mine.bias_error), rounding)
            constant = balances.constant + moved
            return upper_bounds(base, residual, error, constant, off, self.device)

        on = self.latent.on
        shift = heavy * (mine.rows - on.put(mean.centre))
        total = balances.residual + shift
        rounding = 4 * UNIT * (xp.abs(shift) + xp.abs(balances.residual)) + TINY
        error = add_up(balances.error, rounding, mul_up(heavy, mine.error, xp))
        # 1. The bulk as the mean row itself, known up to its own rounding.
        centre_error = mul_up(heavy, on.put(mean.centre_error), xp)
        yield upper(total, add_up(error, centre_error), np.zeros(len(bulk)))
        # 2. The bulk as a point near the mean that leaves a residual of our choosing: one that no
        #    infinite side of the domain sees, one that is nowhere positive, or none at all.
        none = xp.zeros_like(total)
        wishes: list[Callable[[], Any]] = [lambda: none]
        outline = base.outline(total.shape[1])
        if mean.is_full and (outline.is_round or outline.has_sides):  # else none, once more
            wishes.append(lambda: finite_parts(base, total, self.device))
        if mean.is_full and outline.has_sides:
            wishes.append(lambda: parts_below_zero(base, total, self.device))
        for wish in wishes:
            wanted = wish()
            # Both divisions round, and the first difference: paid for by the second.
            away = (total - wanted) / heavy
            off = add_up(error / heavy, 4 * UNIT * xp.abs(away), TINY)
            yield upper(wanted, none, mean.nudges(away, off, on))

    def _own_rows(self, classes: np.ndarray, own: Any) -> Rows:
        """Rows and biases of the classes as functions of u."""
        bias = self.offsets[classes]
        if self.latent.is_identity:
            return Rows(own, self.xp.zeros_like(own), bias, np.zeros_like(bias))
        rows, error, shift, slack = self.latent.back(own, self.xp.zeros_like(own))
        total = bias + self.device.get(shift)
        off = add_up(self.device.get(slack), 4 * UNIT * np.abs(total))
        return Rows(rows, error, total, off)

    def _hopeless(self, seen: Balances) -> np.ndarray:
        """Whether exact arithmetic would refuse too, by more than all rounding: it is dear. (n,)

        Says so only of boxes and balls, and too rarely rather than too often.
        """
        xp, outline = self.xp, self.base.outline(self.latent.width)
        if not outline.exact:
            return np.zeros(len(seen.total), dtype=bool)
        none = xp.zeros_like(seen.residual)
        # Where r is of one sign for certain and meets an infinite side, no rounding helps.
        sure = xp.abs(seen.residual) > 2 * seen.error
        below, above = (self.device.put(np.isinf(a)) for a in (outline.lower, outline.upper))
        met = ((seen.residual > 0) & above) | ((seen.residual < 0) & below)
        infinite = self.device.get(xp.any(sure & met, axis=1)) & (not outline.is_round)
        value, terms, _ = self.base.supports(seen.residual, none, self.device)
        slack = self.base.supports(none, seen.error, self.device).value
        least = value - slack + seen.constant - seen.constant_error
        clearly = least > 1e-9 * (terms + np.abs(seen.constant)) + 1e-290
        return np.asarray(infinite | (clearly & np.isfinite(least)))


@dataclass
class _Named:
    """The classes and weights that many mixtures name, end to end."""

    ids: np.ndarray  # (sum of lengths,)
    weights: np.ndarray
    lengths: np.ndarray  # (n,)
    starts: np.ndarray
    bulk: np.ndarray
    sane: np.ndarray  # whether there are such classes, and these are weights

    @classmethod
    def of(cls, mixtures: Sequence[Mixture], classes: int) -> _Named:
        no_ids, none = np.empty(0, dtype=np.int64), np.empty(0)
        names = [np.asarray(m.classes) for m in mixtures]
        shares = [np.asarray(m.weights) for m in mixtures]
        sane = np.array(
            [a.shape == b.shape and a.ndim == 1 for a, b in zip(names, shares, strict=True)],
            dtype=bool,
        )
        names = [a if fine else no_ids for a, fine in zip(names, sane.tolist(), strict=True)]
        shares = [a if fine else none for a, fine in zip(shares, sane.tolist(), strict=True)]
        lengths = np.array([len(a) for a in names], dtype=np.int64)
        ids = np.concatenate([no_ids, *names]).astype(np.int64)
        weights = np.concatenate([none, *shares]).astype(np.float64)
        bulk = np.array([m.bulk for m in mixtures], dtype=np.float64)
        wrong = (ids < 0) | (ids >= classes) | ~(np.isfinite(weights) & (weights >= 0))
        owner = np.repeat(np.arange(len(mixtures)), lengths)
        sane[owner[wrong]] = False
        sane &= (bulk >= 0) & (bulk < np.inf)
        return cls(ids, weights, lengths, np.cumsum(lengths) - lengths, bulk, sane)

    def table(self, at: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Classes and weights of the mixtures at `at`, filled up with their own class and weight
        zero: (n, longest), (n, longest)."""
        lengths = self.lengths[at]
        longest = int(lengths.max(initial=0))
        column = np.arange(longest)
        held = column < lengths[:, None]
        where = np.where(held, self.starts[at][:, None] + column, 0)
        if not len(self.ids):
            return np.broadcast_to(own[:, None], held.shape).copy(), np.zeros(held.shape)
        ids = np.where(held, self.ids[where], own[:, None])
        return ids, np.where(held, self.weights[where], 0.0)


def _shares(upper: np.ndarray, total: np.ndarray, error: np.ndarray) -> np.ndarray:
    """−upper/total rounded down, zero or more only if `upper` is; `total` known up to `error`."""
    least = (total - error) * (1 - 4 * UNIT)
    behind = np.minimum(np.nextafter(-upper / least, -np.inf), -SMALLEST)
    lead = -upper / add_up(total, error)
    lead = np.where(lead > 0, np.nextafter(np.minimum(lead, LARGEST), 0.0), lead)
    return np.where(upper > 0, np.where(least > 0, behind, -np.inf), lead)
