"""The space that searching happens in: rows centred and whitened, bias and domain folded in.

A class's point is u_i = (v_i, β_i): v_i = K(w_i − μ) the whitened row, β_i = (b_i − b̄)/σ its bias.
A direction y = (y_x, y_0) with y_0 > 0 stands for the input x = σ Kᵀy_x / y_0, and

    z_t − z_i  has the sign of  (u_t − u_i)·y,

so with y_0 as one more coordinate everything is homogeneous. Where only the direction of x matters
(no bias, and a domain that every direction enters) β and y_0 are left out. The sides of a box
are further rows g·y ≤ 0; a ball is a cone (`cone`), or tangent rows made where they are needed.
Of any other set the space holds the outline, which may be larger; what is proposed is pulled in.

Where the domain is an image x = F(u), the space is that of u: rows and biases are those that u
sees (`folded`), the domain is the plain set of u, and every input here is a u.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from uncork.auditing.backend import Backend
from uncork.auditing.certify.products import Skyline
from uncork.auditing.folded import Folded, searched
from uncork.auditing.search.cone import BallCone
from uncork.core.head import Head
from uncork.domain import Ball, Box, Domain
from uncork.domain.affine import Affine
from uncork.domain.outline import Outline

_ROWS = 8192
_HELD_BYTES = 256 << 20  # points are also held in float64 up to this size
_FAR = 1e4  # how far out an input is tried where the domain sets no bound
_MOST_UNSEEN = 4096  # features, beyond which directions that no row sees are not searched
_EVEN = 4  # sides up to this many times as far as others count as a cube around zero
_ROUNDING = 2.0**-52  # of each term of a mean, as a share of it
_STILL = 1e-3  # a step of this share of the inputs, after which they are near enough
_STIFF, _BEYOND = 0.05, 1.6  # ρ of the way to the nearest input, and how far each step is taken
_FEW = 16  # features
_FAINT = 1e-12  # of what other features change, at most
_INSIDE = 1 - 1e-6  # rounding to float32 must not leave the domain


class Space:
    """Points, domain rows, and the way from a direction back to an input."""

    def __init__(
        self, head: Head, domain: Domain, backend: Backend, groups: Sequence[np.ndarray] = ()
    ) -> None:
        view = domain.affine(head.features)
        view, self.origin = _about_zero(view, head)
        self.head, self.domain, self.backend = searched(head, view, backend), view.base, backend
        self.representative = np.arange(head.classes)  # the first of each group of equal classes
        for group in groups:
            self.representative[group] = group[0]
        self.repeats = np.flatnonzero(self.representative != np.arange(head.classes))
        bias = self.head.offsets
        self.features = self.head.features
        self.outline = self.domain.outline(self.features)
        self._cuts: list[tuple[np.ndarray, float]] = []  # normals, and how far the set goes there
        self.fixed = self.outline.fixed  # (d,) value, or NaN where free
        fixed = ~np.isnan(self.fixed)
        if fixed.any():
            at = np.where(fixed, self.fixed, 0.0)
            bias = bias + np.concatenate([block @ at for _, block in self.head.blocks(_ROWS)])
        self._free = (~fixed).astype(np.float64)
        # Weights are brought near one by a power of two, so that no square overflows.
        self._unit = self._free * magnitude_unit(self.head, backend)
        constant_bias = bool((bias == bias[0]).all())
        self._room: Outline | None = None
        if constant_bias and not self.domain.is_cone and _has_corner_at_zero(self.outline):
            # All classes tie at x = 0, so only the cone matters that the box is there.
            self._room, self.domain = self.outline, _cone_at_zero(self.outline)
            self.outline = self.domain.outline(self.features)
        # Whether every direction can be scaled into the domain, or the domain is a cone.
        directed = self.domain.is_cone or self.outline.surrounds_zero
        self.lifted = not (constant_bias and directed)
        self.centre = self._mean()
        self.spread = np.zeros(self.features)  # how much rows vary in each feature
        self._round = False  # whether the rows' correlation is far from singular
        self.to_input, self.from_input = self._whitening()  # K (k, d), and y_x = x @ (d, k)
        self.bias_centre = float(bias.mean())
        deviation = float(bias.std())
        self.bias_scale = deviation if deviation > 0 else 1.0
        self.bias = (bias - self.bias_centre) / self.bias_scale  # β (C,)
        self.unseen = len(self.to_input) - len(self._whiten)  # coordinates that are zero in points
        self.width = len(self.to_input) + self.lifted
        self.points = self._points()  # (C, width) on the device
        self._sharp: np.ndarray | None = None
        self.to_input_device = backend.asarray(self.to_input)
        self.from_input_device = backend.asarray(self.from_input)

    def _mean(self) -> np.ndarray:
        """The mean row, summed where it cannot overflow."""
        total = np.zeros(self.features)
        for _, block in self.backend.blocks(self.head):
            total += self.backend.get((block / self.head.classes).sum(axis=0))
        return total

    def _whitening(self) -> tuple[np.ndarray, np.ndarray]:
        """K with KΣKᵀ = I on the span of the rows, and K⁻ᵀ, its way back."""
        if self.head.classes <= self.features:
            return self._whitening_of_few()
        covariance: Any = None
        for away in self._centred():
            part = away.T @ away
            covariance = part if covariance is None else covariance + part
        covariance = self.backend.get(covariance) / self.head.classes
        scale = np.sqrt(np.diag(covariance))
        # What varies less than the mean's own rounding does not vary.
        still = scale <= _ROUNDING * self.head.classes * np.abs(self.centre * self._unit)
        covariance[still, :] = covariance[:, still] = 0.0
        self.spread = np.where(still, 0.0, scale)
        scale[still] = 1.0
        correlation = covariance / scale / scale[:, None]
        try:
            factor, inverse = self.backend.factor(correlation)
            if np.diag(factor).min() < 1e-5:
                raise np.linalg.LinAlgError
            self._round = True
            return self._scaled(inverse / scale, factor * scale[:, None])
        except np.linalg.LinAlgError:
            values, vectors = np.linalg.eigh(correlation)
            return self._on_span(values, vectors, scale)

    def _whitening_of_few(self) -> tuple[np.ndarray, np.ndarray]:
        """The same where the rows do not span their width, without a matrix of that width: a linear
        classifier of text has a few rows, and features by the hundred thousand."""
        away = np.concatenate([self.backend.get(block) for block in self._centred()])
        away /= np.sqrt(self.head.classes)
        largest = np.abs(away).max(axis=0, initial=0.0)  # its square may underflow
        scale = np.where(largest > 0, largest, 1.0)
        scale = scale * np.linalg.norm(away / scale, axis=0)
        self.spread = scale.copy()
        scale[scale == 0] = 1.0
        _, root, vectors = np.linalg.svd(away / scale, full_matrices=False)
        return self._on_span(root**2, vectors.T, scale)

    def _centred(self) -> Iterator[Any]:
        """The rows in their own unit, less their mean, block by block on the device."""
        put = self.backend.put
        centre, unit = put(self.centre * self._unit), put(self._unit)
        for _, block in self.backend.blocks(self.head):
            yield block * unit - centre

    def _on_span(
        self, values: np.ndarray, vectors: np.ndarray, scale: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Whitening by the principal directions (d, n) of rows divided by `scale`, and their
        variances."""
        kept = values > max(values.max(), 0.0) * 1e-13
        if not kept.any():  # all rows equal: any direction will do
            kept[-1:] = True
            values[-1:] = 1.0
        root, vectors = np.sqrt(values[kept]), vectors[:, kept]
        back = vectors * root * scale[:, None]
        # Inputs in the span of the rows: a part outside it changes no logit, but takes up room.
        span = np.linalg.qr(back)[0]
        return self._scaled(((vectors / root).T / scale) @ span @ span.T, back)

    def _scaled(self, to_input: np.ndarray, back: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whitening of the rows in their own unit, and its way back, for inputs as they are."""
        self._whiten = to_input
        unit = self._unit.max()
        unseen = self._unseen(back)
        size = float(np.linalg.norm(to_input) / np.sqrt(len(to_input))) * unit
        return (
            np.concatenate([to_input * unit, unseen * size]),
            np.concatenate([back / unit, unseen.T / size], axis=1),
        )

    def _unseen(self, back: np.ndarray) -> np.ndarray:
        """Directions of inputs that no row sees, where a box makes them count: it may be that an
        input fits into the box only with a part that changes no logit. Orthonormal (n, d).

        None for very many features: they would take as much memory squared, and the box is so wide
        then that what wins hardly ever needs them. What does need them is left undecided."""
        counts = self._sides_count
        free = np.flatnonzero(self._free)
        if not counts or back.shape[1] >= len(free) or len(free) > _MOST_UNSEEN:
            return np.zeros((0, self.features))
        span = np.linalg.qr(back[free], mode="complete")[0]  # (free, free)
        unseen = np.zeros((len(free) - back.shape[1], self.features))
        unseen[:, free] = span[:, back.shape[1] :].T
        return unseen

    def _points(self) -> Any:
        points = self.backend.hold((self.head.classes, self.width))
        put = self.backend.put
        centre, unit = put(self.centre * self._unit), put(self._unit)
        whiten = Skyline(self._whiten.T, self.backend)
        inner, seen = len(self.to_input), len(self._whiten)
        points[:, seen:inner] = 0.0
        for start, block in self.backend.blocks(self.head):
            stop = start + block.shape[0]
            points[start:stop, :seen] = whiten.times(block * unit - centre)
        if self.lifted:
            points[:, inner] = self.backend.asarray(self.bias)
        return points

    @property
    def root(self) -> np.ndarray | None:
        """K with v_i = K(g_i − μ), (k, d) for the rows g_i as u sees them; None where these were
        moved for searching, or where whoever verifies might not find a K that is as good."""
        moved = self.origin is not None or not np.isnan(self.fixed).all()
        moved = moved or (isinstance(self.head, Folded) and self.head.unit != 1)
        # Their squares: whoever verifies looks at the covariance as it is.
        least = self.spread.min() / self._unit.max()
        if moved or not self._round or not (least > 1e-48 and self._unit.max() > 1e-60):
            return None
        return self.to_input[: len(self._whiten)]

    def seen(self, y: Any) -> Any:
        """Of directions or points (n, width) the coordinates that some class sees."""
        if not self.unseen:
            return y
        inner = len(self.to_input)
        return y[:, self.backend.index(np.r_[: inner - self.unseen, inner : self.width])]

    def scores(self, y: Any, part: slice = slice(None)) -> Any:
        """u_i·y for directions (n, width) and the classes of a part: (n, C)."""
        return self.seen(y) @ self._seen_points[part].T

    @cached_property
    def _seen_points(self) -> Any:
        return self.seen(self.points)

    def precise(self, classes: np.ndarray) -> Any:
        """Points of some classes in float64 on the device: (n, width).

        Search precision blurs the difference of two nearly equal rows; deciding needs it sharp.
        """
        if self.points.dtype == self.backend.xp.float64:
            return self.points[self.backend.index(classes)]
        if self._sharp is None and self.head.classes * self.width * 8 <= _HELD_BYTES:
            self._sharp = self._all_exact_points()
        if self._sharp is not None:
            return self._sharp[classes]
        return self.exact_points(classes)

    def _all_exact_points(self) -> np.ndarray:
        points = np.empty((self.head.classes, self.width))
        for start in range(0, self.head.classes, _ROWS):
            part = np.arange(start, min(start + _ROWS, self.head.classes))
            points[part] = self.exact_points(part)
        return points

    def exact_points(self, classes: np.ndarray) -> np.ndarray:
        """Points of some classes in float64: (n, width)."""
        v = (self.head.take(classes) * self._unit - self.centre * self._unit) @ self._whiten.T
        if self.unseen:
            v = np.concatenate([v, np.zeros((len(v), self.unseen))], axis=1)
        return np.column_stack([v, self.bias[classes]]) if self.lifted else v

    def tilt(self, y: np.ndarray) -> tuple[np.ndarray, float]:
        """The x (d,) in float32 whose product with w_i varies as y·u_i does, and by how much more
        it is at the mean row."""
        direction = y @ self.to_input
        if isinstance(self.head, Folded):
            tilt = self.head.unfold(direction[None])[0].astype(np.float32)
            return tilt, float(self.centre @ direction)
        tilt = direction.astype(np.float32)
        return tilt, float(self.centre @ tilt.astype(np.float64))

    # From directions to inputs and back

    def inputs(self, y: Any) -> Any:
        """The input each direction stands for, wherever it lies: (n, width) → (n, d)."""
        xp = self.backend.xp
        x = y[:, : len(self.to_input)] @ self.to_input_device
        if self.lifted:
            height = y[:, -1:]
            x = x * (self.bias_scale / xp.where(height > 0, height, xp.ones_like(height)))
        return self.with_fixed(x)

    def proposed(self, x: Any) -> Any:
        """Inputs as the certifier is to see them: from the origin that u really has."""
        if self.origin is not None:
            return self.backend.get(x).astype(np.float64) + self.origin
        if self._room is not None:
            x = np.asarray(self.backend.get(x), dtype=np.float64)
            # How much of its side each feature takes up.
            below, above = x / self._room.lower, x / self._room.upper
            taken = np.where(x > 0, above, np.where(x < 0, below, 0.0))
            return x * (_INSIDE / np.maximum(taken.max(axis=-1, keepdims=True), 1e-300))
        if not self.outline.exact:
            return self.domain.pulled_in(self.backend.get(x))
        return x

    def sharp_inputs(self, y: np.ndarray) -> np.ndarray:
        """As `inputs`, in float64 whatever searching is done in, on the host."""
        x: np.ndarray = y[:, : len(self.to_input)] @ self.to_input
        if self.lifted:
            x *= self.bias_scale / np.where(y[:, -1:] > 0, y[:, -1:], 1.0)
        return np.asarray(x)

    def directions(self, x: Any) -> Any:
        """The direction that stands for each input: (n, d) → (n, width)."""
        xp = self.backend.xp
        y = x @ self.from_input_device
        if not self.lifted:
            return y
        return xp.concat([y, xp.full_like(y[:, :1], self.bias_scale)], axis=1)

    def with_fixed(self, x: Any) -> Any:
        fixed = ~np.isnan(self.fixed)
        if not fixed.any():
            return x
        at = self.backend.asarray(np.where(fixed, self.fixed, 0.0))
        return x * self.backend.asarray(self._free) + at

    def enter(self, x: Any, share: float = 1.0) -> Any:
        """Inputs moved into the domain, keeping their direction where that is possible.

        A bounded domain is entered at `share` of the way from the origin to its side.
        """
        xp, outline = self.backend.xp, self.outline
        tiny = xp.full_like(x[:, :1], 1e-30)
        if outline.is_round:
            norm = xp.sqrt(xp.sum(x * x, axis=1, keepdims=True))
            return x * (share * outline.radius * _INSIDE / xp.maximum(norm, tiny))
        largest = xp.max(xp.abs(x), axis=1, keepdims=True)
        if not outline.has_sides:
            return x * (share * _FAR / xp.maximum(largest, tiny))
        lower, upper = outline.lower, outline.upper
        if outline.surrounds_zero:
            # How much of its side each feature takes up, if x is to reach a side at all.
            put = self.backend.asarray
            taken = xp.maximum(x * put(1 / upper), x * put(1 / lower))
            taken = xp.max(taken, axis=1, keepdims=True)
            return self.clip(x * (share * _INSIDE / xp.maximum(taken, largest / _FAR + tiny)))
        bound = np.minimum(np.abs(lower), np.abs(upper))
        if not np.isfinite(np.maximum(np.abs(lower), np.abs(upper))).any():
            bound = np.full_like(bound, _FAR)
        bound = np.where((bound == 0) | ~np.isfinite(bound), np.inf, bound)
        if np.isfinite(bound).any():
            ratio = xp.max(xp.abs(x) * self.backend.asarray(1.0 / bound), axis=1, keepdims=True)
            x = x * (share * _INSIDE / xp.maximum(ratio, tiny))
        else:
            x = x * (share * _FAR / xp.maximum(largest, tiny))
        return self.clip(x)

    def clip(self, x: Any) -> Any:
        """The nearest input of the domain, a hair inside."""
        xp, outline = self.backend.xp, self.outline
        if outline.is_round:
            norm = xp.sqrt(xp.sum(x * x, axis=1, keepdims=True))
            limit = outline.radius * _INSIDE
            return x * xp.minimum(
                xp.ones_like(norm), limit / xp.maximum(norm, xp.full_like(norm, 1e-30))
            )
        if outline.has_sides:
            lower, upper = (self.backend.asarray(bound) for bound in self._shrunk_bounds)
            x = xp.minimum(xp.maximum(x, lower), upper)
        return x

    @cached_property
    def _shrunk_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The outline's sides, a hair inside: (d,), (d,)."""
        lower, upper = self.outline.lower, self.outline.upper
        return _shrunk(lower, upper), -_shrunk(-upper, -lower)

    def projected(self, x: Any, rounds: int) -> Any:
        """The input of the box nearest to each, in the metric of the rows, nearly, a hair inside.

        What is cut off at a side then moves the other features too: the logits stay as near as they
        can to those that were wanted.
        """
        backend = self.backend
        step = max(64, backend.cache_bytes // (self.features * self.points.itemsize))
        if x.shape[0] <= step:
            return self._projected(x, rounds)
        parts = [self._projected(x[k : k + step], rounds) for k in range(0, x.shape[0], step)]
        return backend.xp.concat(parts, axis=0)

    def _projected(self, x: Any, rounds: int) -> Any:
        """By the alternating direction method of multipliers: a step towards what is wanted, a clip
        to the box, and what clipping has taken so far is asked for again."""
        xp, put = self.backend.xp, self.backend.asarray
        hold, scale = self._hold
        low, high = (put(bound / scale) for bound in self._shrunk_bounds)
        x = x * put(1 / scale)
        here, taken = xp.minimum(xp.maximum(x, low), high), 0.0
        for _ in range(rounds):
            there = x + (here - taken - x) @ hold  # (M + ρI)⁻¹(M x + ρ(here − taken))
            taken = taken + _BEYOND * there + (1 - _BEYOND) * here
            before, here = here, xp.minimum(xp.maximum(taken, low), high)
            taken = taken - here
            moved = xp.sum(xp.abs(here - before))
            if float(moved) <= _STILL * float(xp.sum(xp.abs(here))):
                break
        return self.with_fixed(self.clip(here * put(scale)))

    @cached_property
    def _hold(self) -> tuple[Any, np.ndarray]:
        """ρ(M + ρI)⁻¹ on the device (d, d), M the rows' covariance in features scaled to one
        another, its largest eigenvalue about one; and those scales (d,)."""
        largest = np.abs(self.from_input).max(axis=1, initial=0.0)  # their squares may overflow
        largest = np.where(largest > 0, largest, 1.0)
        rows = self.from_input / largest[:, None]
        spread = np.linalg.norm(rows, axis=1)
        spread = np.where(spread > 0, spread, 1.0)
        rows, scale = rows / spread[:, None], 1 / (largest * spread)
        metric = rows @ rows.T
        if not (np.isfinite(metric).all() and np.isfinite(scale).all() and (scale > 0).all()):
            metric, scale = np.eye(self.features), np.ones(self.features)
        metric = metric / _largest_eigenvalue(metric) + _STIFF * np.eye(self.features)
        return self.backend.asarray(_STIFF * np.linalg.inv(metric)), scale

    @cached_property
    def most_even(self) -> tuple[Any, float]:
        """Where logits vary least, in the unit of the bias: as a direction of height one, (k,); and
        their deviation there."""
        inner = len(self.to_input)
        if not self.lifted:
            return self.points[0, :inner] * 0.0, 1.0
        # Points are white: least squares is one product.
        slope = -(self.points[:, inner] @ self.points[:, :inner]) / self.head.classes
        explained = float(self.backend.xp.sum(slope * slope))
        return slope, max(1 - explained, 1e-6) ** 0.5

    # The domain as rows

    def without_faint(self) -> Box | None:
        """The domain with features that hardly change any logit held still, as near to zero as they
        can be; None where there are none, or where the set is not a box of the features.

        Networks leave such features behind (weights near 1e-30). Whitened, they are
        coordinates like any other, and lead inputs away from what does change the logits."""
        outline = self._room or self.outline
        if isinstance(self.head, Folded) or not outline.exact or outline.is_round:
            return None
        extent = np.maximum(np.abs(outline.lower), np.abs(outline.upper))
        bounded = np.isfinite(extent) & self.lifted  # where only directions matter, none is
        effect = self.spread * np.where(bounded, extent, 1.0)
        faint = (effect > 0) & (effect <= _FAINT * effect.max(initial=0.0))
        if not faint.any():
            return None
        # Few features leave most classes lost, and no mixture balances without all of them.
        if not bounded[faint].all() and (effect > 0).sum() - faint.sum() < _FEW:
            return None
        lower, upper = outline.lower.copy(), outline.upper.copy()
        lower[faint] = upper[faint] = np.clip(0.0, lower[faint], upper[faint])
        return Box(lower, upper)

    def sides(self) -> np.ndarray:
        """Unit rows g with g·y ≤ 0 inside the box: (number of finite sides, width)."""
        if not self._sides_count:
            return np.zeros((0, self.width))
        lower, upper = self.outline.lower, self.outline.upper
        free = np.isnan(self.fixed)
        rows = []
        for sign, bounds in ((1.0, upper), (-1.0, lower)):
            kept = np.isfinite(bounds) & free
            row = sign * self.to_input[:, kept].T  # (n, k)
            if self.lifted:
                row = np.column_stack([row * self.bias_scale, -sign * bounds[kept]])
            rows.append(row)
        joined = np.concatenate(rows)
        norms = np.linalg.norm(joined, axis=1, keepdims=True)
        return joined / np.where(norms > 0, norms, 1.0)

    @cached_property
    def has_walls(self) -> bool:
        """Whether sides of a box are so near or so far that inputs meet them sideways."""
        free = np.isnan(self.fixed)
        if not self.outline.is_box or not self._sides_count or not free.any():
            return False
        bounds = np.concatenate([-self.outline.lower[free], self.outline.upper[free]])
        return not 0 < bounds.max() <= _EVEN * bounds.min() < np.inf

    @property
    def _sides_count(self) -> bool:
        """Whether flat sides say more than that every direction can be scaled into the domain."""
        return self.outline.has_sides and (self.lifted or self.domain.is_cone)

    def cut(self, x: np.ndarray) -> np.ndarray | None:
        """The unit row that cuts off an input outside a set that is not all sides: (width,)."""
        if not self.lifted:
            return None
        if self.outline.is_round:
            tangent: np.ndarray = self.tangents(x[None] / np.linalg.norm(x))[0]
            return tangent
        if self.outline.exact:
            return None
        known = self._known_cut(x)
        return self._new_cut(x) if known is None else known

    def _new_cut(self, x: np.ndarray) -> np.ndarray | None:
        normal = self.domain.normal(x)
        if normal is None:
            return None
        bound = self.domain.support(normal, np.zeros_like(normal)).value
        self._cuts.append((normal, bound))
        return self._known_cut(x)

    def _known_cut(self, x: np.ndarray) -> np.ndarray | None:
        """The deepest of the cuts made so far, for whatever class; None where x is outside by
        rounding, if at all."""
        depth, best = 1e-9, None
        for normal, bound in self._cuts:
            out = (normal @ x - bound) / float(np.abs(normal) @ np.abs(x) or 1.0)
            if out > depth:
                depth, best = out, self._unit_rows(normal[None], np.array([bound]))[0]
        return best

    def tangents(self, outward: np.ndarray) -> np.ndarray:
        """Unit rows g with g·y ≤ 0 on the ball, touching it at unit inputs: (n, d) → (n, width)."""
        return self._unit_rows(outward, np.full(len(outward), self.outline.radius))

    def _unit_rows(self, normals: np.ndarray, bounds: np.ndarray) -> np.ndarray:
        """Unit rows g with g·y ≤ 0 where n·x ≤ bound: (n, d), (n,) → (n, width)."""
        rows = normals @ self.to_input.T * self.bias_scale
        rows = np.column_stack([rows, -bounds])
        unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return unit

    def ball_cone(self) -> BallCone | None:
        """The ball as a cone of directions, where lengths matter."""
        if not self.outline.is_round or not self.lifted:
            return None
        return BallCone(self.to_input, self.bias_scale, self.outline.radius, self.backend)


def magnitude_unit(head: Head | Folded, backend: Backend) -> float:
    """The power of two that brings the largest weight to between a half and one."""
    xp = backend.xp
    largest = max(float(xp.max(xp.abs(block))) for _, block in backend.blocks(head))
    return 2.0 ** float(np.clip(-np.frexp(largest)[1], -1000, 1000)) if largest > 0 else 1.0


def _has_corner_at_zero(box: Outline) -> bool:
    """Whether x = 0 lies in the box, on its side."""
    inside = (box.lower <= 0).all() and (box.upper >= 0).all()
    return bool(box.is_box and inside and ((box.lower == 0) | (box.upper == 0)).any())


def _cone_at_zero(box: Outline) -> Box:
    return Box(np.where(box.lower < 0, -np.inf, 0.0), np.where(box.upper > 0, np.inf, 0.0))


def _about_zero(view: Affine, head: Head) -> tuple[Affine, np.ndarray | None]:
    """Where there is no bias and x = 0 is the image of some u₀ well inside a ball, the ball around
    u₀, from u₀: directions are then all that matters. And u₀; None where it is not so."""
    constant = view.image(np.zeros(view.latent))
    bias, ball = head.offsets, view.base.outline(view.latent)
    around = ball.exact and ball.is_round
    if not around or not constant.any() or (bias != bias[0]).any():
        return view, None
    if view.rank < view.features:  # x = 0 is not to be expected
        return view, None
    matrix = view.parts()[0]
    origin, _, rank, _ = np.linalg.lstsq(matrix, -constant)
    room = ball.radius - float(np.linalg.norm(origin))
    missed = np.linalg.norm(matrix @ origin + constant) > 1e-9 * np.linalg.norm(constant)
    if missed or rank < view.features or not room > 0.01 * ball.radius:
        return view, None
    return replace(view.linear_part, base=Ball(room * _INSIDE)), origin


def _largest_eigenvalue(matrix: np.ndarray) -> float:
    """Of a positive semidefinite matrix, a little more than less: by power iteration."""
    vector = np.ones(len(matrix)) + np.arange(len(matrix)) % 7
    size = 1.0
    for _ in range(32):
        vector = matrix @ (vector / np.linalg.norm(vector))
        size = float(np.linalg.norm(vector))
    return 1.1 * size


def _shrunk(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Lower bounds moved up by a hair, as float32 will still see it."""
    with np.errstate(invalid="ignore"):
        up = lower + (1 - _INSIDE) * np.abs(lower)
        up32 = np.nextafter(up.astype(np.float32), np.float32(np.inf)).astype(np.float64)
    inside = np.isfinite(lower) & (up32 < upper)
    return np.where(inside & (lower != 0), up32, lower)
