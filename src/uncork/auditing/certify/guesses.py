"""Every class's own first guess against every class: one half of one product proves nearly all.

A witness by formula is u_t = s_t·P(w_t − c), rounded. In coordinates where the rows are round, row
and input of a class are the same point v_t, so the logits of all guesses form the symmetric matrix
V Vᵀ: the tiles of its upper triangle, with the maxima of their rows and of their columns, are all
there is to compute. What is proven is about the stored weights all the same.

**The way from points to logits.** Let g_i be the row of class i as u sees it, T any matrix and v_i
any point, however they were found (`Coordinates`, untrusted). With ξ_t = u_t/s_t, for any c

    (g_i − c)·ξ_t = v_i·v_t + v_i·(Tᵀξ_t − v_t) + (g_i − c − T v_i)·ξ_t
                  ≤ v_i·v_t + ‖v_i‖ ε_t + ρ_i X_t,

where ε_t ≥ ‖Tᵀξ_t − v_t‖, ρ_i ≥ ‖g_i − c − T v_i‖ and X_t ≥ ‖ξ_t‖ are measured once a class, in
float64 with every rounding paid for: products of C·d², not C²·d. The class's own logit has a lower
bound in the same way. Bad coordinates make wide bounds, and never false ones.

**The product.** It is made of points ṽ_i in a narrow type, with δ_i ≥ ‖v_i − ṽ_i‖ measured too. Put
N_i ≥ ‖v_i‖ + δ_i and E_i = ε_i + δ_i. The bound rides along as further columns: rows
(ṽ, √κ N, N, E, ρ, X) times (ṽ, √κ N, E, N, X, ρ) are

    ṽ_i·ṽ_t + κ N_i N_t + N_i E_t + E_i N_t + ρ_i X_t + X_i ρ_t,

symmetric, and an upper bound on class i's logit at input t and on t's at input i. If a sum of m
products errs by at most γ Σ|a||b| (`Arithmetic`), what comes out is at least the exact sum less
γ(N_i N_t + the rest), so κ = 1.05 γ and a further 2 % on E and ρ pay for it while γ < 0.01; N is
never below 1e-10, which pays for whatever underflows, and all entries are below 1e15, so that
nothing overflows. Otherwise nothing is claimed.

**A bias** B_i adds B_i/s_t, an outer product that is not symmetric: it is added to each tile twice,
once for its rows and once for its columns, as the last term of the same sums.

**What the narrow type leaves open** is a list of pairs, mostly short: they are bounded one by one
in float64. A class with too many of them is left to others. Of classes that are equal the first
stands for all, after checking that they are.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.auditing.certify.products import Skyline
from uncork.auditing.proofs.formula import Formula, to_single
from uncork.core.rigour import LARGEST, TINY, UNIT, check_arithmetic, gamma, row_norms, up

if TYPE_CHECKING:
    from uncork.auditing.backend import Backend
    from uncork.auditing.certify.certifier import Certifier

_PAID = 1.02  # what E and ρ cost, with the rounding of the product they ride in
_FLOOR, _LARGEST = 1e-10, 1e15
_TINIEST = 1e-30  # no column that is a bound is smaller: none vanishes in a narrow type
_ROBUST = 1e-9  # a margin, as a share of the logits' size, that other machines' rounding keeps
_MOST_OPEN = 32  # pairs of one class in one tile that are settled one by one
_MOST_FOLDED = 2048  # features whose map from u is undone to verify
_PAIRS = 1 << 22  # numbers gathered at once to settle them


@dataclass(frozen=True)
class Coordinates:
    """Where rows are round: g_i ≈ centre + back @ points_i. A proposal, measured before use.

    `points` (C, ≥ k) lies on the device; None: made here, from the formula's own inputs.
    """

    back: np.ndarray  # (latent, k) T
    centre: np.ndarray  # (latent,)
    points: Any = None


def coordinates_of(formula: Formula, certifier: Certifier) -> Coordinates | None:
    """Coordinates for a formula alone: u = M(g − c) with M near K ᵀK, and T = K⁻¹. None where there
    are none. Nothing here is trusted: what comes of it is measured."""
    matrix, centre = formula.transform.astype(np.float64), formula.centre
    if not certifier.latent.is_identity:
        if max(matrix.shape) > _MOST_FOLDED:
            return None
        latent = certifier.latent.host
        fold = latent.back(np.eye(len(matrix)), np.zeros((len(matrix), len(matrix)))).rows
        matrix, centre = np.linalg.lstsq(fold, matrix)[0], centre @ fold
    matrix = (matrix + matrix.T) / 2
    try:
        back = np.linalg.inv(np.linalg.cholesky(matrix)).T
    except np.linalg.LinAlgError:
        if len(matrix) > _MOST_FOLDED or not np.isfinite(matrix).all():
            return None
        values, vectors = np.linalg.eigh(matrix)
        kept = values > 1e-7 * values[-1]  # P is stored in float32
        back = vectors[:, kept] / np.sqrt(values[kept])
    return Coordinates(back, centre) if np.isfinite(back).all() else None


@dataclass(frozen=True)
class Proven:
    """A lead for each of some classes: > 0 proves that its guess, at this scale, puts it first."""

    classes: np.ndarray  # (n,)
    scales: np.ndarray  # (n,) in float32
    margins: np.ndarray  # (n,)
    robust: np.ndarray  # (n,) whether another machine's rounding would leave it proven


class Guesses:
    """All first guesses of one head, measured, and their product a panel of classes at a time."""

    def __init__(
        self,
        certifier: Certifier,
        backend: Backend,
        formula: Formula,
        coordinates: Coordinates,
        groups: Sequence[np.ndarray] = (),
        scales: np.ndarray | None = None,
        strict: bool = False,
    ) -> None:
        self.certifier, self.backend = certifier, backend
        self.head, self.latent = certifier.head, certifier.latent
        self.formula, self.given = formula, scales
        self.arithmetic = backend.arithmetic(strict)
        repeats = [self._checked(group)[1:] for group in groups]
        behind = np.zeros(self.head.classes, dtype=bool)
        behind[np.concatenate([np.empty(0, dtype=np.int64), *repeats])] = True
        self.order = np.flatnonzero(~behind)  # (n,) the first of each group of equals
        self.coordinates = coordinates
        self.width = coordinates.back.shape[1]

    def _checked(self, group: np.ndarray) -> np.ndarray:
        """Its first, and those of a group behind it that really equal it: of several that are
        equal, the first is never among those left out."""
        group = np.concatenate([group[:1], group[group > group[0]]])
        first, equal = self.head.take(group[:1]), []
        for start in range(0, len(group), 1024):
            part = group[start : start + 1024]
            same = (self.head.take(part) == first).all(axis=1)
            same &= self.certifier.offsets[part] == self.certifier.offsets[group[0]]
            equal.append(part[same])
        return np.concatenate(equal)

    def run(self) -> Generator[Proven]:
        """The classes in order, panel after panel; one that is behind its equals is left out."""
        check_arithmetic()
        with np.errstate(all="ignore"):  # what overflows is refused
            product = _Product(self, self._measured())
        yield from product.run()

    # Measuring

    def _measured(self) -> _Measured:
        backend, coordinates = self.backend, self.coordinates
        put = backend.put
        on_device = _OnDevice(
            put(self.formula.transform.astype(np.float64)),
            put(self.formula.centre),
            Skyline(coordinates.back, backend),
            Skyline(coordinates.back.T, backend),
            put(coordinates.centre),
            float(row_norms(coordinates.back.reshape(1, -1))[0]),
            float(row_norms(coordinates.centre[None])[0]),
            put(row_norms(self.formula.transform.T.astype(np.float64))),
        )
        wide = max(self.head.features, self.latent.width, self.width)
        step = max(64, min(backend.rows, backend.measured_bytes // (8 * wide)))
        points = coordinates.points
        if points is None:
            points = backend.hold((self.head.classes, self.width))

        def measure(start: int) -> _Measured:
            return self._measure(self.order[start : start + step], on_device, points)

        starts = range(0, len(self.order), step)
        with backend.threads(len(starts)) as over:
            return _Measured.joined(list(over(measure, starts)), points, backend)

    def _measure(self, classes: np.ndarray, on: _OnDevice, points: Any) -> _Measured:
        backend, latent, xp = self.backend, self.latent, self.backend.xp
        put, get = backend.put, backend.get
        rows = backend.take(self.head, classes)
        directions = (rows - on.centre) @ on.transform
        base = self.certifier.base
        if self.given is None:
            scales = self.formula.scales(base, directions, backend)
        else:
            scales = self.given[classes].astype(np.float32)
        usable = (scales > 0) & np.isfinite(scales)
        length = np.where(usable, scales, 1).astype(np.float64)
        inputs = to_single(directions * put(length)[:, None], backend)
        usable &= self.certifier.inside(inputs)
        keeps = self._keeps(rows, inputs, length, on) if self.given is None else usable
        bias, bias_error = self.certifier.offsets[classes], np.zeros(len(classes))
        seen, wrong = rows, None
        if not latent.is_identity:
            seen, wrong, shift, shift_error = latent.back(rows, 0.0 * rows)
            bias = bias + get(shift)
            bias_error = up(get(shift_error) + 2 * UNIT * np.abs(bias), 4)
            exact = (get(shift) == 0) & (get(shift_error) == 0)
            bias_error = np.where(exact, 0.0, bias_error)
        guess = inputs / put(length)[:, None]  # ξ, each entry within a share u of the true one
        # Tᵀξ as it is to be, and the point that stands for it.
        aim = on.back.times(guess)
        at = backend.index(classes)
        if self.coordinates.points is None:
            points[at] = backend.cast(aim, points.dtype)
        v = xp.astype(points[at][:, : self.width], xp.float64)
        count = max(latent.width, self.width) + 16
        n, x, size = (self._norms(a) for a in (v, guess, seen))
        x = x * (1 + 8 * UNIT) + TINY
        spread = on.back_norm
        aside = up(self._norms(aim - v) + gamma(count) * (spread * x) + 4 * UNIT * n, count)
        missed = self._norms((seen - on.middle) - on.back_transposed.times(v))
        missed = missed + gamma(count) * (spread * n) + 8 * UNIT * (size + on.middle_norm)
        if wrong is not None:
            missed = missed + self._norms(wrong)
        missed = up(missed, count)
        blurred = 0.0 * n
        if str(points.dtype).rpartition(".")[2] != self.arithmetic.dtype:
            narrow = xp.astype(backend.cast(v, self.arithmetic.dtype), xp.float64)
            blurred = up(self._norms(v - narrow) + 2 * UNIT * n, count)
        # What a class is worth as an input matters only if it is one; as a rival it still counts.
        at_all = put(usable.astype(np.float64))
        aside, x = (xp.where(at_all > 0, a, 0.0 * n) for a in (aside, x))
        own = xp.sum(v * v, axis=1) * (1 - gamma(self.width + 8))
        own = own - up(n * aside + missed * x, 8)
        own = own - 8 * UNIT * xp.abs(own) - TINY
        return _Measured(
            classes, scales, usable, keeps, bias, bias_error,
            n, aside, missed, x, blurred, own, get(x * size), points,
        )  # fmt: skip

    def _norms(self, rows: Any) -> Any:
        """As `row_norms`, in one pass where squares do not overflow; what they lose where they
        underflow is paid for by the smallest normal number."""
        xp, count = self.backend.xp, rows.shape[1]
        norms = xp.sqrt(self.backend.squares(rows) + count * TINY) * (1 + gamma(count + 8))
        return norms if bool(xp.all(xp.isfinite(norms))) else row_norms(rows, xp)

    def _keeps(self, rows: Any, inputs: Any, scales: np.ndarray, on: _OnDevice) -> np.ndarray:
        """As `Formula.keeps`, by Cauchy–Schwarz: without a second product of all rows."""
        backend, xp = self.backend, self.backend.xp
        outline = self.certifier.base.outline(inputs.shape[1])
        if not (outline.has_sides or outline.is_round):
            return np.ones(len(scales), dtype=bool)
        length = self._norms(rows - on.centre) * backend.put(1e-12 * scales)
        noise = length[:, None] * on.column_norms
        if outline.is_round:
            return backend.get(self._norms(xp.abs(inputs) + noise)) <= outline.radius
        lower, upper = backend.put(outline.lower.copy()), backend.put(outline.upper.copy())
        inside = (inputs - noise >= lower) & (inputs + noise <= upper)
        return backend.get(xp.all(inside, axis=1))


@dataclass(frozen=True)
class _OnDevice:
    """What every block of rows is measured with."""

    transform: Any  # (d, latent) P
    centre: Any  # (d,)
    back: Skyline  # (latent, k) T
    back_transposed: Skyline
    middle: Any  # (latent,)
    back_norm: float  # ≥ ‖T‖_F
    middle_norm: float
    column_norms: Any  # (latent,) ≥ ‖P_j‖


@dataclass(frozen=True)
class _Measured:
    """What is known of each class; bounds are (n,) on the device, the rest on the host."""

    classes: np.ndarray
    scales: np.ndarray
    usable: np.ndarray  # whether the input is one at all, and in the domain
    keeps: np.ndarray  # whether it is so on other machines
    bias: np.ndarray
    bias_error: np.ndarray
    norm: Any  # ≥ ‖v‖
    aside: Any  # ε
    missed: Any  # ρ
    reach: Any  # X
    blurred: Any  # δ
    own: Any  # ≤ (g_t − c)·ξ_t
    size: np.ndarray  # ‖ξ‖‖g‖
    points: Any  # (C, ≥ k), all of them

    @staticmethod
    def joined(parts: list[_Measured], points: Any, backend: Backend) -> _Measured:
        def host(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        def device(name: str) -> Any:
            return backend.xp.concat([getattr(part, name) for part in parts])

        on_host = ("classes", "scales", "usable", "keeps", "bias", "bias_error", "size")
        on_device = ("norm", "aside", "missed", "reach", "blurred", "own")
        found = {name: host(name) for name in on_host} | {n: device(n) for n in on_device}
        return _Measured(points=points, **found)


class _Product:
    """The tiles of the product, what comes out of them, and what they leave open."""

    def __init__(self, guesses: Guesses, measured: _Measured) -> None:
        self.guesses, self.measured = guesses, measured
        self.backend, self.arithmetic = guesses.backend, guesses.arithmetic
        self.width, self.count = guesses.width, len(measured.classes)
        bias = measured.bias
        # Whether all classes have the same bias: then it does not matter.
        self.even = bool((bias == bias[0]).all() and not measured.bias_error.any())
        self._own_with_bias()
        self.left, self.right, self.sound = self._columns()
        self.bias_columns: tuple[Any, Any] | None = None
        if not self.even:
            *columns, sound = self._bias_columns()
            self.bias_columns, self.sound = (columns[0], columns[1]), self.sound and sound
        self.panel = self.backend.panel
        if self.count > 64 * self.panel:  # so many tiles that starting each would take time
            self.panel *= 2
        self.best = np.full(self.count, -np.inf)
        self._panels: dict[tuple[str, int], Any] = {}
        held = 2 * self.count * (self.width + 8) * self.arithmetic.itemsize
        self._hold = held <= self.backend.panel_bytes

    def _own_with_bias(self) -> None:
        """The class's own logit with its bias, less the mean bias, over its scale."""
        measured, backend = self.measured, self.backend
        own = backend.get(measured.own)
        length = np.where(measured.usable, measured.scales, 1).astype(np.float64)
        self.length = length
        if not self.even:
            middle = float(measured.bias.mean())
            self.bias = measured.bias - middle
            rounding = 2 * UNIT * (np.abs(measured.bias) + abs(middle)) + TINY
            self.bias_error = up(measured.bias_error + rounding, 4)
            own = own + (self.bias - self.bias_error) / length
            own -= 8 * UNIT * (np.abs(own) + (np.abs(self.bias) + self.bias_error) / length) + TINY
        own[~measured.usable] = -np.inf
        self.own = own
        # Infinite for a class of which nothing more is to be found out.
        self.threshold = np.where(measured.usable, own, np.inf)

    def _columns(self) -> tuple[Any, Any, bool]:
        """The columns that ride along on either side, (n, 5 or 6) in the narrow type."""
        m, xp, backend = self.measured, self.backend.xp, self.backend
        terms = self.width + 32
        share = self.arithmetic.share(terms)
        norm = xp.clip(m.norm + m.blurred, _FLOOR, None) * (1 + 8 * UNIT)
        error = _PAID * (m.aside + m.blurred)
        largest = float(xp.max(m.reach))
        unit = 2.0 ** -float(np.frexp(largest)[1]) if 0 < largest < np.inf else 1.0
        reach, missed = m.reach * unit, _PAID * m.missed / unit
        half = norm * (np.sqrt(1.05 * share) * (1 + 8 * UNIT))
        left, right = [half, norm, error, missed, reach], [half, error, norm, reach, missed]
        left, right = ([xp.clip(c, _TINIEST, None) for c in side] for side in (left, right))
        sound = 0 < largest < np.inf and share < 0.01
        sides = []
        for side in (left, right):
            columns = xp.stack(side, axis=1)
            lifted = columns + 2 * self.arithmetic.spacing * xp.abs(columns)
            sound = sound and bool(xp.max(xp.abs(columns)) < _LARGEST)
            sides.append(backend.cast(lifted, self.arithmetic.dtype))
        return sides[0], sides[1], sound

    def _bias_columns(self) -> tuple[Any, Any, bool]:
        """The bias of a rival and what it is multiplied by at an input: b ĥ ≥ B_i/s_t, (n,) each.

        1/s_t lies within ĥ(1 ± 2σ), σ the share that rounding to the type may change, and the sum
        that b ĥ is part of loses no more than its share of |b|ĥ.
        """
        wide = np.abs(self.bias) + self.bias_error
        spacing = self.arithmetic.sum_spacing
        extra = 4 * spacing + 2 * self.arithmetic.share(self.width + 32)
        bias = (self.bias + self.bias_error) + wide * extra * (1 + 64 * UNIT) + _TINIEST
        bias = bias + 2 * spacing * np.abs(bias)
        length = 1 / self.length
        sound = bool(max(np.abs(bias).max(), length.max()) < _LARGEST)
        sound = sound and bool(length.min() > _TINIEST)
        cast, dtype = self.backend.cast, self.arithmetic.sum_dtype
        put = self.backend.put
        return cast(put(bias), dtype), cast(put(length), dtype), sound

    def run(self) -> Iterator[Proven]:
        """Tile after tile; a panel of classes is done with the last tile of its strip."""
        if not self.sound:
            self.best[:] = np.nan
            yield self._proven(0, self.count)
            return
        starts = list(range(0, self.count, self.panel))
        tiles = [(a, b) for a in starts for b in starts if b >= a]
        with self.backend.threads(len(tiles)) as over:
            for (a, b), found in zip(tiles, over(self._tile, tiles), strict=True):
                for start, highest in zip((a, b), found, strict=False):
                    self._take(start, highest)
                if b == starts[-1]:
                    yield self._proven(a, min(a + self.panel, self.count))
                    self._forget(a)

    def _take(self, start: int, highest: np.ndarray) -> None:
        part = slice(start, start + len(highest))
        with np.errstate(all="ignore"):
            self.best[part] = np.maximum(self.best[part], highest)  # NaN stays NaN
        self.threshold[part][~(self.best[part] < self.own[part])] = np.inf

    def _tile(self, tile: tuple[int, int]) -> list[np.ndarray]:
        """Upper bounds on the logits of the classes from b on at the inputs of those from a on,
        the highest for each input: (n,); and with the two exchanged, which the tile says too."""
        a, b = tile
        left, right = self._panel("left", b), self._panel("right", a, keep=True)
        beside = None
        if self.bias_columns is not None:
            b_left, h_left = self._bias(b, len(left))
            b_right, h_right = self._bias(a, len(right))
            beside = (b_left, h_right), (h_left, b_right)
        rows, columns = self.backend.maxima(left, right, a == b, beside)
        found = [self._settled(a, b, columns)]
        if a != b:
            found.append(self._settled(b, a, rows))
        return found

    def _bias(self, start: int, count: int) -> tuple[Any, Any]:
        assert self.bias_columns is not None
        bias, length = self.bias_columns
        return bias[start : start + count], length[start : start + count]

    def _settled(self, a: int, b: int, highest: np.ndarray) -> np.ndarray:
        """Those bounds again, where rivals that are not clearly below were looked at closely."""
        open_ = np.flatnonzero(~(highest < self.threshold[a : a + len(highest)]))
        for start in range(0, len(open_), 4096):
            part = open_[start : start + 4096]
            highest[part] = self._look_closely(a, b, part)
        return highest

    def _look_closely(self, a: int, b: int, inputs: np.ndarray) -> np.ndarray:
        """The highest rival from b on at some inputs (n,), counted from a; infinite where too many
        rivals are in doubt: (n,)."""
        backend, xp = self.backend, self.backend.xp
        left, right = self._panel("left", b), self._panel("right", a)
        scores = backend.product(right[backend.index(inputs)], left)  # (n, rivals)
        if self.bias_columns is not None:
            length = self._bias(a, len(right))[1][backend.index(inputs)]
            scores = scores + length[:, None] * self._bias(b, len(left))[0]
        if a == b:
            scores[backend.index(np.arange(len(inputs))), backend.index(inputs)] = -np.inf
        threshold = backend.put(self.threshold[a + inputs])
        doubtful = ~(scores < threshold[:, None])
        count = backend.get(xp.sum(xp.astype(doubtful, xp.int32), axis=1))
        below = xp.where(doubtful, xp.full_like(scores, -np.inf), scores)
        highest = backend.get(xp.max(below, axis=1)).astype(np.float64)
        hopeless = count > _MOST_OPEN
        doubtful[backend.index(np.flatnonzero(hopeless))] = False
        who, rival = (backend.get(i) for i in xp.nonzero(doubtful))
        np.maximum.at(highest, who, self._pairs(a + inputs[who], b + rival))
        highest[hopeless] = np.inf
        return highest

    def _pairs(self, inputs: np.ndarray, rivals: np.ndarray) -> np.ndarray:
        """An upper bound on the logit of each rival at the input beside it, in float64: (n,)."""
        step = max(1, _PAIRS // self.width)
        parts = [
            self._few_pairs(inputs[start : start + step], rivals[start : start + step])
            for start in range(0, len(inputs), step)
        ]
        return np.concatenate([np.empty(0), *parts])

    def _few_pairs(self, inputs: np.ndarray, rivals: np.ndarray) -> np.ndarray:
        m, backend, xp = self.measured, self.backend, self.backend.xp
        t, i = backend.index(inputs), backend.index(rivals)
        at, of = (
            xp.astype(m.points[backend.index(m.classes[ids])][:, : self.width], xp.float64)
            for ids in (inputs, rivals)
        )
        score = xp.sum(at * of, axis=1)
        rounding = gamma(self.width + 16) * (m.norm[t] * m.norm[i])
        score = backend.get(score)
        error = backend.get(up(rounding + m.norm[i] * m.aside[t] + m.missed[i] * m.reach[t], 16))
        if not self.even:
            size = (np.abs(self.bias[rivals]) + self.bias_error[rivals]) / self.length[inputs]
            score = score + (self.bias[rivals] + self.bias_error[rivals]) / self.length[inputs]
            error = error + 8 * UNIT * size + TINY
        return np.asarray(score + error + 8 * UNIT * (np.abs(score) + error))

    def _panel(self, side: str, start: int, keep: bool = False) -> Any:
        """Points and the columns that ride along, for the classes from `start` on."""
        found = self._panels.get((side, start))
        if found is None:
            backend, stop = self.backend, min(start + self.panel, self.count)
            classes = self.measured.classes[start:stop]
            first, last = int(classes[0]), int(classes[-1])
            whole = last - first + 1 == len(classes)
            at = slice(first, last + 1) if whole else backend.index(classes)
            points = self.measured.points[at][:, : self.width]
            columns = (self.left if side == "left" else self.right)[start:stop]
            found = backend.beside(backend.cast(points, self.arithmetic.dtype), columns)
            if self._hold or keep:
                self._panels[side, start] = found
        return found

    def _forget(self, start: int) -> None:
        """A strip's input is not needed again."""
        for side in ("left", "right"):
            self._panels.pop((side, start), None)

    def _proven(self, start: int, stop: int) -> Proven:
        m, part = self.measured, slice(start, stop)
        own, best = self.own[part], self.best[part]
        with np.errstate(all="ignore"):
            lead = own - best
            lead = lead - 4 * UNIT * (np.abs(own) + np.abs(best)) - TINY
            margins = np.nextafter(np.minimum(lead * self.length[part], LARGEST), 0.0)
            margins = np.where(lead > 0, margins, np.nan)
            robust = m.keeps[part] & (lead > _ROBUST * m.size[part])
        return Proven(m.classes[part], m.scales[part], margins, robust)
